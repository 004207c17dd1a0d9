"""The jobs of five pages about training on several GPUs, with Lockstep's programs. docs/pages.md lists them.

The scripts in pages/ have the directives and launch lines of the pages. The GPUs of the cluster can only be counted,
so the programs train on CPUs. pages/shims has `module`, `conda`, containers and `nvidia-smi`.
"""

import json
import os
import pathlib
import re
import socket
import subprocess

import pytest

from conftest import PAGES_NODES, wait_until
from test_placement import rank_lines

PAGES = pathlib.Path(__file__).parent / "pages"
# torchrun of the PyTorch that the peer tests use.
TORCHRUN = pathlib.Path(__file__).parents[2] / ".deps" / "peers" / "bin" / "torchrun"
# Little data, for the recipes.
TRIAL = "--data synthetic --compute-setup cpu --epochs 1 --num-workers 0 --checkpoint-every 0"


@pytest.fixture
def free_port():
    """A port of the first node: bound during the test, but not listening, so that only a rank can listen on it."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((PAGES_NODES[0], 0))
        yield str(reserved.getsockname()[1])


class PageJob:
    """Submits scripts of pages/ from a folder below the test's own, as Sigma2's script expects."""

    def __init__(self, slurm, port):
        self.slurm = slurm
        self.port = port
        self.folder = slurm.folder
        self.submit_folder = slurm.folder / "jobs"
        self.submit_folder.mkdir()
        self.tools = slurm.folder / "tools"
        self.tools.mkdir()

    def use_torchrun_of_pytorch(self):
        assert TORCHRUN.exists(), "script/setup --peers installs torchrun"
        (self.tools / "torchrun").symlink_to(TORCHRUN)

    def run(self, name, **variables):
        """Waits until the job has succeeded and returns what it printed."""
        path = [self.tools, PAGES / "shims", self.slurm.bin, os.environ["PATH"]]
        environment = {**os.environ, "PATH": ":".join(map(str, path)), "SHIM_LOG": str(self.folder / "shims.log"),
                       "FREE_PORT": self.port, "SBATCH_PARTITION": "accel", "LOCKSTEP_LOG_LEVEL": "info",
                       "LOCKSTEP_ROOT_FOLDER": str(self.folder / "runs"), **variables}
        done = subprocess.run(["sbatch", "--parsable", str(PAGES / f"{name}.sbatch")], cwd=self.submit_folder,
                              env=environment, text=True, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        self.job = done.stdout.strip()
        self.slurm.wait_until_ended(self.job)
        # Without --output, slurm-JOB.out holds both streams.
        files = sorted(self.submit_folder.glob(f"*{self.job}.*"))
        text = "\n".join(f.read_text() for f in files)
        assert self.slurm.state(self.job) == "COMPLETED", text
        return text

    def shims(self):
        return (self.folder / "shims.log").read_text().splitlines()


@pytest.fixture
def page(slurm, free_port):
    return PageJob(slurm, free_port)


@pytest.fixture(params=["lockstep run", "torchrun"])
def any_torchrun(page, request):
    """The page's job with Lockstep's launcher in place of torchrun, and with torchrun itself."""
    if request.param == "torchrun":
        page.use_torchrun_of_pytorch()
    return page


def mails_about(job):
    file = pathlib.Path(os.environ["SLURM_CONF"]).parent / "mails"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [line.rstrip("\n") for line in lines if f"Job_id={job} " in line and line.endswith("\n")]


def test_princetons_debugging_job(page):
    text = page.run("princeton_debug", PROGRAM="ranks")
    assert rank_lines(text) == [(rank, 6, rank % 2, "slurm") for rank in range(6)]
    assert "WORLD_SIZE=6\nMASTER_ADDR=127.0.0.21\nGPUS_PER_NODE=2\n" in text
    assert re.findall(r"Running basic DDP example on rank (\d)\.", text) == list("012345")
    assert "Number of allocated GPUs per node is 0." in text, "those that the program can use"
    assert "group initialized? True" in text
    assert page.shims() == ["module purge", "module load anaconda3/2021.5", "conda activate torch-env"]
    # slurmctld does not wait for its mail program.
    ours = wait_until(lambda: (found := mails_about(page.job)) and len(found) >= 2 and found,
                      lambda: f"both mails are sent: {mails_about(page.job)}")
    assert {re.search(r"(Began|Ended)", line)[0] for line in ours} == {"Began", "Ended"}
    assert all(line.endswith(" me@example.org") for line in ours)


def test_princetons_mnist_job(page):
    text = page.run("princeton_debug", PROGRAM=f"lockstep train mnist {TRIAL} --max-samples 96 --batch-size 8 --dry-run "
                    "--test-batch-size 4")
    assert "Number of allocated GPUs per node is 0." in text
    assert re.findall(r"Running basic DDP example on rank (\d)\.", text) == list("012345")
    assert "group initialized? True" in text
    assert re.search(r"Train Epoch: 1 \[0/96 \(0%\)\]\tLoss: \d\.\d{6}\n", text)
    assert re.search(r"\nTest set: Average loss: \d+\.\d{4}, Accuracy: \d+/96 \(\d+%\)\n", text)


@pytest.mark.parametrize("name, gpus", [("single_gpu", 1), ("multi_gpu", 2), ("multi_node", 4)])
def test_sine_under_srun(page, name, gpus):
    """One task per node, which starts a process for each GPU of the node."""
    text = page.run(f"{name}_srun")
    assert f"Trained 50 epochs (" in text
    assert re.search(rf"on {gpus} ranks? in", text)


@pytest.mark.parametrize("name, gpus", [("single_gpu", 1), ("multi_gpu", 2)])
def test_sine_under_torchrun_on_one_node(page, name, gpus):
    assert re.search(rf"Trained 50 epochs .* on {gpus} ranks? in", page.run(f"{name}_torchrun"))


def test_sine_under_torchrun_on_two_nodes(any_torchrun):
    assert re.search(r"Trained 50 epochs .* on 4 ranks in", any_torchrun.run("multi_node_torchrun"))


def summary(text, gpus):
    assert f"Training started with {gpus} processes across 1 nodes.\n" in text
    assert re.search(r"Epoch 1/1 completed in \d+\.\d{3} seconds\n", text)
    assert re.search(r"Validation Loss: \d+\.\d{4}, Validation Accuracy: \d\.\d{4}\n", text)
    return "Training Summary:\n" in text and "Training completed successfully.\n" in text


def test_sigma2s_job_on_one_gpu(page):
    text = page.run("sigma2_single_gpu", TRIAL=f"{TRIAL} --max-samples 8")
    assert summary(text, 1)
    assert "utilization.gpu [%]" in (page.folder / "singlegpu.log").read_text()


def test_sigma2s_job_on_four_gpus(page):
    text = page.run("sigma2_multi_gpu", TRIAL=f"{TRIAL} --max-samples 8")
    assert summary(text.replace("[default0]:", ""), 4)
    assert page.slurm.field(page.job, "MinMemoryNode") == "440G"
    image = "/cluster/work/support/container/pytorch_nvidia_25.05_arm64.sif"
    assert page.shims()[0] == f"apptainer exec --nv {image} which torchrun"
    start = f"apptainer exec --nv {image} {PAGES}/shims/torchrun --standalone --nnodes=1 --nproc_per_node=4"
    assert [line for line in page.shims() if line.startswith(start)]
    assert "utilization.gpu [%]" in (page.folder / "multigpu.log").read_text()
    assert "Stopping GPU utilization monitoring..." in text


VIT = f"{TRIAL} --model tiny --image-size 16 --classes 200 --max-batches 2 --no-save-model"


def run_lumi(page, name, ranks, trial):
    (page.submit_folder / "myenv_post_upgrade" / "bin").mkdir(parents=True)
    (page.submit_folder / "myenv_post_upgrade" / "bin" / "activate").write_text("echo activated\n")
    (page.submit_folder / "ds_config.json").write_text('{"train_micro_batch_size_per_gpu": 2, "zero_optimization": '
                                                       '{"stage": 1}, "optimizer": {"type": "Adam"}, '
                                                       '"fp16": {"enabled": false,}}')
    text = page.run(name, SIF="lumi.sif", CONTAINER="lumi.sif", WITH_CONDA="conda activate pytorch",
                    TRIAL=f"{VIT} {trial}")
    assert "activated\n" in text
    assert "conda activate pytorch" in page.shims()
    assert page.shims()[0].startswith("singularity exec lumi.sif bash -c ")
    assert re.search(r"Epoch 1, Training Loss: \d+\.\d+\n", text)
    assert re.search(r"Validation Accuracy: \d+\.\d+%\n", text)
    assert f"{ranks} ranks" in text


def test_lumis_ddp_job(page):
    run_lumi(page, "lumi_ddp", 8, "--batch-size 2 --max-samples 40")


def test_lumis_deepspeed_job(page):
    run_lumi(page, "lumi_deepspeed", 8, "--max-samples 40")


def test_lumis_deepspeed_job_on_two_nodes(any_torchrun):
    """--node_rank $SLURM_PROCID: each node's launcher knows its place without a rendezvous."""
    run_lumi(any_torchrun, "lumi_deepspeed_two_nodes", 4, "--max-samples 20")


LAUNCHERS = {"lockstep run": ["lockstep", "run", "-n", "2"], "torchrun": [TORCHRUN, "--nproc-per-node", "2", "--no-python"],
             "srun": ["srun", "--nodes=2", "--ntasks-per-node=1"],
             "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_lockstep_train_under_each_launcher(slurm, launcher, free_port):
    command = [slurm.bin / word if word == "lockstep" else word for word in LAUNCHERS[launcher]]
    if launcher == "torchrun":
        command[1:1] = ["--master-addr", PAGES_NODES[0], "--master-port", free_port]
    done = slurm.run(*command, slurm.bin / "lockstep", "train", "sine", "--compute-setup", "cpu", "--epochs", "2",
                     "--root_folder", slurm.folder / "runs")
    assert re.search(r"Trained 2 epochs .* on 2 ranks in", done.stdout)
    assert len(list((slurm.folder / "runs").iterdir())) == 1, "one run, not one of each process"


def test_a_study_over_nodes(slurm):
    """Princeton's open point: the same training on several numbers of nodes and ranks, as Slurm jobs."""
    study = slurm.folder / "study"
    program = ["sh", "-c", 'echo "GPUs of the node: $SLURM_GPUS_ON_NODE" >&2; exec "$0" "$@"', slurm.bin / "sine"]
    done = slurm.lockstep("bench", "scaling", "--nodes", "1,2", "--ranks", "2", "--gpus", "--partition", "accel", "--time",
                          "5", "--sbatch-option", "comment=scaling", "--output", study, "--", *program, "--max_iter", "6",
                          "--compute_setup", "cpu")
    rows = json.loads((study / "scaling.json").read_text())["rows"]
    assert [(row["nodes"], row["ranks"]) for row in rows] == [(1, 2), (2, 4)]
    assert rows[0]["efficiency"] == 1 and rows[1]["speed_up"] > 0
    places = json.loads((study / "nodes-2-ranks-4-cpus-1" / "ranks.json").read_text())["ranks"]
    assert [place["local_rank"] for place in places] == [0, 1, 0, 1]
    assert "2 nodes, 4 ranks, 1 GPU and 1 CPU each: " in done.stdout
    assert [row["gpus"] for row in rows] == [2, 4]
    # The curve over epochs of both settings, and one line over the ranks.
    curves = (study / "train-loss-epochs.svg").read_text()
    assert "1 GPU and 1 CPU each" in curves and "2 nodes, 4 ranks" in curves
    assert (study / "speed-ranks.svg").read_text().count("<circle") == 2
    log = (study / "nodes-1-ranks-2-cpus-1.log").read_text()
    assert "lockstep: job " in log
    assert "GPUs of the node: 2" in log


def test_a_job_of_a_study_that_fails_is_a_row(slurm):
    study = slurm.folder / "study"
    done = slurm.lockstep("bench", "scaling", "--nodes", "1", "--ranks", "1", "--partition", "accel", "--output", study,
                          "--", slurm.bin / "sine", "--backend", "pigeon", check=False)
    assert done.returncode == 1
    assert re.search(r"failed, job \d+ ended with status 2: ", done.stdout)
