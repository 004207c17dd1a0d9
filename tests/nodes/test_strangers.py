"""A client without the job's secret, with stock PyTorch on a third node, attacks a job on two nodes: the final weights are
those of an undisturbed job."""

import json
import os
import pathlib
import subprocess
import uuid

import pytest

from job import MARK, TIMEOUT
from network import address

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PYTHON = SOURCE / ".deps" / "peers" / "bin" / "python"
STRANGER = SOURCE / "tests" / "peers" / "programs" / "stranger.py"
STEPS = ["--max-iter", "400", "--seed", "7", "--checkpoint-every", "400", "--tracking-tool", "none"]


def train(network, folder, *, port, home, token=None):
    """Runs a job of two launchers with two ranks each, and returns the weights that it saved."""
    folder.mkdir()
    binaries = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PET_", "LOCKSTEP_"))}
    environment = {**kept, "HOME": str(home), "OMP_NUM_THREADS": "1", MARK: uuid.uuid4().hex}
    if token:
        environment["LOCKSTEP_JOB_TOKEN"] = token
    processes = [
        subprocess.Popen([*network.inside(node), str(binaries / "lockstep"), "run", "--nnodes", "2", "-n", "2",
                          "--node-rank", str(node), "--master-addr", address(0), "--master-port", str(port),
                          str(binaries / "sine"), *STEPS, "--root-folder", str(folder)],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        for node in (0, 1)]
    texts = [process.communicate(timeout=2 * TIMEOUT)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(texts)
    return sorted((path.name, path.read_bytes()) for path in folder.rglob("*.safetensors"))


@pytest.mark.parametrize("token", [None, "a secret of this test"])
def test_weights_are_those_of_an_undisturbed_run(network, tmp_path, token):
    assert PYTHON.exists(), "the stranger is a PyTorch program: script/setup --peers"
    expected = train(network, tmp_path / "quiet", port=29500, home=tmp_path, token=token)
    assert expected
    # The client runs on the third node, and on the first, as another user would.
    strangers = [subprocess.Popen([*network.inside(node), str(PYTHON), str(STRANGER), "--also", "29501", "--also", "29502",
                                   address(0), address(1)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for node in (0, 2)]
    try:
        for stranger in strangers:
            assert stranger.stdout.readline() == "ready\n"
        for number in range(2):
            attacked = train(network, tmp_path / f"attacked{number}", port=29501 + number, home=tmp_path, token=token)
            assert attacked == expected
    finally:
        told = [json.loads(stranger.communicate(timeout=TIMEOUT)[0]) for stranger in strangers]
    assert [t["entered"] for t in told] == [[], []]
    assert all(t["attacks"] > 0 for t in told), "nobody was attacked"
    keys = tmp_path / ".lockstep" / "keys"
    assert not keys.exists() or not list(keys.iterdir()), "a secret was left behind"
