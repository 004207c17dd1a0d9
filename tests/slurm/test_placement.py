"""Programs determine their ranks in real Slurm steps, for all ways to start a step."""

import os
import re
import shutil

import pytest

from conftest import NODES, wait_until

RANK_LINE = re.compile(r"rank=(\d+) world_size=(\d+) local_rank=(\d+) .*launcher=(\w+)")


def rank_lines(text):
    """(rank, world size, local rank, launcher) for each rank, in their order."""
    return [(int(m[1]), int(m[2]), int(m[3]), m[4]) for m in RANK_LINE.finditer(text)]


def ranks(slurm):
    return [slurm.bin / "ranks", "--compute_setup", "cpu"]


def test_one_task_per_rank(slurm):
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=2", *ranks(slurm))
    assert rank_lines(done.stdout) == [(0, 4, 0, "slurm"), (1, 4, 1, "slurm"), (2, 4, 0, "slurm"), (3, 4, 1, "slurm")]


def test_one_task_per_node_starts_the_rest(slurm):
    """The program starts the other ranks with lockstep::launch, as perceptrain does."""
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=1", *ranks(slurm), "--nprocs", "4")
    assert [line[:3] for line in rank_lines(done.stdout)] == [(0, 4, 0), (1, 4, 1), (2, 4, 0), (3, 4, 1)]


@pytest.mark.parametrize("tasks, launcher, name", [(2, [], "slurm"), (1, ["lockstep", "run", "-n", "2"], "lockstep")],
                         ids=["task-per-rank", "launcher-per-node"])
def test_no_command_of_slurm_is_needed_inside_a_step(slurm, tasks, launcher, name):
    """Containers often have no scontrol."""
    command = [slurm.bin / launcher[0], *launcher[1:]] if launcher else []
    done = slurm.run(shutil.which("srun"), "--nodes=2", f"--ntasks-per-node={tasks}", *command, *ranks(slurm),
                     env={**os.environ, "PATH": str(slurm.folder)})
    assert rank_lines(done.stdout) == [(0, 4, 0, name), (1, 4, 1, name), (2, 4, 0, name), (3, 4, 1, name)]


def test_training_over_two_nodes(slurm):
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=1", slurm.bin / "sine", "--compute_setup", "cpu",
                     "--root_folder", slurm.folder)
    assert "on 2 ranks" in done.stdout


def test_unequal_tasks_per_node(slurm):
    hosts = slurm.folder / "hosts"
    hosts.write_text("\n".join([NODES[0]] * 3 + [NODES[1]]) + "\n")
    done = slurm.run("srun", "--ntasks=4", "--distribution=arbitrary", *ranks(slurm),
                     env={**os.environ, "SLURM_HOSTFILE": str(hosts)})
    assert rank_lines(done.stdout) == [(0, 4, 0, "slurm"), (1, 4, 1, "slurm"), (2, 4, 2, "slurm"), (3, 4, 0, "slurm")]


def test_a_step_smaller_than_its_job(slurm):
    """The step inherits the counts of the job, but they are not its own counts."""
    job = slurm.batch(f"srun --nodes=1 --ntasks=1 {' '.join(map(str, ranks(slurm)))}", "--nodes=2",
                      "--ntasks-per-node=2")
    slurm.wait_for(job, "COMPLETED")
    assert rank_lines(slurm.log(job)) == [(0, 1, 0, "slurm")]


def together(slurm, count):
    """A shell command that waits until `count` jobs have reached it."""
    return (f"touch {slurm.folder}/here.$SLURM_JOB_ID\n"
            f"until [ $(ls {slurm.folder}/here.* | wc -l) -ge {count} ]; do sleep 0.05; done")


def test_two_jobs_on_one_node_at_once(slurm):
    body = f"{together(slurm, 2)}\nsrun {' '.join(map(str, ranks(slurm)))}"
    jobs = [slurm.batch(body, f"--nodelist={NODES[0]}", "--ntasks=2", "--time=5") for _ in range(2)]
    for job in jobs:
        slurm.wait_for(job, "COMPLETED")
        assert rank_lines(slurm.log(job)) == [(0, 2, 0, "slurm"), (1, 2, 1, "slurm")]


def test_two_steps_of_one_job_at_once(slurm):
    program = " ".join(map(str, ranks(slurm)))
    job = slurm.batch(f"srun --exact --ntasks=2 {program} & srun --exact --ntasks=2 {program} & wait -n && wait -n",
                      f"--nodelist={NODES[0]}", "--ntasks=4", "--time=5")
    slurm.wait_for(job, "COMPLETED")
    assert sorted(rank_lines(slurm.log(job))) == sorted([(0, 2, 0, "slurm"), (1, 2, 1, "slurm")] * 2)


def test_array(slurm):
    job = slurm.batch(f"{together(slurm, 2)}\nsrun {' '.join(map(str, ranks(slurm)))}", "--array=3,7", "--ntasks=2",
                      f"--output={slurm.folder}/log-%A_%a.out", "--time=5")
    for task in (3, 7):
        slurm.wait_for(f"{job}_{task}", "COMPLETED")
        assert rank_lines(slurm.log(f"{job}_{task}")) == [(0, 2, 0, "slurm"), (1, 2, 1, "slurm")]


def test_overlapping_step(slurm):
    """A step that looks into a running job has its own ranks and does not disturb the job."""
    job = slurm.batch(f"srun {slurm.worker} {slurm.folder}", "--nodes=2", "--ntasks-per-node=4", "--time=5")
    slurm.wait_for_files("started.*.0", 8)
    done = slurm.run("srun", f"--jobid={job}", "--overlap", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1",
                     *ranks(slurm))
    assert rank_lines(done.stdout) == [(0, 2, 0, "slurm"), (1, 2, 0, "slurm")]
    assert slurm.state(job) == "RUNNING"
    (slurm.folder / "finish").touch()
    slurm.wait_for(job, "COMPLETED")


def test_gpus_of_the_node_are_visible_to_every_rank(slurm):
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2", "printenv",
                     "CUDA_VISIBLE_DEVICES")
    assert done.stdout.split() == ["0,1"] * 4


def test_squeue_tells_when_a_job_ends(slurm):
    """The end time that src/cluster/job_deadline.cpp reads, in seconds since the epoch."""
    job = slurm.batch(f"srun {slurm.worker} {slurm.folder}", "--time=5")
    slurm.wait_for_files("started.*.0", 1)
    ask = ["squeue", "--noheader", f"--jobs={job}", "--format=%e"]
    end = int(slurm.run(*ask, env={**os.environ, "SLURM_TIME_FORMAT": "%s"}).stdout)
    start = int(slurm.run("squeue", "-h", f"--jobs={job}", "--format=%S",
                          env={**os.environ, "SLURM_TIME_FORMAT": "%s"}).stdout)
    assert end - start == 300
    (slurm.folder / "finish").touch()
    wait_until(lambda: slurm.state(job) == "COMPLETED", "the job ends")


def test_ranks_that_do_not_fit_the_allocation_are_explained(slurm):
    """The warning is printed once for the step, not on every node, and the job runs."""
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1", slurm.bin / "lockstep", "run",
                     "-n", "2", "printenv", "RANK")
    assert sorted(line[-1] for line in done.stdout.splitlines()) == ["0", "1", "2", "3"]
    assert done.stderr.count("[run] warning: 2 ranks of this node share 1 GPU: ask for --gpus-per-node=2") == 1
    quiet = slurm.run("srun", "--quiet", "--nodes=1", "--gpus-per-node=1", slurm.bin / "lockstep", "run", "--quiet", "-n", "2", "true")
    assert quiet.stderr == ""
