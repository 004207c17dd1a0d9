"""Requests numbers from programs/optim_trace.cpp. Loading LibTorch takes longer than all computations,
so one process serves a session."""

import json
import subprocess


class OptimTrace:
    def __init__(self, program):
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        """Returns the answer of the program to a request; the program documents its requests."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the program ended with status {self._process.wait()}"
        return json.loads(line)

    def close(self):
        self._process.stdin.close()
        assert self._process.wait() == 0
