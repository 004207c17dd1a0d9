"""A client without the job's secret, with stock PyTorch, attacks running jobs: it gets nothing and changes
nothing, and the final weights are those of an undisturbed job."""

import contextlib
import json
import os
import subprocess
import sys

import pytest
from launchers import DEADLINE_S, PROGRAMS, Port

STEPS = ["--max-iter", "400", "--seed", "7", "--checkpoint-every", "400", "--tracking-tool", "none"]


def listening_ports():
    ports = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as lines:
            ports |= {int(line.split()[1].rpartition(":")[2], 16) for line in lines if line.split()[3] == "0A"}
    return ports


@contextlib.contextmanager
def stranger(only=None):
    """Attacks all ports that listen during the scope, or only one; yields the report of the attack."""
    choice = ["--only", str(only)] if only else [w for port in listening_ports() for w in ("--but", str(port))]
    process = subprocess.Popen([sys.executable, str(PROGRAMS / "stranger.py"), *choice, "127.0.0.1"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout.readline() == "ready\n"
    told = {}
    try:
        yield told
    finally:
        out, _ = process.communicate(timeout=2 * DEADLINE_S)
    told.update(json.loads(out))


def weights_of(folder):
    """The checksums of the weights that a run of sine saved."""
    return sorted((path.name, path.read_bytes()) for path in folder.rglob("*.safetensors"))


COMMANDS = {
    "run": lambda bin_dir: [bin_dir / "lockstep", "run", "-n", "2", bin_dir / "sine"],
    # A wrapper that closes inherited descriptors, as Python's subprocess does.
    "wrapped": lambda bin_dir: [bin_dir / "lockstep", "run", "-n", "2", "--no-python", "sh", "-c",
                                'eval "exec $LOCKSTEP_KEY_FD<&-"; exec "$0" "$@"', bin_dir / "sine"],
    "spawn": lambda bin_dir: [bin_dir / "sine", "--nprocs", "2"],
    # MPI must protect mpirun's own ports, so only the port of the store is attacked; all ranks know it.
    "mpirun": lambda bin_dir: ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", bin_dir / "sine"],
}


def train(command, folder, backend, **environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PET_", "MASTER_"))}
    done = subprocess.run([*map(str, command), *STEPS, "--backend", backend, "--root-folder", str(folder)], text=True,
                          capture_output=True, timeout=4 * DEADLINE_S, env={**kept, "OMP_NUM_THREADS": "1", **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize("how", COMMANDS)
def test_weights_are_those_of_an_undisturbed_run(bin_dir, tmp_path, how, backend):
    keys = tmp_path / "keys"
    environment = {"LOCKSTEP_KEY_DIR": str(keys)}
    port = Port() if how == "mpirun" else None
    if port:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.number)}
    train(COMMANDS[how](bin_dir), tmp_path / "quiet", backend, **environment)
    with stranger(only=port and port.number) as told:
        for number in range(3):
            train(COMMANDS[how](bin_dir), tmp_path / f"attacked{number}", backend, **environment)
    assert told["entered"] == []
    assert told["attacks"] > 0, "nobody was attacked"
    expected = weights_of(tmp_path / "quiet")
    assert expected
    for number in range(3):
        assert weights_of(tmp_path / f"attacked{number}") == expected
    assert not keys.exists() or not list(keys.iterdir()), "a secret was left behind"
