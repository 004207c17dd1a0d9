"""Where `lockstep run` is meant to differ from torchrun, and why. docs/torchrun.md shows this table."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Difference:
    id: str
    torchrun: str
    lockstep: str
    reason: str
    facts: frozenset  # of launchers.Run: those that it explains
    ours: dict  # what some of them are under lockstep run, of every launcher or worker


def difference(id, facts, torchrun, lockstep, reason, ours=None):
    return Difference(id, torchrun, lockstep, reason, frozenset(facts), ours or {})


STATUS = {"status", "class"}
PREFIX = {"stdout prefix", "stderr prefix"}
# Whether the program ran at all.
RAN = STATUS | PREFIX | {"workers", "stdout", "stderr", "launcher on stderr", "root cause", "log files", "log contents",
                         "temporary folders"}

ALL = [
    # --- the environment of the workers ---
    difference("agent-store", {"TORCHELASTIC_USE_AGENT_STORE"},
               "`TORCHELASTIC_USE_AGENT_STORE=True`: the launcher hosts the store", "`False`: rank 0 hosts it",
               "The store ends with the ranks that use it, so no restart meets an old one.",
               {"TORCHELASTIC_USE_AGENT_STORE": "False"}),
    difference("free-port", {"MASTER_PORT"},
               "one node: `MASTER_PORT=29500`", "one node: a free port, new in every restart",
               "Two jobs on one machine do not collide.",
               {"MASTER_PORT": "<free>"}),
    difference("meeting-port", {"MASTER_PORT"},
               "several static nodes: the store of the ranks is on `--master-port`",
               "the launchers meet on `--master-port`, the store of the ranks gets a free port",
               "A restart never meets the store of the ranks before it.",
               {"MASTER_PORT": "<free>"}),
    difference("address", {"MASTER_ADDR"},
               "`MASTER_ADDR=localhost` where the endpoint is this machine",
               "the address as given, `127.0.0.1` with `--standalone`",
               "No name is looked up that the user did not write.",
               {"MASTER_ADDR": "127.0.0.1"}),
    difference("omp-threads", {"OMP_NUM_THREADS", "said of threads"},
               "`OMP_NUM_THREADS=1` and a warning of five lines, where it is unset and a node has several ranks",
               "the cores of the affinity mask divided by the ranks of the node, one line",
               "One thread leaves most of the cores idle.",
               {"said of threads": "[run] OMP_NUM_THREADS=N for each of N ranks here"}),
    difference("signal-list", {"TORCHELASTIC_SIGNALS_TO_HANDLE"},
               "`TORCHELASTIC_SIGNALS_TO_HANDLE` leaks into the workers", "it is not set",
               "It is a note of torchrun to itself."),
    difference("launcher-name", {"LOCKSTEP_LAUNCHER", "LOCKSTEP_GENERATION"},
               "no such variables", "`LOCKSTEP_LAUNCHER=lockstep`, and `LOCKSTEP_GENERATION` for the life of the job",
               "A program's rank map can say who started it and which life it is.",
               {"LOCKSTEP_LAUNCHER": "lockstep"}),
    difference("progress-page", {"LOCKSTEP_PROGRESS_FD", "descriptors"},
               "nothing of the kind", "a worker inherits one page of memory, whose number is `LOCKSTEP_PROGRESS_FD`",
               "Ranks tell their launcher there what they do, for its report of a hang.",
               {"descriptors": "['/memfd:lockstep-progress (deleted)']"}),
    difference("absolute-error-file", {"TORCHELASTIC_ERROR_FILE"},
               "`TORCHELASTIC_ERROR_FILE` is relative when `--log-dir` is", "it is absolute",
               "A worker that changes its folder still finds it."),
    difference("error-file-always", {"TORCHELASTIC_ERROR_FILE"},
               "`TORCHELASTIC_ERROR_FILE` is empty with `--log-dir /dev/null`", "it names a file that is removed in the end",
               "The report can still tell why a worker failed."),
    difference("file-timer", {"TORCHELASTIC_TIMER_FILE"},
               "`TORCHELASTIC_ENABLE_FILE_TIMER=1` starts a timer and names its pipe", "no effect",
               "The pipe carries pickled Python objects."),
    difference("process-group", {"session"},
               "every worker leads a session", "every worker leads a process group",
               "A scheduler or a login that ends its session ends the workers too."),

    difference("empty-variables", RAN | {"ROLE_NAME"},
               "an empty `PET_` variable is an empty value", "it is an unset variable",
               "Scripts pass variables on that may be unset."),
    difference("switch-words", RAN,
               "`PET_` variables of switches are numbers", "`true`, `yes` and `on` are understood too",
               "They are what people write.",
               {"status": 0}),

    difference("usable-cores", RAN,
               "`--nproc-per-node cpu` and `auto` count every CPU of the machine",
               "they count those of the affinity mask and the cgroup", "A job gets no more ranks than it has cores.",
               {"workers": ["0.0"]}),

    # --- what runs ---
    difference("detection", RAN,
               "a program that is not `.py` is given to Python unless `--no-python` is set", "it is executed",
               "C++ programs need no flag.",
               {"status": 0}),
    difference("run-path", {"unbuffered", "descriptors"},
               "`--run-path` runs the script in a Python process that has torch loaded",
               "it runs in a Python of its own, unbuffered", "A launcher without Python starts in milliseconds."),
    difference("macros", {"arguments"},
               "`${local_rank}` and `$$` in the program's arguments are replaced", "arguments arrive as written",
               "`LOCAL_RANK` says it, and an argument stays data."),
    difference("ambiguous-arguments", RAN,
               "a program's argument is refused where it abbreviates several of torchrun's flags",
               "arguments after the program are the program's", "A program may have any flag.",
               {"status": 0}),
    difference("abbreviations", RAN,
               "flags may be abbreviated", "flags are written in full",
               "A new flag must not change what an old script means.",
               {"status": 2}),
    difference("missing-program", STATUS | {"root cause", "temporary folders"},
               "a script that does not exist is started, and fails in every rank",
               "refused before anything starts, with status 2", "The message comes once and names the file.",
               {"status": 2}),
    difference("moot-flags", RAN,
               "flags without effect in the chosen mode, and ranks that do not exist, are ignored",
               "they are refused with the reason", "A flag that does nothing hides a mistake.",
               {"status": 2}),
    difference("numa-without-gpu", RAN,
               "`--numa-binding` fails where there is no GPU", "the program runs",
               "The same script runs on a machine without GPUs.",
               {"status": 0}),

    # --- console and files ---
    difference("prefix", PREFIX,
               "lines have a `[role0]:` prefix only with `--tee`", "always where a job has several ranks",
               "Lines of several ranks can be told apart; `--no-prefix` turns it off."),
    difference("no-prefix-alone", PREFIX,
               "`--tee` puts a prefix before the lines of a single rank too", "no prefix for a single rank",
               "There is nothing to tell apart."),
    difference("rank-in-prefix", PREFIX,
               "the number in the prefix is the local rank", "it is the rank",
               "Lines of several nodes can be told apart."),
    difference("log-place", {"launcher on stderr"},
               "says nothing of where log files are", "names their folder at the end, unless `--quiet`",
               "The folder's name has a random part."),
    difference("temporary-logs", {"temporary folders", "temporary files"},
               "leaves a folder in the temporary directory after every run", "removes it unless it holds logs",
               "Nothing is left that nobody asked for.",
               {"temporary folders": 0}),
    difference("copied-lines", {"log contents"},
               "`--duplicate-stdout-filters` sees only streams that are teed",
               "it sees every stream but redirected ones",
               "A filter works without a second flag."),
    difference("rank-maps", RAN,
               "`--redirects 10:3` is refused: ranks in maps have one digit", "ranks may have any number of digits",
               "Nodes have more than ten ranks.",
               {"status": 0}),
    difference("any-run-id", RAN,
               "`--rdzv-id a/b` fails: the log folder is named after it", "the folder's name is `a-b_RANDOM`",
               "A job may have any name.",
               {"status": 0}),
    difference("broken-error-file", {"status", "root cause"},
               "an error file that is no JSON ends torchrun with a traceback of its own",
               "the file is ignored and the failure is reported", "A broken file must not hide the failure."),
    difference("error-copy-always", {"error copy"},
               "its own `TORCHELASTIC_ERROR_FILE` stays empty when the worker left no error file",
               "it says how the worker ended", "Whoever reads it always learns the cause."),

    # --- the end ---
    difference("worker-status", STATUS,
               "status 1 for every failure", "the status of the worker that failed first, or 128 + its signal",
               "A script can act on it."),
    difference("stop-status", {"status"},
               "status 1 after a signal that ends the job", "128 + signal", "It is what shells and schedulers expect."),
    difference("usage-status", STATUS | {"temporary folders"},
               "status 1 for most wrong values, 2 for unknown flags", "2 for everything wrong in flags and variables",
               "A mistake in the command is not a failure of the job.",
               {"status": 2}),
    difference("notify-signals", STATUS | {"signals", "orphans"},
               "USR1 and USR2 kill the launcher and leave the workers behind",
               "they are passed to the workers and the job goes on", "Schedulers send them to ask for a checkpoint.",
               {"status": 0, "orphans": False}),
    # Lines that the launcher had not read yet go with it.
    difference("no-orphans", {"stdout", "stderr", "orphans"},
               "workers go on after the launcher was killed", "they are killed with it",
               "Nothing holds GPUs that nobody watches.",
               {"orphans": False}),
    difference("no-leftovers", {"children left"},
               "processes that a worker has started go on after the job", "they are killed when their worker has ended, and daemons of theirs when the last worker of the node has",
               "A data loader that hangs would keep its GPU.",
               {"children left": False}),
    difference("whole-job", STATUS | {"left running", "signals"},
               "when a worker fails, other nodes go on until they notice by themselves",
               "the whole job ends, and all launchers with the same status", "No node waits for ranks that are gone.",
               {"left running": False}),
]

BY_ID = {one.id: one for one in ALL}
