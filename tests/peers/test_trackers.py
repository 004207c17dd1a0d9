"""The output of the trackers, read by TensorBoard, by MLflow's client and by Python.

build/bin/test/track_demo drives the trackers by commands and answers each one.
"""

import csv
import http.server
import io
import json
import math
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import mlflow
import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import metadata as hparams_metadata
from torch.utils.tensorboard import SummaryWriter


class Server:
    """A server of TensorBoard or MLflow. It chooses its port, and is ready when it prints its address."""

    def __init__(self, command, folder, says):
        self.command, self.folder, self.says = command, folder, says
        self.start(port=0)

    def start(self, port):
        self.process = subprocess.Popen(
            [*self.command, "--port", str(port)], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
        said = []
        for line in self.process.stdout:
            said.append(line)
            if found := re.search(self.says, line):
                break
        else:
            raise AssertionError("the server did not start:\n" + "".join(said))
        self.url = found[1].rstrip("/")
        # Keep reading, because a full pipe would block the server.
        self.reader = threading.Thread(target=self.process.stdout.read)
        self.reader.start()

    def kill(self):
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.reader.join()
            self.process.stdout.close()

    def start_again(self):
        """Starts the server again on the same port."""
        self.start(self.url.rpartition(":")[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def ask(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


class Demo:
    """A running track_demo."""

    def __init__(self, bin_dir, folder, names, resume_step="-", close_ms=20000, **variables):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
        self.process = subprocess.Popen(
            [bin_dir / "test" / "track_demo", folder, names, str(resume_step), str(close_ms)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment | variables)

    def do(self, op, **arguments):
        """Runs a call of the tracker, and returns when the call has returned."""
        self.process.stdin.write(json.dumps({"op": op} | arguments) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ok\n", self.process.stderr.read()

    def scalars(self, step, **values):
        self.do("scalars", step=step, values=values)

    def end(self, status="finished"):
        """Closes the trackers and returns the messages. With status None it closes none."""
        if status:
            self.do("close", status=status)
        self.process.stdin.close()
        said = self.process.stderr.read()
        assert self.process.wait() == 0, said
        self.process.stdout.close()
        self.process.stderr.close()
        return said


def warnings(said):
    return [line for line in said.splitlines() if "warning" in line]


# --- TensorBoard ---


def accumulator(folder):
    events = event_accumulator.EventAccumulator(str(folder), size_guidance={
        event_accumulator.SCALARS: 0, event_accumulator.HISTOGRAMS: 0, event_accumulator.IMAGES: 0})
    events.Reload()
    return events


def test_tensorboard_reads_scalars(bin_dir, tmp_path):
    demo = Demo(bin_dir, tmp_path, "tensorboard")
    for step in range(1, 200):
        demo.scalars(step, train_loss=1 / step, lr=0.1)
    demo.scalars(200, train_loss="NaN", lr="Infinity")
    assert demo.end() == ""
    events = accumulator(tmp_path)
    loss = events.Scalars("train_loss")
    assert [e.step for e in loss] == list(range(1, 201))
    assert [e.value for e in loss[:-1]] == [float(np.float32(1 / step)) for step in range(1, 200)]
    assert math.isnan(loss[-1].value)
    assert events.Scalars("lr")[-1].value == math.inf
    assert abs(loss[0].wall_time - time.time()) < 3600


def test_tensorboard_sees_each_write_before_the_end(bin_dir, tmp_path):
    demo = Demo(bin_dir, tmp_path, "tensorboard")
    demo.scalars(1, loss=0.5)
    assert [e.step for e in accumulator(tmp_path).Scalars("loss")] == [1]
    demo.end()


def test_tensorboard_forgets_what_a_resumed_run_writes_again(bin_dir, tmp_path):
    first = Demo(bin_dir, tmp_path, "tensorboard")
    for step in range(1, 11):
        first.scalars(step, loss=step)
    first.process.kill()  # as if the job died
    first.process.communicate()
    second = Demo(bin_dir, tmp_path, "tensorboard", resume_step=6)
    for step in range(6, 9):
        second.scalars(step, loss=100 + step)
    second.end()
    assert len(list(tmp_path.iterdir())) == 2
    got = [(e.step, e.value) for e in accumulator(tmp_path).Scalars("loss")]
    assert got == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 106), (7, 107), (8, 108)]


def random_values(kind):
    generator = np.random.default_rng(7)
    return {
        "normal": generator.normal(size=5000),
        "tiny": generator.normal(size=100) * 1e-14,
        "one sided": np.abs(generator.normal(size=100)) + 1,
        "limits": np.array([1e-12, 1.1e-12, 0.0, -0.0, -1e-12, 1e19, -1e19]),
        "equal": np.full(10, 0.5),
        "beyond": np.array([1.0, 1e30, -1e30]),
    }[kind]


@pytest.mark.parametrize("kind", ["normal", "tiny", "one sided", "limits", "equal", "beyond"])
def test_histogram_equals_that_of_torch(bin_dir, tmp_path, kind):
    values = random_values(kind)
    demo = Demo(bin_dir, tmp_path / "ours", "tensorboard")
    demo.do("histogram", name="w", step=3, values=values.tolist())
    demo.end()
    with SummaryWriter(tmp_path / "torch") as writer:
        writer.add_histogram("w", values, 3)
    (ours,), (theirs,) = (accumulator(tmp_path / who).Histograms("w") for who in ("ours", "torch"))
    assert ours.step == theirs.step == 3
    ours, theirs = ours.histogram_value, theirs.histogram_value
    assert list(ours.bucket_limit) == list(theirs.bucket_limit)
    assert list(ours.bucket) == list(theirs.bucket)
    assert (ours.min, ours.max, ours.num) == (theirs.min, theirs.max, theirs.num)
    # numpy sums in another order.
    assert ours.sum == pytest.approx(theirs.sum, rel=1e-12, abs=1e-12 * np.abs(values).sum())
    assert ours.sum_squares == pytest.approx(theirs.sum_squares, rel=1e-12)


@pytest.mark.parametrize("channels, mode", [(1, "L"), (3, "RGB"), (4, "RGBA")])
def test_tensorboard_reads_an_image(bin_dir, tmp_path, channels, mode):
    pixels = np.random.default_rng(1).integers(0, 256, size=(5, 7, channels), dtype=np.uint8)
    demo = Demo(bin_dir, tmp_path, "tensorboard")
    demo.do("image", name="plot", step=2, height=5, width=7, channels=channels, pixels=pixels.flatten().tolist())
    assert demo.end() == ""
    (event,) = accumulator(tmp_path).Images("plot")
    assert (event.step, event.height, event.width) == (2, 5, 7)
    image = Image.open(io.BytesIO(event.encoded_image_string))
    assert image.mode == mode
    assert np.array_equal(np.asarray(image).reshape(pixels.shape), pixels)


def test_tensorboard_reads_text_as_that_of_torch(bin_dir, tmp_path):
    demo = Demo(bin_dir, tmp_path / "ours", "tensorboard")
    demo.do("text", name="model", step=1, text="Linear(1, 16)\nß")
    demo.end()
    with SummaryWriter(tmp_path / "torch") as writer:
        writer.add_text("model", "Linear(1, 16)\nß", 1)
    ours, theirs = (accumulator(tmp_path / who) for who in ("ours", "torch"))
    (mine,), (other,) = (events.Tensors("model/text_summary") for events in (ours, theirs))
    assert mine.tensor_proto == other.tensor_proto
    assert (ours.SummaryMetadata("model/text_summary").plugin_data.plugin_name
            == theirs.SummaryMetadata("model/text_summary").plugin_data.plugin_name == "text")


def test_tensorboard_reads_the_graph(bin_dir, tmp_path):
    nodes = [{"name": "model/0", "kind": "Linear", "inputs": [], "description": "Linear(1, 16)", "parameters": 32},
             {"name": "model/1", "kind": "ß", "inputs": ["model/0"], "description": "", "parameters": 0}]
    demo = Demo(bin_dir, tmp_path, "tensorboard")
    demo.do("graph", nodes=nodes)
    assert demo.end() == ""
    graph = accumulator(tmp_path).Graph()
    assert [{"name": node.name, "kind": node.op, "inputs": list(node.input),
             "description": node.attr["description"].s.decode(), "parameters": node.attr["parameters"].i}
            for node in graph.node] == nodes


def session_data(events, tag):
    content = events.SummaryMetadata(tag).plugin_data.content
    return hparams_metadata._parse_plugin_data_as(content, {
        hparams_metadata.EXPERIMENT_TAG: "experiment",
        hparams_metadata.SESSION_START_INFO_TAG: "session_start_info",
        hparams_metadata.SESSION_END_INFO_TAG: "session_end_info"}[tag])


def test_tensorboard_reads_hyperparameters(bin_dir, tmp_path):
    demo = Demo(bin_dir, tmp_path, "tensorboard")
    demo.scalars(9, loss=0.5)
    demo.do("hyperparameters", parameters={"lr": 0.1, "layers": 3, "bias": True, "name": "sine"},
            metrics={"loss": 0.25})
    demo.end("failed")
    events = accumulator(tmp_path)
    assert {"lr", "layers", "bias", "name"} == {
        info.name for info in session_data(events, hparams_metadata.EXPERIMENT_TAG).hparam_infos}
    assert [info.name.tag for info in session_data(events, hparams_metadata.EXPERIMENT_TAG).metric_infos] == [
        "final/loss"]
    hparams = session_data(events, hparams_metadata.SESSION_START_INFO_TAG).hparams
    assert hparams["lr"].number_value == 0.1
    assert hparams["layers"].number_value == 3
    assert hparams["bias"].bool_value is True
    assert hparams["name"].string_value == "sine"
    assert session_data(events, hparams_metadata.SESSION_END_INFO_TAG).status == 2  # failure
    assert [(e.step, e.value) for e in events.Scalars("final/loss")] == [(9, 0.25)]


def test_the_tab_hparams_shows_the_runs(bin_dir, tmp_path):
    """Sends the requests of TensorBoard's page to its server."""
    for run, lr in (("a", 0.1), ("b", 0.2)):
        demo = Demo(bin_dir, tmp_path / run, "tensorboard")
        demo.scalars(1, loss=lr)
        demo.do("hyperparameters", parameters={"lr": lr, "kind": run}, metrics={"loss": lr * 2})
        demo.end()
    # The server reads the folder only once, before it listens.
    with Server([sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path), "--host", "127.0.0.1",
                 "--load_fast", "false", "--reload_interval", "0",
                 "--reload_task", "blocking"], tmp_path,
                r"at (http://\S+)") as server:
        data = server.url + "/data/plugin/hparams/"
        experiment = ask(data + "experiment", {})
        columns = ([{"hparam": info["name"], "includeInResult": True} for info in experiment["hparamInfos"]]
                   + [{"metric": info["name"], "includeInResult": True} for info in experiment["metricInfos"]])
        groups = ask(data + "session_groups", {
            "allowedStatuses": ["STATUS_SUCCESS"], "colParams": columns, "startIndex": 0, "sliceSize": 100})
    shown = {group["hparams"]["kind"]: (group["hparams"]["lr"], group["metricValues"][0]["value"])
             for group in groups["sessionGroups"]}
    assert shown == {"a": (0.1, pytest.approx(0.2)), "b": (0.2, pytest.approx(0.4))}


# --- MLflow ---


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory):
    """A server that all tests share, because it starts slowly; each test has its own experiment."""
    folder = tmp_path_factory.mktemp("mlflow")
    with Server([sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
                 "--artifacts-destination", str(folder / "artifacts"), "--host", "127.0.0.1", "--workers", "1"],
                folder, r"Uvicorn running on (http://\S+)") as server:
        yield server


class Run:
    """The only run of an experiment, read by MLflow's client."""

    def __init__(self, url, experiment):
        self.client = mlflow.MlflowClient(tracking_uri=url)
        self.experiment = self.client.get_experiment_by_name(experiment)
        (self.run,) = self.client.search_runs([self.experiment.experiment_id])
        self.id = self.run.info.run_id

    def history(self, key):
        return [(m.step, m.value) for m in self.client.get_metric_history(self.id, key)]

    def artifacts(self, folder=None):
        for entry in self.client.list_artifacts(self.id, folder):
            if entry.is_dir:
                yield from self.artifacts(entry.path)
            else:
                yield entry.path

    def content(self, artifact, tmp_path):
        return pathlib.Path(self.client.download_artifacts(self.id, artifact, str(tmp_path))).read_bytes()


def wait_for_metric(url, experiment, key):
    client = mlflow.MlflowClient(tracking_uri=url)
    for _ in range(1000):
        found = client.get_experiment_by_name(experiment)
        if found and any(key in run.data.metrics for run in client.search_runs([found.experiment_id])):
            return
    raise AssertionError(f"MLflow has no {key} of {experiment}")


def test_mlflow_holds_the_run(bin_dir, tmp_path, mlflow_server):
    demo = Demo(bin_dir, tmp_path, "mlflow", MLFLOW_TRACKING_URI=mlflow_server.url + "/",
                MLFLOW_EXPERIMENT_NAME="sine & more/1", MLFLOW_RUN_NAME="first try")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a weight.bin").write_bytes(bytes(range(256)))
    (tmp_path / "notes.txt").write_text("hello")
    for step in range(1, 2501):  # more than fits into one request
        demo.scalars(step, train_loss=1 / step)
    demo.do("artifact", path=str(tmp_path / "model"))
    demo.do("artifact", path=str(tmp_path / "notes.txt"))
    demo.do("image", name="plot", step=2, height=1, width=2, channels=1, pixels=[0, 255])
    demo.do("text", name="model", step=0, text="Linear(1, 16)")
    demo.do("hyperparameters", parameters={f"p{i}": i for i in range(250)} | {"bias": True, "name": "x" * 7000},
            metrics={"loss": 0.25})
    assert demo.end() == ""

    run = Run(mlflow_server.url, "sine & more/1")
    assert (run.run.info.run_name, run.run.info.status) == ("first try", "FINISHED")
    assert run.run.info.end_time >= run.run.info.start_time > 1.6e12
    assert run.history("train_loss") == [(step, 1 / step) for step in range(1, 2501)]
    assert run.history("final/loss") == [(2500, 0.25)]
    parameters = run.run.data.params
    assert {f"p{i}": str(i) for i in range(250)}.items() <= parameters.items()
    assert parameters["bias"] == "True"
    assert parameters["name"] == "x" * 6000
    assert set(run.artifacts()) == {
        "model/a weight.bin", "notes.txt", "images/plot/step_2.png", "text/model/step_0.txt"}
    assert run.content("model/a weight.bin", tmp_path) == bytes(range(256))
    assert run.content("text/model/step_0.txt", tmp_path) == b"Linear(1, 16)"


def test_mlflow_is_told_values_that_are_no_numbers(bin_dir, tmp_path, mlflow_server):
    demo = Demo(bin_dir, tmp_path, "mlflow", MLFLOW_TRACKING_URI=mlflow_server.url, MLFLOW_EXPERIMENT_NAME="nan")
    demo.scalars(1, a="NaN", b="Infinity", c="-Infinity")
    assert demo.end() == ""
    run = Run(mlflow_server.url, "nan")
    assert math.isnan(run.history("a")[0][1])
    # MLflow's database stores the largest double instead.
    assert run.history("b") == [(1, sys.float_info.max)]
    assert run.history("c") == [(1, -sys.float_info.max)]


def test_mlflow_learns_that_a_run_failed(bin_dir, tmp_path, mlflow_server):
    variables = {"MLFLOW_TRACKING_URI": mlflow_server.url, "MLFLOW_EXPERIMENT_NAME": "failed"}
    demo = Demo(bin_dir, tmp_path, "mlflow", **variables)
    demo.scalars(1, loss=1)
    assert demo.end(None) == ""  # the destructor closes
    run = Run(mlflow_server.url, "failed")
    assert (run.run.info.status, run.run.info.run_name) == ("FAILED", "demo")
    assert run.history("loss") == [(1, 1.0)]


@pytest.mark.parametrize("by", ["folder", "variable"])
def test_mlflow_run_goes_on(bin_dir, tmp_path, mlflow_server, by):
    variables = {"MLFLOW_TRACKING_URI": mlflow_server.url, "MLFLOW_EXPERIMENT_NAME": "resumed by " + by}
    first = Demo(bin_dir, tmp_path / "run", "mlflow", **variables)
    first.scalars(1, loss=1)
    first.end("failed")
    if by == "folder":
        second = Demo(bin_dir, tmp_path / "run", "mlflow", resume_step=2, **variables)
    else:
        run_id = Run(mlflow_server.url, "resumed by " + by).id
        second = Demo(bin_dir, tmp_path / "another", "mlflow", MLFLOW_RUN_ID=run_id, **variables)
    second.scalars(2, loss=2)
    assert second.end() == ""
    run = Run(mlflow_server.url, "resumed by " + by)
    assert run.run.info.status == "FINISHED"
    assert run.history("loss") == [(1, 1.0), (2, 2.0)]


def test_mlflow_loses_only_what_it_refuses(bin_dir, tmp_path, mlflow_server):
    demo = Demo(bin_dir, tmp_path, "mlflow", MLFLOW_TRACKING_URI=mlflow_server.url,
                MLFLOW_EXPERIMENT_NAME="refused")
    demo.do("scalars", step=1, values={"good": 1, "../bad": 2, "odd@name": 3, "also good": 4})
    said = demo.end()
    assert len(warnings(said)) == 1 and "../bad" in said and "lost 1 values" in said, said
    assert Run(mlflow_server.url, "refused").run.data.metrics == {"good": 1, "odd_name": 3, "also good": 4}


def test_mlflow_run_that_the_server_does_not_have(bin_dir, tmp_path, mlflow_server):
    demo = Demo(bin_dir, tmp_path, "mlflow", MLFLOW_TRACKING_URI=mlflow_server.url, MLFLOW_RUN_ID="0" * 32)
    demo.scalars(1, loss=1)
    said = demo.end()
    assert len(warnings(said)) == 1 and "0" * 32 in said and "lost 1 values" in said, said


def test_mlflow_server_that_dies_and_comes_back(bin_dir, tmp_path, mlflow_server):
    demo = Demo(bin_dir, tmp_path, "mlflow,csv", close_ms=60000, MLFLOW_TRACKING_URI=mlflow_server.url,
                MLFLOW_EXPERIMENT_NAME="back")
    demo.scalars(1, loss=1)
    wait_for_metric(mlflow_server.url, "back", "loss")
    mlflow_server.kill()
    for step in range(2, 1001):
        demo.scalars(step, loss=step)
    assert "cannot reach its server" in demo.process.stderr.readline()
    mlflow_server.start_again()
    demo.scalars(1001, loss=1001)
    assert demo.end() == ""  # the message was printed above, once
    assert Run(mlflow_server.url, "back").history("loss") == [(step, step) for step in range(1, 1002)]
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 1002


def test_mlflow_server_that_stays_dead(bin_dir, tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # reserved, and no process listens on it
        demo = Demo(bin_dir, tmp_path, "mlflow,csv",
                    MLFLOW_TRACKING_URI=f"http://127.0.0.1:{closed.getsockname()[1]}")
        for step in range(1, 101):
            demo.scalars(step, loss=step)
        said = demo.end()
    assert len(warnings(said)) == 1 and "Connection refused" in said and "lost 100 values" in said, said
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 101


def test_mlflow_server_that_never_answers(bin_dir, tmp_path):
    """Each call returns although the server never answers, and so does close."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        demo = Demo(bin_dir, tmp_path, "mlflow,csv", close_ms=300,
                    MLFLOW_TRACKING_URI=f"http://127.0.0.1:{silent.getsockname()[1]}")
        connection, _ = silent.accept()
        with connection:
            for step in range(1, 101):
                demo.scalars(step, loss=step)
            said = demo.end()
    assert len(warnings(said)) == 1 and "not answered in time" in said and "lost 100 values" in said, said
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 101


@pytest.mark.parametrize("variables, header", [
    ({"MLFLOW_TRACKING_TOKEN": "secret", "MLFLOW_TRACKING_USERNAME": "me"}, "Bearer secret"),
    ({"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "pass"}, "Basic bWU6cGFzcw=="),
    ({}, None)])
def test_mlflow_server_that_wants_to_know_who_asks(bin_dir, tmp_path, variables, header):
    asked = []

    class Forbid(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers["Authorization"])
            self.send_response(403)
            self.end_headers()
            self.wfile.write(b"not you")

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Forbid) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        demo = Demo(bin_dir, tmp_path, "mlflow", MLFLOW_TRACKING_URI=f"http://127.0.0.1:{server.server_port}",
                    **variables)
        demo.scalars(1, loss=1)
        thread.join()
        said = demo.end()
    assert asked == [header]
    assert len(warnings(said)) == 1 and "403: not you" in said, said


# --- a whole training ---


def test_a_training_tells_tensorboard_and_mlflow_the_same(bin_dir, tmp_path, mlflow_server):
    """A Trainer on two ranks writes to both, and both are read back."""
    folder = tmp_path / "run"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "LOCKSTEP_"))}
    training = subprocess.run(
        [bin_dir / "sine", "--compute_setup", "cpu", "--nprocs", "2", "--max_iter", "7", "--write_every", "2",
         "--log_every", "3", "--tracking_tool", "tensorboard,mlflow", "--hyperparams", "lr=0.01", "--hyperparams", "layers=2",
         "--hyperparams", "model=a small one", "--log_model", "--log_folder", folder],
        env=environment | {"MLFLOW_TRACKING_URI": mlflow_server.url, "MLFLOW_EXPERIMENT_NAME": "a training",
                           "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300)
    assert training.returncode == 0 and "warning" not in training.stderr, training.stderr
    lines = [line for line in map(json.loads, open(folder / "metrics.jsonl"))]
    written = [line for line in lines if "train_loss" in line]
    steps = [line for line in lines if "step_loss" in line]
    assert [line["step"] for line in steps] == [3, 6, 9, 12, 15, 18, 21, 24, 27]
    # Epochs 2, 4 and 6, of four steps each.
    assert [(line["step"], line["epoch"]) for line in written] == [(8, 2), (16, 4), (24, 6)]

    run = Run(mlflow_server.url, "a training")
    assert (run.run.info.status, run.run.info.run_name) == ("FINISHED", "run")
    events = accumulator(folder)
    names = set(written[0]) - {"step", "time"}
    assert {"train_loss", "learning_rate", "samples_per_s", "time_backward_s"} < names
    names |= set(steps[0]) - {"step", "time"}
    assert {"step_loss", "grad_norm", "memory_mib"} < names
    for name in names:
        values = [(line["step"], line[name]) for line in lines if name in line and "step" in line]
        assert run.history(name) == values, name
        assert [(e.step, e.value) for e in events.Scalars(name)] == [
            (step, float(np.float32(value))) for step, value in values], name
    assert names == {tag for tag in events.Tags()["scalars"] if not tag.startswith("final/")}

    # The final loss that the program printed is the final metric in TensorBoard and MLflow.
    printed = float(re.search(r"final loss ([\d.]+)", training.stdout)[1])
    ((_, judged),) = run.history("final/train_loss")
    assert judged == pytest.approx(printed, abs=1e-7)
    assert [e.value for e in events.Scalars("final/train_loss")] == [float(np.float32(judged))]

    assert run.run.data.params == {"lr": "0.01", "layers": "2", "model": "a small one"}
    hparams = session_data(events, hparams_metadata.SESSION_START_INFO_TAG).hparams
    assert hparams["lr"].number_value == 0.01
    assert hparams["layers"].number_value == 2
    assert hparams["model"].string_value == "a small one"
    assert session_data(events, hparams_metadata.SESSION_END_INFO_TAG).status == 1  # success
    assert run.content("model.safetensors", tmp_path) == (folder / "model.safetensors").read_bytes()
    (text,) = events.Tensors("model/text_summary")
    assert b"Linear" in text.tensor_proto.string_val[0]
    layers = {node.name: node for node in events.Graph().node}
    assert [node.op for node in layers.values()].count("Linear") == 2, layers
    assert sum(node.attr["parameters"].i for node in layers.values()) == 49, layers


# --- files ---


def test_files_are_read_by_python(bin_dir, tmp_path):
    demo = Demo(bin_dir, tmp_path, "csv,jsonl")
    demo.do("scalars", step=1, values={"loss": 0.1, 'odd, "name"': 2})
    demo.scalars(2, loss="NaN", val="-Infinity")
    assert demo.end() == ""
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {"step": "1", "loss": "0.1", 'odd, "name"': "2", "val": ""}
    assert math.isnan(float(rows[1]["loss"])) and float(rows[1]["val"]) == -math.inf
    lines = [json.loads(line) for line in open(tmp_path / "metrics.jsonl")]
    assert lines[0]["loss"] == 0.1 and math.isnan(float(lines[1]["loss"])) and float(lines[1]["val"]) == -math.inf


def test_unknown_tracker_is_refused(bin_dir, tmp_path):
    demo = subprocess.run([bin_dir / "test" / "track_demo", tmp_path, "wandb"], capture_output=True, text=True)
    assert demo.returncode == 1
    assert "tensorboard, mlflow, csv, jsonl" in demo.stderr and "'wandb'" in demo.stderr
