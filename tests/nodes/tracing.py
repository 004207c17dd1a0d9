"""Stops a process right after a fork, which polling could not do reliably."""

import ctypes
import os
import signal

PTRACE_CONT, PTRACE_DETACH, PTRACE_GETEVENTMSG, PTRACE_SEIZE = 7, 17, 0x4201, 0x4206
PTRACE_O_TRACEFORK, PTRACE_EVENT_FORK = 0x2, 1
WALL = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request, pid, data):
    if _libc.ptrace(request, pid, None, data) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace({request:#x}): {os.strerror(error)}")


class ForkTrap:
    """Catches the next fork of a process. Create and use it in one thread."""

    def __init__(self, pid):
        self.pid = pid
        _ptrace(PTRACE_SEIZE, pid, PTRACE_O_TRACEFORK)

    def stop_after_fork(self):
        """Waits for the fork. The parent is then stopped as by SIGSTOP, and the child runs. Returns the pid of the child."""
        while True:
            _, status = os.waitpid(self.pid, WALL)
            assert os.WIFSTOPPED(status), f"it ended before it forked: {status}"
            if status >> 8 == signal.SIGTRAP | PTRACE_EVENT_FORK << 8:
                break
            # Another signal for the process: pass it on.
            _ptrace(PTRACE_CONT, self.pid, os.WSTOPSIG(status) if status >> 16 == 0 else 0)
        child = ctypes.c_ulong()
        _ptrace(PTRACE_GETEVENTMSG, self.pid, ctypes.addressof(child))
        os.waitpid(child.value, WALL)
        # The signal is delivered before fork returns.
        os.kill(self.pid, signal.SIGSTOP)
        _ptrace(PTRACE_DETACH, child.value, 0)
        _ptrace(PTRACE_DETACH, self.pid, 0)
        return child.value
