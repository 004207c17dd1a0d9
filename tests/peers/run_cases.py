"""The command lines of the conformance suite, as data. In strings, {port} is a free port of the run,
{programs} is the folder of the worker scripts, {case} the folder of the run, {bin} the folder of Python."""

import dataclasses

REPORT = "{programs}/report.py"
PORT = ("--master-port", "{port}")
TWO = (*PORT, "--nproc-per-node", "2")
LOGS = ("--log-dir", "{case}/logs")

# Differences whenever a worker reports; the further sets add those of the console and of the temporary folder.
WORKERS = ("agent-store", "signal-list", "launcher-name", "progress-page", "rank-secret", "process-group")
ONE_RANK = (*WORKERS, "temporary-logs")
RANKS = (*ONE_RANK, "prefix")
KEPT = (*WORKERS, "log-place")
KEPT_PREFIX = (*KEPT, "prefix")
# For a torchrun that does not have a flag yet.
OLD_CORES = (("2.12", ("usable-cores",)),)
BEFORE_12 = (("2.12", ("new-flags",)),)
BEFORE_14 = (("2.14", ("new-flags",)),)
RUN_PATH = ("agent-store", "signal-list", "launcher-name", "progress-page", "rank-secret", "temporary-logs", "run-path")


@dataclasses.dataclass(frozen=True)
class Case:
    id: str
    nodes: tuple  # the arguments of each launcher
    # The differences of run_differences.py that are seen with the newest torchrun, exactly.
    differences: tuple = ()
    # (version, differences)..., oldest first: the differences with a torchrun older than this version.
    before: tuple = ()
    default_port: bool = False  # no port is given, and torchrun before 2.12 uses 29500
    environment: dict = dataclasses.field(default_factory=dict)  # None: not set
    worker: str = ""  # what programs/report.py does
    signal: str = ""  # sent to the first launcher when `waiting` workers wait
    waiting: int = 0
    cpus: int = 0  # number of CPUs that the launcher may use; 0: all
    closed: tuple = ()  # descriptors that are closed for the launcher
    ours: dict = dataclasses.field(default_factory=dict)  # the values of some facts under lockstep run


def one(id, *arguments, differences=ONE_RANK, **rest):
    return Case(id, (arguments,), tuple(differences), **rest)


def two(id, *arguments, differences=RANKS, **rest):
    return one(id, *TWO, *arguments, differences=differences, **rest)


def refused(id, *arguments, differences=("usage-status",), **rest):
    return one(id, *arguments, differences=differences, **rest)


COUNTS = [
    one("one-rank", *PORT, REPORT),
    two("two-ranks", REPORT),
    one("dashes-and-equals", "--nnodes=1", "--nproc-per-node=2", "--node-rank=0", "--master-addr=127.0.0.1",
        "--master-port={port}", "--max-restarts=1", "--monitor-interval=0.05", "--rdzv-id=job-7", REPORT,
        differences=RANKS),
    one("underscores", "--nnodes", "1:1", "--nproc_per_node", "2", "--node_rank", "0", "--master_addr", "127.0.0.1",
        "--master_port", "{port}", "--max_restarts", "1", "--monitor_interval", "0.05", "--rdzv_id", "job-7", REPORT,
        differences=RANKS),
    one("every-cpu", *PORT, "--nproc-per-node", "cpu", REPORT, before=OLD_CORES, cpus=1,
        ours={"workers": ["0.0"]}),
    one("auto", *PORT, "--nproc-per-node", "auto", REPORT, before=OLD_CORES, cpus=1, ours={"workers": ["0.0"]},
        environment={"CUDA_VISIBLE_DEVICES": ""}),
    one("last-flag-wins", *PORT, "--nproc-per-node", "3", "--nproc-per-node", "1", REPORT),
    one("abbreviation", "--stand", REPORT, differences=("abbreviations",)),
    refused("no-such-count", *PORT, "--nproc-per-node", "many", REPORT),
    refused("no-gpu", *PORT, "--nproc-per-node", "gpu", REPORT, environment={"CUDA_VISIBLE_DEVICES": ""}),
    refused("nnodes-text", *PORT, "--nnodes", "x", REPORT),
    refused("nnodes-zero", *PORT, "--nnodes", "0", REPORT),
    refused("nnodes-reversed", *PORT, "--nnodes", "2:1", REPORT),
    refused("nnodes-three-parts", *PORT, "--nnodes", "1:2:3", REPORT),
    refused("restarts-negative", *PORT, "--max-restarts", "-1", REPORT),
]

MEETING = [
    one("default-port", REPORT, differences=(*ONE_RANK, "address"), before=(("2.12", (*ONE_RANK, "free-port")),),
        default_port=True, ours={"MASTER_PORT": "<free>", "TORCHELASTIC_RUN_ID": "<uuid>"}),
    one("default-port-id", "--rdzv-id", "job-7", REPORT, differences=(*ONE_RANK, "address", "given-id"),
        before=(("2.12", (*ONE_RANK, "free-port")),), default_port=True),
    one("default-port-address", "--master-addr", "localhost", REPORT,
        before=(("2.12", (*ONE_RANK, "free-port")),), default_port=True),
    one("standalone", "--standalone", "--nproc-per-node", "2", REPORT, differences=(*RANKS, "address")),
    one("c10d-free-port", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", REPORT),
    one("c10d-underscores", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "--rdzv_id=job-7",
        "--rdzv_conf=join_timeout=20,read_timeout=30", REPORT),
    one("c10d-port", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:{port}", "--rdzv-id", "job-7", REPORT),
    one("static-endpoint", "--rdzv-endpoint", "127.0.0.1:{port}", REPORT),
    one("static-endpoint-name", "--rdzv-endpoint", "localhost:{port}", "--rdzv-conf", "timeout=60", REPORT),
    one("master-addr", *PORT, "--master-addr", "localhost", REPORT),
    one("local-addr", "--standalone", "--local-addr", "127.0.0.1", REPORT),
    one("local-addr-underscore", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
        "--local_addr", "127.0.0.1", REPORT),
    one("standalone-over-endpoint", "--standalone", "--rdzv-endpoint", "127.0.0.1:{port}", REPORT,
        differences=("moot-flags",)),
    one("c10d-node-rank", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--node-rank", "1", REPORT,
        differences=("moot-flags",)),
    one("rendezvous-conf-unknown", *PORT, "--rdzv-conf", "no_such_key=1", REPORT),
    refused("backend-unknown", "--rdzv-backend", "pigeon", "--rdzv-endpoint", "localhost:0", REPORT),
    refused("port-text", "--master-port", "http", REPORT, differences=()),
]

NODES = [
    Case("two-nodes-static", tuple((*TWO, "--nnodes", "2", "--node-rank", str(node), REPORT) for node in (0, 1)),
         (*RANKS, "meeting-port")),
    Case("two-nodes-c10d", 2 * (("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:{port}",
                                 "--rdzv-id", "job-7", "--local-addr", "127.0.0.1", "--nproc-per-node", "2", REPORT),),
         RANKS),
    Case("two-nodes-tee", tuple((*TWO, *LOGS, "-t", "3", "--nnodes", "2", "--node-rank", str(node), REPORT)
                                for node in (0, 1)), (*WORKERS, "meeting-port", "rank-in-prefix")),
    Case("unequal-nodes", tuple((*PORT, "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", str(node + 1),
                                 REPORT) for node in (0, 1)), (*RANKS, "meeting-port")),
    Case("two-roles", tuple((*TWO, "--nnodes", "2", "--node-rank", str(node), "--role", f"role{node}", REPORT)
                            for node in (0, 1)), (*RANKS, "meeting-port")),
    one("elastic-range-of-one", "--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:{port}",
        "--rdzv-conf", "last_call_timeout=1,join_timeout=20", REPORT, differences=(*ONE_RANK, "prefix", "address")),
    Case("one-node-fails", tuple((*PORT, "--nnodes", "2", "--node-rank", str(node), REPORT) for node in (0, 1)),
         (*RANKS, "meeting-port", "whole-job"), worker="0=wait 1=met:1 1=exit:7",
         ours={"status": 7, "signals": {"0.0": ["SIGTERM"]}}),
]

PROGRAMS = [
    two("module", "-m", "report", "x", environment={"PYTHONPATH": "{programs}"}),
    two("module-long", "--module", "report", "x", environment={"PYTHONPATH": "{programs}"}),
    two("shell-script", "--no-python", "{programs}/report.sh", "x"),
    two("binary-of-path", "--no_python", "env", "EXTRA=1", "python3", "-u", REPORT, "x"),
    one("shell-script-detected", *PORT, "{programs}/report.sh", "x", differences=("detection",)),
    one("run-path", *PORT, "--run-path", REPORT, "x", differences=RUN_PATH),
    one("run-path-underscore", *PORT, "--run_path", "--no-python", REPORT, "x", differences=RUN_PATH),
    one("python-given", *PORT, REPORT, environment={"PYTHON_EXEC": "{bin}/python3.11"}),
    one("relative-program", *PORT, "report.py", "x"),
    two("flags-after-program", REPORT, "--nproc-per-node", "9", "-m", "--help", "-r3", "--", "--standalone", "-n"),
    two("separator-before-program", "--", REPORT, "x"),
    two("odd-arguments", REPORT, "two words", "quote\"'s", "ümläut → 火", "", "*", "line\nbreak", "-", "\\", "%s"),
    two("ambiguous-argument", REPORT, "--n", "3", differences=("ambiguous-arguments",)),
    two("dollar-arguments", REPORT, "${local_rank}", "$$", "$HOME", differences=(*RANKS, "macros")),
    refused("module-and-no-python", *PORT, "-m", "--no-python", "report"),
    refused("no-interpreter", *PORT, "--no-python", "./plain"),
    refused("program-is-a-folder", *PORT, "--no-python", "{programs}"),
    refused("missing-script", *PORT, "{case}/missing.py", differences=("missing-program",)),
    refused("missing-binary", *PORT, "--no-python", "{case}/missing"),
    refused("missing-module", *PORT, "-m", "no_such_module_of_ours", differences=("temporary-logs",)),
    refused("no-program", *PORT, differences=()),
    refused("unknown-flag", *PORT, "--no-such-flag", REPORT, differences=()),
    refused("value-missing", "--master-port", differences=()),
    refused("restarts-text", *PORT, "--max-restarts", "few", REPORT, differences=()),
    one("help", "--help", differences=()),
    one("help-short", "-h", differences=()),
    one("print-completion", "--print-completion", "bash", differences=("completion",), before=BEFORE_14),
    one("print-completion-underscore", "--print_completion=zsh", "--no-python", differences=("completion",),
        before=BEFORE_14),
    refused("print-completion-unknown", "--print-completion", "fish", differences=()),
]

STREAMS = [
    two("redirect-0", *LOGS, "-r", "0", REPORT, differences=(*WORKERS, "prefix")),
    two("redirect-1", *LOGS, "-r", "1", REPORT, differences=KEPT_PREFIX),
    two("redirect-2", *LOGS, "-r", "2", REPORT, differences=KEPT_PREFIX),
    two("redirect-3", "--log_dir", "{case}/logs", "--redirects", "3", REPORT, differences=KEPT),
    two("redirect-short", *LOGS, "-r3", REPORT, differences=KEPT),
    two("redirect-map", *LOGS, "-r", "0:1,1:2", REPORT, differences=KEPT_PREFIX),
    two("redirect-map-part", *LOGS, "--redirects=1:3", REPORT, differences=KEPT_PREFIX),
    two("tee-1", *LOGS, "-t", "1", REPORT, differences=KEPT_PREFIX),
    two("tee-2", *LOGS, "-t", "2", REPORT, differences=KEPT_PREFIX),
    two("tee-3", *LOGS, "--tee", "3", REPORT, differences=KEPT),
    two("tee-map", *LOGS, "-t", "0:3,1:1", REPORT, differences=KEPT_PREFIX),
    two("tee-over-redirect", *LOGS, "-r", "3", "-t", "0:1", REPORT, differences=KEPT),
    one("tee-one-rank", *PORT, *LOGS, "-t", "3", REPORT, differences=(*KEPT, "no-prefix-alone")),
    two("tee-temporary", "-t", "3", REPORT, differences=KEPT),
    two("tee-role", *LOGS, "-t", "3", "--role", "trainer", REPORT, differences=KEPT),
    two("tee-template", *LOGS, "-t", "3", REPORT, differences=KEPT, environment={
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name}/${rank}/${local_rank}> "}),
    one("tee-template-one-rank", *PORT, *LOGS, "-t", "3", REPORT, differences=KEPT, environment={
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${local_rank}> "}),
    two("tee-template-flag", *LOGS, "-t", "3", "--log-line-prefix-template",
        "<${role_name}/${rank}/${local_rank}/${hostname}> ", REPORT, differences=KEPT, before=BEFORE_14),
    two("tee-template-flag-over-variable", *LOGS, "-t", "3", "--log_line_prefix_template=$rank $$ ${x} $rank_ ${rank ",
        REPORT, differences=KEPT, before=BEFORE_14, environment={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${rank}> "}),
    two("tee-template-host", *LOGS, "-t", "3", REPORT, differences=KEPT, before=(("2.14", (*KEPT, "new-flags")),),
        environment={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${hostname}:${rank}: "}),
    two("template-without-tee", "--log-line-prefix-template", "<${rank}> ", REPORT, before=BEFORE_14),
    one("eleven-ranks-map", *PORT, *LOGS, "--nproc-per-node", "11", "-r", "10:3", REPORT, differences=("rank-maps",)),
    two("map-of-missing-rank", *LOGS, "-r", "7:3", REPORT, differences=("moot-flags",)),
    refused("redirect-4", *PORT, "-r", "4", REPORT),
    refused("tee-text", *PORT, "-t", "all", REPORT),
    two("filter-ranks", "--local-ranks-filter", "1", REPORT),
    two("filter-ranks-tee", *LOGS, "--local_ranks_filter", "0", "-t", "3", REPORT, differences=KEPT),
    two("filter-ranks-redirect", *LOGS, "--local-ranks-filter", "0,1", "-r", "1", REPORT, differences=KEPT_PREFIX),
    two("filter-ranks-text", "--local-ranks-filter", "x", REPORT, differences=("usage-status",)),
    two("filter-ranks-missing", "--local-ranks-filter", "7", REPORT, differences=("moot-flags",)),
    two("copy-lines", *LOGS, "-t", "3", "--duplicate-stdout-filters", "rank 1", "--duplicate-stderr-filters",
        "rank 0,rank 1", REPORT, differences=KEPT),
    two("copy-lines-comma", *LOGS, "-t", "3", "--duplicate_stdout_filters", "1,, attempt,nothing",
        "--duplicate_stderr_filters=nothing", REPORT, differences=KEPT),
    two("copy-lines-part-tee", *LOGS, "-t", "0:1", "--duplicate-stdout-filters", "rank", REPORT,
        differences=(*KEPT_PREFIX, "copied-lines")),
    one("stdout-closed", *PORT, REPORT, closed=(1,)),
    one("log-dir-nested", *PORT, "--log-dir", "{case}/logs/a/b", "-r", "3", REPORT, differences=KEPT),
    one("log-dir-relative", *PORT, "--log-dir", "../logs", "-r", "3", REPORT,
        differences=(*KEPT, "absolute-error-file")),
    one("log-dir-null", *PORT, "--log-dir", "/dev/null", REPORT, differences=(*WORKERS, "error-file-always")),
    refused("log-dir-file", *PORT, "--log-dir", "file", REPORT, differences=("usage-status",)),
    two("raw-bytes-redirect", *LOGS, "-r", "3", REPORT, worker="bytes", differences=KEPT),
    one("raw-bytes-tee", *PORT, *LOGS, "-t", "3", REPORT, worker="bytes", differences=(*KEPT, "no-prefix-alone")),
    two("many-lines", *LOGS, "-t", "3", REPORT, worker="lines:3000", differences=KEPT),
    one("run-id-with-slash", *PORT, *LOGS, "--rdzv-id", "a/b", REPORT, differences=("any-run-id",)),
    one("log-dir-id", *PORT, *LOGS, "--rdzv-id", "job-7", "-r", "3", REPORT, differences=KEPT),
]

FAILURES = [
    two("restart", *LOGS, "-r", "3", "--max-restarts", "2", REPORT, worker="1=meet 1=once:3",
        differences=WORKERS),
    two("restarts-used-up", "--max-restarts", "1", REPORT, worker="meet 1=exit:4",
        differences=(*RANKS, "worker-status")),
    two("restart-others-stopped", "--max-restarts", "1", REPORT, worker="1=met:1 1=exit:5 0=wait",
        differences=(*RANKS, "worker-status")),
    *(one(f"exit-{code}", *PORT, REPORT, worker=f"exit:{code}", differences=(*ONE_RANK, "worker-status"),
          ours={"status": code})
      for code in (2, 7, 255)),
    one("exit-1", *PORT, REPORT, worker="exit:1"),
    two("one-of-two-fails", REPORT, worker="meet 1=exit:7", differences=(*RANKS, "worker-status")),
    two("others-are-stopped", REPORT, worker="0=wait 1=met:1 1=exit:7", differences=(*RANKS, "worker-status")),
    *(one(f"killed-{name}", *PORT, REPORT, worker=f"kill:SIG{name}", differences=(*ONE_RANK, "worker-status"),
          ours={"status": 128 + number}) for name, number in (("KILL", 9), ("SEGV", 11), ("TERM", 15))),
    *(two(f"error-file-{shape}", *LOGS, REPORT, worker=f"meet 1=error:{shape} 1=exit:5",
          environment={"TORCHELASTIC_ERROR_FILE": "{case}/launcher-error.json"},
          differences=(*WORKERS, "prefix", "worker-status")) for shape in ("text", "nested")),
    two("error-file-missing", *LOGS, REPORT, worker="meet 1=exit:5",
        environment={"TORCHELASTIC_ERROR_FILE": "{case}/launcher-error.json"},
        differences=(*WORKERS, "prefix", "worker-status", "error-copy-always")),
    one("error-file-broken", *PORT, *LOGS, REPORT, worker="error:broken exit:5",
        differences=(*WORKERS, "broken-error-file")),
    one("process-left-behind", *PORT, REPORT, worker="leave", differences=(*ONE_RANK, "no-leftovers")),
    one("process-left-behind-failing", *PORT, REPORT, worker="leave exit:1",
        differences=(*ONE_RANK, "no-leftovers")),
    one("error-file-of-signal", *PORT, *LOGS, REPORT, worker="error:nested kill:SIGSEGV",
        environment={"TORCHELASTIC_ERROR_FILE": "{case}/launcher-error.json"},
        differences=(*WORKERS, "worker-status")),
]

VARIABLES = [
    two("omp-unset", REPORT, environment={"OMP_NUM_THREADS": None}, differences=(*RANKS, "omp-threads")),
    one("omp-unset-one-rank", *PORT, REPORT, environment={"OMP_NUM_THREADS": None}),
    two("omp-set", REPORT, environment={"OMP_NUM_THREADS": "3"}),
    two("cuda-devices", REPORT, environment={"CUDA_VISIBLE_DEVICES": "2,3"}),
    two("virtual-local-rank", "--virtual-local-rank", REPORT, environment={"CUDA_VISIBLE_DEVICES": "4,7"}),
    two("virtual-local-rank-unset", "--virtual_local_rank", REPORT),
    two("virtual-local-rank-short", "--virtual-local-rank", REPORT, environment={"CUDA_VISIBLE_DEVICES": "4"},
        differences=("usage-status",)),
    one("nccl-error-handling", *PORT, REPORT, environment={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}),
    two("nested", REPORT, environment={"RANK": "5", "WORLD_SIZE": "9", "LOCAL_RANK": "3", "MASTER_ADDR": "nowhere",
                                       "MASTER_PORT": "1", "ROLE_NAME": "x", "TORCHELASTIC_RUN_ID": "y"}),
    one("timer-file", *PORT, REPORT, environment={"TORCHELASTIC_TIMER_FILE": "{case}/timer"}),
    one("file-timer", *PORT, REPORT, environment={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"},
        differences=(*ONE_RANK, "file-timer")),
    two("pet-counts", REPORT, environment={"PET_NNODES": "1:1", "PET_NODE_RANK": "0"}),
    one("pet-nproc", REPORT, differences=RANKS, environment={"PET_NPROC_PER_NODE": "2", "PET_MASTER_PORT": "{port}"}),
    one("pet-below-flag", *TWO, "--role", "flag", REPORT, differences=RANKS, environment={
        "PET_NPROC_PER_NODE": "3", "PET_MASTER_PORT": "1", "PET_ROLE": "variable"}),
    one("pet-static", REPORT, environment={"PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": "{port}",
                                           "PET_RDZV_ID": "job-7", "PET_ROLE": "trainer"}),
    one("pet-c10d", REPORT, environment={"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "localhost:0",
                                         "PET_RDZV_CONF": "join_timeout=20", "PET_LOCAL_ADDR": "127.0.0.1"}),
    one("pet-standalone", REPORT, differences=(*ONE_RANK, "address"), environment={"PET_STANDALONE": "1"}),
    one("pet-switches-off", *PORT, REPORT, environment={"PET_STANDALONE": "0", "PET_MODULE": "0", "PET_NO_PYTHON": "0",
                                                        "PET_RUN_PATH": "0", "PET_VIRTUAL_LOCAL_RANK": "0"}),
    one("pet-restarts", *PORT, REPORT, worker="once:3",
        environment={"PET_MAX_RESTARTS": "1", "PET_MONITOR_INTERVAL": "0.05"}),
    two("pet-module", "report", environment={"PYTHONPATH": "{programs}", "PET_MODULE": "1"}),
    one("pet-no-python", *PORT, "{programs}/report.sh", environment={"PET_NO_PYTHON": "1"}),
    one("pet-run-path", *PORT, REPORT, environment={"PET_RUN_PATH": "1"}, differences=RUN_PATH),
    two("pet-redirects", REPORT, differences=KEPT,
        environment={"PET_LOG_DIR": "{case}/logs", "PET_REDIRECTS": "3"}),
    two("pet-tee", REPORT, differences=KEPT, environment={
        "PET_LOG_DIR": "{case}/logs", "PET_TEE": "3", "PET_LOCAL_RANKS_FILTER": "0,1",
        "PET_DUPLICATE_STDOUT_FILTERS": "rank 1", "PET_DUPLICATE_STDERR_FILTERS": "rank 0"}),
    two("pet-tee-template", REPORT, differences=KEPT, before=(("2.14", (*KEPT, "new-flags")),), environment={
        "PET_LOG_DIR": "{case}/logs", "PET_TEE": "3", "PET_LOG_LINE_PREFIX_TEMPLATE": "<${rank}> ",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "not this one"}),
    one("pet-shutdown-timeout-negative", *PORT, REPORT, differences=("usage-status",), before=BEFORE_12,
        environment={"PET_SHUTDOWN_TIMEOUT": "-1"}),
    two("pet-virtual-local-rank", REPORT, environment={"PET_VIRTUAL_LOCAL_RANK": "1"}),
    one("pet-start-method", *PORT, REPORT, differences=("moot-flags",), environment={"PET_START_METHOD": "fork"}),
    one("pet-event-log-handler", *PORT, REPORT, differences=("moot-flags",),
        environment={"PET_EVENT_LOG_HANDLER": "console"}),
    one("pet-empty", *PORT, REPORT, differences=(*ONE_RANK, "empty-variables"), environment={
        "PET_RDZV_ENDPOINT": "", "PET_LOG_DIR": "", "PET_ROLE": "",
        "PET_LOCAL_RANKS_FILTER": "", "PET_RDZV_CONF": ""}),
    one("pet-empty-number", *PORT, REPORT, environment={"PET_MAX_RESTARTS": ""}, differences=("empty-variables",)),
    one("pet-switch-word", REPORT, environment={"PET_STANDALONE": "true"}, differences=("switch-words",)),
    one("pet-no-such-count", *PORT, REPORT, differences=("usage-status",),
        environment={"PET_NPROC_PER_NODE": "many"}),
]

PLUGINS = [
    one("start-method", *PORT, "--start-method", "fork", REPORT, differences=("moot-flags",)),
    one("start-method-underscore", *PORT, "--start_method=fork", REPORT, differences=("moot-flags",)),
    one("event-log-handler", *PORT, "--event-log-handler", "console", REPORT, differences=("moot-flags",)),
    one("event-log-handler-underscore", *PORT, "--event_log_handler=console", REPORT, differences=("moot-flags",)),
    refused("logs-specs", *PORT, "--logs-specs", "mine", REPORT),
    refused("logs-specs-underscore", *PORT, "--logs_specs=mine", REPORT),
    refused("numa-binding-unknown", *PORT, "--numa-binding", "moon", REPORT, differences=()),
    one("numa-binding", *PORT, "--numa-binding=node", REPORT, differences=("numa-without-gpu",),
        environment={"CUDA_VISIBLE_DEVICES": ""}),
    one("numa-binding-underscore", *PORT, "--numa_binding", "node", REPORT, differences=("numa-without-gpu",),
        environment={"CUDA_VISIBLE_DEVICES": ""}),
]

SIGNALS = [
    *(two(f"signal-{name}", REPORT, worker="wait", waiting=2, signal=f"SIG{name}",
          differences=(*RANKS, "stop-status"), ours={"status": 128 + number})
      for name, number in (("TERM", 15), ("INT", 2), ("HUP", 1), ("QUIT", 3))),
    two("signal-USR1", REPORT, worker="wait", waiting=2, signal="SIGUSR1", differences=(*RANKS, "notify-signals"),
        ours={"signals": {"0.0": ["SIGUSR1"], "1.0": ["SIGUSR1"]}}),
    two("signal-USR1-handled", "--signals-to-handle", "SIGTERM,SIGUSR1", REPORT, worker="wait", waiting=2,
        signal="SIGUSR1", differences=(*RANKS, "stop-status")),
    two("signal-USR2-handled", REPORT, worker="wait", waiting=2, signal="SIGUSR2",
        environment={"PET_SIGNALS_TO_HANDLE": "SIGUSR2"}, differences=(*RANKS, "stop-status")),
    two("signals-underscore", "--signals_to_handle=SIGTERM,SIGINT", REPORT, worker="wait", waiting=2, signal="SIGINT",
        differences=(*RANKS, "stop-status")),
    two("shutdown-timeout", "--shutdown-timeout", "2", REPORT, worker="stay", waiting=2, signal="SIGTERM",
        differences=(*RANKS, "stop-status"), before=BEFORE_12, ours={"status": 128 + 15}),
    two("shutdown-timeout-underscore", "--shutdown_timeout=2", REPORT, worker="stay", waiting=2, signal="SIGINT",
        differences=(*RANKS, "stop-status"), before=BEFORE_12, ours={"status": 128 + 2}),
    one("shutdown-timeout-fraction", *PORT, "--shutdown-timeout", "0.5", REPORT, differences=("fractional-timeout",)),
    refused("shutdown-timeout-negative", *PORT, "--shutdown-timeout=-1", REPORT, before=(("2.12", ()),)),
    refused("shutdown-timeout-text", *PORT, "--shutdown-timeout", "soon", REPORT, differences=()),
    two("signal-KILL", REPORT, worker="wait", waiting=2, signal="SIGKILL",
        differences=(*WORKERS, "prefix", "no-orphans")),
]

CASES = [*COUNTS, *MEETING, *NODES, *PROGRAMS, *STREAMS, *FAILURES, *VARIABLES, *PLUGINS, *SIGNALS]
