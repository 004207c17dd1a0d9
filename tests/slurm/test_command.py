"""sbatch accepts the scripts of `lockstep slurm`, and they run."""

import base64
import contextlib
import os
import pathlib
import re
import subprocess

import pytest

from conftest import NODES
from test_placement import rank_lines, ranks, together

# For each style: the launcher that its ranks report, and how many processes it starts of a
# program that does not use Lockstep, on two nodes with two ranks each.
STYLES = {"srun": ("slurm", 4), "spawn": ("lockstep", 2), "torchrun": ("lockstep", 4)}


@pytest.fixture(params=STYLES)
def style(request):
    return request.param


def lines(done):
    """The log, without the lines and the prefixes of `lockstep run`."""
    return [re.sub(r"^\[default\d+\]:", "", line) for line in done.stdout.splitlines()
            if not line.startswith("[run] ")]


def flags(style):
    return ["slurm", "--style", style, "--nodes", "2", "--ntasks-per-node", "2", "--cpus-per-task", "2", "--time", "5"]


def test_script_runs(slurm, style):
    done = slurm.lockstep(*flags(style), "--gpus-per-node", "2", "--submit", "--wait", "--", slurm.bin / "ranks",
                          "--compute_setup", "cpu")
    launcher, _ = STYLES[style]
    assert rank_lines(done.stdout) == [(0, 4, 0, launcher), (1, 4, 1, launcher), (2, 4, 0, launcher),
                                       (3, 4, 1, launcher)]
    job = done.stdout.splitlines()[0]
    assert f"lockstep: job {job} on 127.0.0.[11-12], started again 0 times" in done.stdout
    assert (slurm.folder / f"ranks-{job}.out").exists()


def test_two_jobs_on_one_node_at_once(slurm, style):
    """Both jobs use different ports."""
    body = f"{together(slurm, 2)}\nexec {' '.join(map(str, ranks(slurm)))}"
    command = ["slurm", "--style", style, "--ntasks-per-node", "2", "--time", "5", "--output",
               slurm.folder / "log-%j.out", "--submit", "--", "bash", "-c", body]
    jobs = [slurm.lockstep(*command, env={**os.environ, "SBATCH_NODELIST": NODES[0]}).stdout.strip() for _ in range(2)]
    launcher, _ = STYLES[style]
    for job in jobs:
        slurm.wait_for(job, "COMPLETED")
        assert rank_lines(slurm.log(job)) == [(0, 2, 0, launcher), (1, 2, 1, launcher)]


def test_sbatch_accepts_the_script(slurm, style):
    done = slurm.lockstep(*flags(style), "--gpus-per-node", "2", "--mem", "100M", "--partition", "low", "--array",
                          "0-3%2", "--module", "gcc/12", "--requeue", "--signal", "USR1@60", "--container", "a b.sif",
                          "--test-only", "--", "./sine")
    assert "to start at" in done.stdout


def test_sbatch_accepts_what_sites_ask_for(slurm, style):
    done = slurm.lockstep(*flags(style), "--gpus", "4", "--mail-type", "begin,END", "--mail-user", "me@example.org",
                          "--error", "a b.err", "--exclusive", "--hint", "nomultithread", "--sbatch-option",
                          "comment=my \"run\"", "--sbatch-option", "no-kill", "--container", "a.sif", "--bind", "/a:/b",
                          "--test-only", "--", "./sine")
    assert "to start at" in done.stdout
    slurm.lockstep(*flags(style), "--gres", "gpu:2", "--test-only", "--", "./sine")


@pytest.mark.parametrize("more", [["--container", "a b.sif", "--module", "gcc/12"], ["--module-purge", "--conda", "my env"],
                                  ["--venv", "my env"], ["--container", "a.sif", "--venv", "env", "--bind", "/a b:/c"]])
def test_printed_script_is_clean(slurm, style, more):
    script = slurm.lockstep(*flags(style), "--requeue", *more, "--", "./sine", "it's $HOME", "a\nb").stdout
    subprocess.run(["shellcheck", "--exclude=SC2016", "-"], input=script, text=True, check=True)


def test_the_environment_of_the_program_and_its_errors(slurm, style):
    venv = slurm.folder / "my env" / "bin"
    venv.mkdir(parents=True)
    (venv / "activate").write_text("export COLOUR=blue\n")
    done = slurm.lockstep(*flags(style), "--venv", venv.parent, "--error", "errors.txt", "--cpu-bind", "none", "--submit",
                          "--wait", "--", "bash", "-c", 'echo "$COLOUR"; echo problem >&2')
    assert lines(done).count("blue") == STYLES[style][1]
    assert (slurm.folder / "errors.txt").read_text().count("problem") == STYLES[style][1]
    assert "problem" not in done.stdout


def test_cpus_of_each_rank_by_a_list(slurm):
    script = slurm.lockstep(*flags("srun"), "--cpu-bind", "map_cpu:0,1", "--", "./sine").stdout
    assert "--cpu-bind=map_cpu:0,1" in script


def test_all_ranks_see_all_gpus(slurm, style):
    done = slurm.lockstep(*flags(style), "--gpus-per-node", "2", "--submit", "--wait", "--", "printenv",
                          "CUDA_VISIBLE_DEVICES")
    assert lines(done)[2:] == ["0,1"] * STYLES[style][1]


def test_inherited_gpu_binding_is_turned_off(slurm):
    """With one GPU per task, copies between GPUs fail; SBATCH_ variables of a user may request this."""
    show = 'echo "visible=${CUDA_VISIBLE_DEVICES:-all}"'
    done = slurm.lockstep(*flags("srun"), "--gpus-per-node", "2", "--submit", "--wait", "--", "bash", "-c", show,
                          env={**os.environ, "SBATCH_GPU_BIND": "single:1"})
    assert done.stdout.count("visible=all") == 4


def test_jobs_of_one_node_get_different_gpus(slurm):
    """With --gpu-bind=none a job would not know which GPU it owns."""
    body = f'{together(slurm, 2)}\necho "visible=$CUDA_VISIBLE_DEVICES"'
    command = ["slurm", "--style", "srun", "--gpus-per-node", "1", "--time", "5", "--output",
               slurm.folder / "log-%j.out", "--submit", "--", "bash", "-c", body]
    jobs = [slurm.lockstep(*command, env={**os.environ, "SBATCH_NODELIST": NODES[0]}).stdout.strip() for _ in range(2)]
    for job in jobs:
        slurm.wait_for(job, "COMPLETED")
    assert {slurm.log(job).splitlines()[-1] for job in jobs} == {"visible=0", "visible=1"}


def test_ranks_get_the_cpus_that_were_asked_for(slurm, style):
    """A step of Slurm 22.05 to 23.02 does not inherit --cpus-per-task of the batch script."""
    show = 'if [ "$SLURM_PROCID" = 0 ]; then scontrol show step "$SLURM_JOB_ID.$SLURM_STEP_ID"; fi'
    done = slurm.lockstep(*flags(style), "--submit", "--wait", "--", "bash", "-c", show)
    assert " CPUs=8 " in done.stdout


def test_exit_status_is_the_programs(slurm, style):
    done = slurm.lockstep(*flags(style), "--submit", "--wait", "--", "bash", "-c", "echo before; exit 9", check=False)
    assert done.returncode == 9
    assert "before" in done.stdout


def test_values_stay_data(slurm, style):
    words = ["$HOME", "`id`", "it's", 'a "b"', "a\nb", "\\", "", "gr\u00fc\u00df \u4e16\u754c", "#x", "*"]
    name = "$(id) `id` \"q\" 'q' \\ # gr\u00fc\u00df"
    # Encoded, because srun mixes the lines of several tasks.
    show = 'printf "<%s>" "$@" | base64 --wrap=0; echo'
    done = slurm.lockstep(*flags(style), "--job-name", name, "--output", slurm.folder / "a log # 'x' $HOME.out",
                          "--submit", "--wait", "--", "bash", "-c", show, "bash", *words)
    expected = base64.b64encode("".join(f"<{word}>" for word in words).encode()).decode()
    assert lines(done).count(expected) == STYLES[style][1]
    assert (slurm.folder / "a log # 'x' $HOME.out").exists()
    record = slurm.run("scontrol", "show", "job", done.stdout.splitlines()[0]).stdout
    assert f"JobName={name}\n" in record


def test_ranks_of_the_submitting_shell_stay_there(slurm, style):
    left = {"RANK": "3", "WORLD_SIZE": "9", "MASTER_PORT": "29500", "MASTER_ADDR": "elsewhere"}
    done = slurm.lockstep(*flags(style), "--submit", "--wait", "--", slurm.bin / "ranks", "--compute_setup", "cpu",
                          env={**os.environ, **left})
    assert len(rank_lines(done.stdout)) == 4


def listening_ports(pids):
    """The TCP ports that these processes listen on."""
    inodes = set()
    for pid in pids:
        for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed just now
                inodes.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes}


def token_of(pid):
    variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(v.removeprefix(b"LOCKSTEP_JOB_TOKEN=").decode() for v in variables if v.startswith(b"LOCKSTEP_JOB_TOKEN="))


def test_strangers_cannot_join(slurm):
    """The script creates a secret for both nodes and does not print it."""
    job = slurm.lockstep(*flags("torchrun"), "--output", slurm.folder / "log-%j.out", "--submit", "--", "sh", "-c",
                         f'echo "token=$LOCKSTEP_JOB_TOKEN. id=$TORCHELASTIC_RUN_ID"; exec {slurm.worker} {slurm.folder}')
    job = job.stdout.strip()
    slurm.wait_for_files("started.*.0", 4)
    told = set(re.findall(r"token=\. id=(\S+)", slurm.log(job)))
    assert len(told) == 1, "the launchers' secret is not the ranks'"
    (run_id,) = told
    launchers = [pid for pid in slurm.processes_of(job) if os.readlink(f"/proc/{pid}/exe") == str(slurm.bin / "lockstep")]
    secrets = {token_of(pid) for pid in launchers}
    assert len(secrets) == 1 and re.fullmatch(r"\w{64}", *secrets)
    (token,) = secrets
    for pid in slurm.processes_of(job):
        with contextlib.suppress(OSError):
            assert token not in pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    (port,) = listening_ports(launchers)
    stranger = slurm.lockstep("run", "--nnodes", "2", "--node-rank", "1", "--master-addr", NODES[0], "--master-port", port,
                              "--rdzv-id", run_id, "true", check=False)
    assert stranger.returncode == 76 and "finds no secret in" in stranger.stderr
    (slurm.folder / "finish").touch()
    slurm.wait_for(job, "COMPLETED")
    other = slurm.lockstep(*flags("srun"), "--submit", "--wait", "--", "printenv", "LOCKSTEP_JOB_TOKEN")
    assert token not in other.stdout, "each job has its own"


def test_submitting_from_inside_a_job(slurm):
    """The inner job does not use the GPUs and CPUs of the outer one."""
    inner = f"{slurm.bin}/lockstep slurm --style srun --submit --wait -- bash -c 'echo inner'"
    job = slurm.batch(f"cd {slurm.folder}; srun --overlap --ntasks=1 {inner}", f"--nodelist={NODES[0]}", "--ntasks=1",
                      "--cpus-per-task=4", "--gpus-per-node=1", "--gpu-bind=single:1", "--time=5")
    slurm.wait_for(job, "COMPLETED")
    assert "inner" in slurm.log(job).splitlines()


def test_array_waits_for_all_its_tasks(slurm):
    done = slurm.lockstep("slurm", "--style", "srun", "--array", "0-2", "--time", "5", "--submit", "--wait", "--",
                          "bash", "-c", 'echo "task $SLURM_ARRAY_TASK_ID"; exit "$SLURM_ARRAY_TASK_ID"', check=False)
    assert done.returncode == 2, "the largest of the three"
    assert {f"[{task}]:task {task}" for task in range(3)} <= set(done.stdout.splitlines()), "all of them are shown"
    assert len(list(slurm.folder.glob("bash-*_*.out"))) == 3


def test_refusals_are_sbatchs_own_words(slurm):
    done = slurm.lockstep("slurm", "--partition", "nowhere", "--submit", "--", "x", check=False)
    assert done.returncode == 2
    assert "sbatch refused the script" in done.stderr and "nowhere" in done.stderr


def test_version_is_asked_from_sbatch(slurm):
    assert "for Slurm 22.05." in slurm.lockstep("slurm", "--", "x").stdout
