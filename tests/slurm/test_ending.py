"""Jobs that are cancelled, drained, signalled or preempted end completely."""

import re

import pytest

from conftest import NODES, wait_until


# The styles that pass a signal to a program that does not call lockstep::launch.
STYLES = ["srun", "torchrun"]
# The recipe sine: 100 samples on two ranks, with batches of 16.
STEPS_AN_EPOCH = 4


@pytest.mark.parametrize("style", [*STYLES, "spawn"])
def test_scancel_leaves_no_process(slurm, style):
    job = slurm.lockstep("slurm", "--style", style, "--nodes", "2", "--ntasks-per-node", "2", "--time", "5", "--output",
                         slurm.folder / "log-%j.out", "--submit", "--", slurm.bin / "sine", "--compute_setup", "cpu",
                         "--root_folder", slurm.folder, "--max_iter", "1000000000", "--print_every", "1000"
                         ).stdout.strip()
    wait_until(lambda: "Iteration" in slurm.log(job), lambda: f"it trains: {slurm.log(job)}")
    assert len(slurm.processes_of(job)) >= 4
    slurm.run("scancel", job)
    slurm.wait_for(job, "CANCELLED")
    wait_until(lambda: not slurm.processes_of(job), lambda: f"all has ended: {slurm.processes_of(job)}")


def test_a_failing_rank_ends_the_job(slurm):
    """srun ends the other rank, and the job has the status of the rank that failed."""
    body = ("srun --kill-on-bad-exit=1 bash -c 'if [ $SLURM_PROCID = 1 ]; then exit 7; fi; exec sleep 1000'\n"
            "status=$?; echo status=$status; exit 7")
    job = slurm.batch(body, "--nodes=2", "--ntasks-per-node=1", "--time=5")
    slurm.wait_for(job, "FAILED")
    assert slurm.field(job, "ExitCode") == "7:0"
    wait_until(lambda: not slurm.processes_of(job), "all has ended")


def test_node_drained_during_a_run(slurm):
    """A drained node accepts no new jobs, but this job runs to its end."""
    job = slurm.batch(f"srun {slurm.worker} {slurm.folder}", "--nodes=2", "--ntasks-per-node=2", "--time=5")
    slurm.wait_for_files("started.*.0", 4)
    slurm.run("scontrol", "update", f"NodeName={NODES[1]}", "State=DRAIN", "Reason=test")
    waiting = slurm.batch("srun true", f"--nodelist={NODES[1]}", "--time=5")
    assert slurm.state(job) == "RUNNING"
    (slurm.folder / "finish").touch()
    slurm.wait_for(job, "COMPLETED")
    assert slurm.state(waiting) == "PENDING"
    slurm.run("scontrol", "update", f"NodeName={NODES[1]}", "State=RESUME")
    slurm.wait_for(waiting, "COMPLETED")


def submit_worker(slurm, *flags, style="srun", time="5", arguments=()):
    return slurm.lockstep("slurm", "--style", style, "--time", time, "--requeue", "--output",
                          slurm.folder / ("log-%A_%a.out" if "--array" in flags else "log-%j.out"), *flags, "--submit",
                          "--", slurm.worker, slurm.folder, *arguments).stdout.strip()


def test_signal_before_the_time_is_up(slurm):
    """USR1 reaches every rank; the ranks save and exit with 75, and the script requeues the job."""
    # Slurm looks every 30 s whether a signal is due within the next 30 s, so this one comes 10 to 40 s after
    # the start. An earlier one could reach a rank before its handler is there, and end it.
    job = submit_worker(slurm, "--nodes", "2", "--ntasks-per-node", "2", "--signal", "USR1@20", time="1")
    slurm.wait_for_files("saved.*", 4)
    (slurm.folder / "finish").touch()
    slurm.wait_for(job, "COMPLETED")
    log = slurm.log(job)
    assert {path.read_text() for path in slurm.folder.glob("saved.*")} <= {"SIGUSR1", "SIGTERM"}
    assert "saved because of SIGUSR1" in log
    assert f"the job has saved and is queued again: {job}" in log
    assert "started again 0 times" in log and "started again 1 times" in log, "the log is appended to"
    assert "rank 3 starts, restart 1, saved before: True" in log


@pytest.mark.parametrize("style", STYLES)
def test_signal_from_a_person(slurm, style):
    """The same with a signal of a user, also through a launcher."""
    job = submit_worker(slurm, "--nodes", "2", "--ntasks-per-node", "2", style=style)
    slurm.wait_for_files("started.*.0", 4)
    slurm.run("scancel", "--signal=USR1", job)
    slurm.wait_for_files("started.*.1", 4)
    (slurm.folder / "finish").touch()
    slurm.wait_for(job, "COMPLETED")
    assert len(list(slurm.folder.glob("saved.*"))) == 4
    assert f"the job has saved and is queued again: {job}" in slurm.log(job)


@pytest.mark.parametrize("style", STYLES)
def test_one_rank_that_saves_takes_the_others_along(slurm, style):
    """When the first rank exits, srun or the launcher sends TERM to the others, and they save too."""
    job = submit_worker(slurm, "--nodes", "2", "--ntasks-per-node", "2", style=style,
                        arguments=["--preempt-rank-0", "4"])
    slurm.wait_for_files("started.*.1", 4)
    (slurm.folder / "finish").touch()
    slurm.wait_for(job, "COMPLETED")
    assert len(list(slurm.folder.glob("saved.*"))) == 4
    assert slurm.field(job, "Restarts") == "1"


def test_array_task_is_queued_again_by_its_own_name(slurm):
    job = submit_worker(slurm, "--array", "5", arguments=["--preempt-rank-0", "1"])
    slurm.wait_for_files("started.0.1", 1)
    (slurm.folder / "finish").touch()
    slurm.wait_for(f"{job}_5", "COMPLETED")
    assert f"queued again: {job}_5" in slurm.log(f"{job}_5")


@pytest.mark.parametrize("style", STYLES)
def test_preemption_by_a_higher_priority(slurm, style):
    """After TERM the job saves and ends within the grace time, and resumes later."""
    low = submit_worker(slurm, "--partition", "low", "--nodes", "2", "--ntasks-per-node", "4", style=style)
    slurm.wait_for_files("started.*.0", 8)
    high = slurm.batch(f"srun {slurm.bin}/ranks --compute_setup cpu", "--partition=high", "--nodes=2",
                       "--ntasks-per-node=4", "--time=5")
    slurm.wait_for(high, "COMPLETED")
    assert "rank=7 world_size=8" in slurm.log(high)
    assert {path.read_text() for path in slurm.wait_for_files("saved.*", 8)} == {"SIGTERM"}
    slurm.wait_for_files("started.*.1", 8)
    (slurm.folder / "finish").touch()
    slurm.wait_for(low, "COMPLETED")
    assert "rank 7 starts, restart 1, saved before: True" in slurm.log(low)


@pytest.mark.parametrize("style", [*STYLES, "spawn"])
def test_a_training_goes_on_where_it_was_when_it_is_queued_again(slurm, style):
    """The trainer saves at the signal, and the requeued job finds its folder and its checkpoint."""
    job = slurm.lockstep("slurm", "--style", style, "--nodes", "2", "--ntasks-per-node", "1", "--time", "5", "--requeue",
                         "--output", slurm.folder / "log-%j.out", "--submit", "--", slurm.bin / "sine",
                         "--compute_setup", "cpu", "--root_folder", slurm.folder, "--max_iter", "1000000000",
                         "--print_every", "10", "--checkpoint_every", "1000000000").stdout.strip()
    wait_until(lambda: "Iteration" in slurm.log(job), lambda: f"it trains: {slurm.log(job)}")
    slurm.run("scancel", "--signal=USR1", job)
    wait_until(lambda: "Going on from" in slurm.log(job), lambda: f"it goes on: {slurm.log(job)}")
    slurm.run("scancel", job)
    slurm.wait_for(job, "CANCELLED")
    line = next(line for line in slurm.log(job).splitlines() if "Going on from" in line)
    found = re.search(rf"sine_job{job}/checkpoints/step-(\d+): (\d+) of 1000000000 epochs are done, (\d+) steps", line)
    assert found, line
    saved, epochs, steps = map(int, found.groups())
    assert steps == saved, "it resumes from the very step of the checkpoint"
    assert steps // STEPS_AN_EPOCH == epochs >= 10
    # The first attempt saved only because of the signal; the second one may have saved at its end.
    assert min(path.name for path in (slurm.folder / f"sine_job{job}" / "checkpoints").glob("step-*")) == f"step-{saved:010}"


@pytest.mark.parametrize("launcher", ["", "lockstep run -n 2 --max-restarts 1 "])
def test_each_training_of_a_batch_script_trains(slurm, launcher):
    """In a loop over learning rates, the second training does not resume from the checkpoints of the first."""
    program = f"{slurm.bin}/{launcher}{slurm.bin}/sine" if launcher else f"{slurm.bin}/sine"
    job = slurm.batch(f"for lr in 0.1 0.2; do\n  {program} --compute_setup cpu --root_folder {slurm.folder} --max_iter 2 "
                      f"--checkpoint_every 1 --hyperparams lr=$lr || exit\ndone", "--time=5")
    slurm.wait_for(job, "COMPLETED")
    log = slurm.log(job)
    assert "Going on from" not in log and log.count("Trained 2 epochs") == 2, log
    assert sorted(path.name for path in slurm.folder.glob("sine_job*")) == [f"sine_job{job}", f"sine_job{job}-2"]
