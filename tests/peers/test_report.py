"""Reports in a real browser: Debian's chromium, without a window.

The script of the page marks every canvas that Chart.js has drawn (data-drawn) and counts them
(data-charts). A screenshot shows that they are not empty. Pages that `lockstep report --follow` serves stay open
while the test changes the run, and the browser reports what happens in them.
"""

import base64
import contextlib
import fcntl
import html.parser
import io
import json
import os
import select
import shutil
import signal
import subprocess

import pytest
from PIL import Image, ImageStat

METRICS = """step,epoch,train_loss,val_loss,train_accuracy,val_accuracy,learning_rate,samples_per_s,time_data_s,time_forward_s,time_backward_s,time_exposed_communication_s,time_optimizer_s,grad_norm
"""


def write_run(folder, epochs=40, start=1.0):
    folder.mkdir(parents=True)
    rows = [f"{5 * e},{e},{start / e},{1.2 * start / e},{1 - 0.9 / e},{1 - 0.95 / e},{0.1 / e},{1000 + 10 * e},"
            f"0.01,0.02,0.04,0.01,0.005,{3 / e}\n" for e in range(1, epochs + 1)]
    (folder / "metrics.csv").write_text(METRICS + "".join(rows))
    (folder / "metrics.jsonl").write_text("".join(
        json.dumps({"step": 5 * e, "time": 1.8e9 + 30 * e, "train_loss": start / e}) + "\n" for e in range(1, epochs + 1)))
    (folder / "config.json").write_text(json.dumps({"seed": epochs, "precision": "bf16"}))
    (folder / "config_defaults.json").write_text(json.dumps({"seed": 0, "precision": "fp32"}))
    (folder / "ranks.json").write_text(json.dumps(
        {"backend": "nccl", "ranks": [{"rank": r, "local_rank": r, "host": "node1", "device": f"cuda:{r}"} for r in range(4)]}))
    (folder / "gpu.csv").write_text(
        "timestamp, index, name, utilization.gpu [%], utilization.memory [%], memory.total [MiB], memory.used [MiB]\n"
        + "".join(f"2026/11/15 12:00:{s:02d}.000, {g}, GPU, {90 + s % 7} %, 40 %, 81920 MiB, {8192 + 10 * s} MiB\n"
                  for s in range(60) for g in range(2)))
    return folder


class Browser:
    """Each call starts a new browser, with a profile in the folder of the test."""

    def __init__(self, folder):
        self.folder = folder
        self.program = shutil.which("chromium")
        assert self.program, "chromium is missing: script/setup --peers installs it"

    def call(self, url, *flags):
        """Returns the output of the browser, the console of the page, and the requests of the page."""
        log = self.folder / "net.json"
        result = subprocess.run(
            [self.program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--disable-background-networking", "--disable-component-update", "--no-first-run",
             "--host-resolver-rules=MAP * ~NOTFOUND",
             f"--user-data-dir={self.folder / 'profile'}", "--enable-logging=stderr", f"--log-net-log={log}",
             *flags, url],
            capture_output=True, text=True, timeout=120, env=os.environ | {"HOME": str(self.folder)})
        assert result.returncode == 0, result.stderr
        console = [line for line in result.stderr.splitlines() if ":CONSOLE" in line]
        return result.stdout, console, self.requested(log)

    @staticmethod
    def requested(log):
        """The addresses that the page requested. Requests of the browser itself have no origin."""
        text = log.read_text(errors="replace")
        try:
            events = json.loads(text)["events"]
        except json.JSONDecodeError:  # the browser ended before it completed the list
            events = json.loads(text.rstrip().rstrip(",") + "]}")["events"]
        starts = [event["params"] for event in events if "initiator" in event.get("params", {})]
        return {start["url"] for start in starts
                if start.get("url", "").startswith("http") and start["initiator"] != "not an origin"}

    def dump(self, url):
        return self.call(url, "--dump-dom")

    def picture(self, url, path, width=1280, height=3000):
        self.call(url, f"--screenshot={path}", f"--window-size={width},{height}")
        return Image.open(path).convert("RGB")


class Elements(html.parser.HTMLParser):
    """The attributes of all elements of one kind."""

    def __init__(self, text, kind):
        super().__init__()
        self.kind, self.found = kind, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == self.kind:
            self.found.append(dict(attributes))


@pytest.fixture
def browser(tmp_path):
    folder = tmp_path / "browser"
    folder.mkdir()
    return Browser(folder)


@pytest.fixture
def report(bin_dir, tmp_path):
    def make(*runs):
        output = tmp_path / "report.html"
        subprocess.run([bin_dir / "lockstep", "report", *runs, "--output", output], check=True, timeout=60)
        return output.as_uri()
    return make


def check_page(browser, url, charts):
    """Checks that every chart is drawn, without errors and without network requests."""
    document, console, requested = browser.dump(url)
    assert console == []
    assert requested == set()
    canvases = Elements(document, "canvas").found
    assert len(canvases) == charts
    assert all(int(canvas.get("data-drawn", 0)) > 0 for canvas in canvases), canvases
    assert Elements(document, "html").found[0]["data-charts"] == str(charts)
    return document


def test_the_checks_see_a_page_that_is_wrong(browser, tmp_path):
    page = tmp_path / "wrong.html"
    page.write_text("<script>undefinedFunction()</script><img src='http://evil.example/x.png'>")
    _, console, requested = browser.dump(page.as_uri())
    assert any("undefinedFunction" in line for line in console)
    assert requested == {"http://evil.example/x.png"}


def test_every_chart_of_a_run_is_drawn(browser, report, tmp_path):
    url = report(write_run(tmp_path / "run"))
    # Loss, accuracy, learning rate, speed, parts of a step, two charts of GPUs, the norm.
    document = check_page(browser, url, charts=8)
    assert "node1" in document


def test_runs_side_by_side_are_drawn(browser, report, tmp_path):
    url = report(write_run(tmp_path / "a"), write_run(tmp_path / "b", epochs=20, start=2.0))
    document = check_page(browser, url, charts=8)
    assert "what differs" in document


def test_the_legend_tells_validation_from_training_of_the_same_run(browser, report, tmp_path):
    url = report(write_run(tmp_path / "a"), write_run(tmp_path / "b"))
    dashed = {canvas["data-chart"]: int(canvas["data-dashed"])
              for canvas in Elements(check_page(browser, url, charts=8), "canvas").found}
    assert dashed["loss"] == 2, dashed
    assert dashed["learning-rate"] == 0, dashed


def test_a_run_of_one_epoch_has_its_place_among_epochs(browser, report, tmp_path):
    one = write_run(tmp_path / "one", epochs=1)
    assert ">Epochs</button>" in check_page(browser, report(one), charts=8)
    url = report(one, write_run(tmp_path / "many"))
    assert ">Epochs</button>" in check_page(browser, url, charts=8)


def test_hostile_names_run_no_script(browser, report, tmp_path):
    name = "x\"'><img src=http:&&evil.example&x onerror=alert(1)><b>"
    folder = write_run(tmp_path / name)
    text = "</script><script>document.title='broken'</script><img src=https://evil.example/x>"
    (folder / "config.json").write_text(json.dumps({text: text}))
    (folder / "metrics.csv").write_text(f'step,train_loss,"{text}"\n1,0.5,1\n2,0.25,2\n')
    document = check_page(browser, report(folder), charts=4)
    assert "<title>broken" not in document
    assert Elements(document, "img").found == []


def spread(image):
    """How much the colours of an image differ; 0 for an empty one."""
    return max(ImageStat.Stat(image).stddev)


@pytest.mark.parametrize("theme, dark", [("light", False), ("dark", True)])
@pytest.mark.parametrize("width", [1280, 500])
def test_pictures_show_charts_in_both_themes_and_on_a_phone(browser, report, tmp_path, theme, dark, width):
    url = report(write_run(tmp_path / "run"))
    image = browser.picture(f"{url}?theme={theme}", tmp_path / "page.png", width)
    corner = sum(image.getpixel((2, 2))) / 3
    assert (corner < 60) == dark
    # The upper half of the page has cards, so no stripe of it is empty.
    for top in range(0, 1500, 300):
        assert spread(image.crop((0, top, width, top + 300))) > 5, top


def test_a_chart_is_more_than_its_frame(browser, report, tmp_path):
    """The line of the loss covers many pixels in its colour."""
    image = browser.picture(report(write_run(tmp_path / "run")) + "?theme=light", tmp_path / "page.png")
    line = (0x2F, 0x5F, 0xE3)
    near = sum(count for count, colour in image.getcolors(maxcolors=1 << 24)
               if all(abs(a - b) < 12 for a, b in zip(colour, line)))
    assert near > 1000


def test_a_study_is_drawn(browser, bin_dir, tmp_path):
    study = tmp_path / "study"
    subprocess.run([bin_dir / "lockstep", "bench", "scaling", "--ranks", "1,2", "--oversubscribe", "--output", study,
                    "--", bin_dir / "sine", "--max_iter", "10", "--compute_setup", "cpu"], check=True, timeout=120)
    # Speed, speed-up, and the loss of each setting, before the six charts of the runs.
    check_page(browser, (study / "report.html").as_uri(), charts=9)


# --- a page that is open while the run goes on ---


class Tab:
    """A page in a browser that stays open, through Chromium's debugging protocol over two pipes."""

    FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--disable-background-networking", "--disable-component-update", "--no-first-run",
             "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-pipe"]

    def __init__(self, folder):
        program = shutil.which("chromium")
        assert program, "chromium is missing: script/setup --peers installs it"
        commands, self.commands = self.pipe()
        self.answers, answers = self.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "-", program, *self.FLAGS,
             f"--user-data-dir={folder / 'profile'}", "about:blank"],
            pass_fds=[commands, answers], env=os.environ | {"HOME": str(folder)}, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self.session, self.number, self.received, self.errors, self.loaded = None, 0, b"", [], False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")

    @staticmethod
    def pipe():
        """Both ends, above the descriptors 3 and 4."""
        low = os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in low]
        for fd in low:
            os.close(fd)
        return ends

    def close(self):
        os.close(self.commands)  # ends the browser
        try:
            self.process.wait(timeout=60)
        finally:
            self.process.kill()
            os.close(self.answers)

    def receive(self):
        while b"\0" not in self.received:
            ready, _, _ = select.select([self.answers], [], [], 120)
            assert ready, "the browser does not answer"
            part = os.read(self.answers, 1 << 16)
            assert part, "the browser has ended"
            self.received += part
        text, _, self.received = self.received.partition(b"\0")
        return json.loads(text)

    def note(self, event):
        """Keeps the errors of the page, and whether it is loaded."""
        if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.errors.append(event["params"])
        self.loaded = self.loaded or event.get("method") == "Page.loadEventFired"

    def call(self, method, **params):
        """Returns the result of a command."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while (answer := self.receive()).get("id") != self.number:
            self.note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def evaluate(self, script):
        """The value of an expression in the page; of a promise, once it is there."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, condition):
        """Returns when the condition holds. It is tried again whenever the document has changed."""
        self.evaluate("""new Promise((resolve) => {
            const there = () => %s;
            if (there()) return resolve();
            const observer = new MutationObserver(() => { if (there()) { observer.disconnect(); resolve(); } });
            observer.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
        })""" % condition)

    def open(self, url):
        """Returns when the page and its scripts are loaded."""
        self.loaded = False
        self.call("Page.navigate", url=url)
        while not self.loaded or self.evaluate("location.href") != url:  # the empty page may be loaded as late
            self.note(self.receive())

    def picture(self):
        return Image.open(io.BytesIO(base64.b64decode(self.call("Page.captureScreenshot")["data"]))).convert("RGB")


@pytest.fixture
def tab(tmp_path):
    folder = tmp_path / "tab"
    folder.mkdir()
    tab = Tab(folder)
    try:
        yield tab
    finally:
        tab.close()


@contextlib.contextmanager
def followed(bin_dir, *runs):
    """The server and the address of its page."""
    with subprocess.Popen([bin_dir / "lockstep", "report", "--follow", *runs], stdout=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline()
            assert line.startswith("Report: http://127.0.0.1:"), line
            yield server, line.split()[1]
        finally:
            server.kill()


def points(tab, chart):
    """The number of points of each line that a chart shows now."""
    return tab.evaluate(f"""Chart.getChart(document.querySelector('canvas[data-chart="{chart}"]'))
        .data.datasets.map((one) => one.data.length)""")


def append_epoch(run, epoch, **others):
    """One more row. Metrics that the file has not yet are new columns: trackers then replace the file."""
    path = run / "metrics.csv"
    names, *rows = path.read_text().splitlines()
    values = [5 * epoch, epoch, 1 / epoch, 1.2 / epoch, 0.5, 0.5, 0.1, 1000, 0.01, 0.02, 0.04, 0.01, 0.005, 3]
    new = path.with_suffix(".new")
    lines = [",".join([names, *others])] + [row + "," * len(others) for row in rows]
    lines.append(",".join(str(value) for value in [*values, *others.values()]))
    new.write_text("\n".join(lines) + "\n")
    new.replace(path)


def test_a_page_that_follows_a_run_shows_its_new_rows(tab, bin_dir, tmp_path):
    run = write_run(tmp_path / "run", epochs=3)
    with followed(bin_dir, run) as (server, url):
        tab.open(url)
        assert points(tab, "loss") == [3, 3]
        assert tab.evaluate("document.getElementById('live').textContent") == "live"
        # What the reader has chosen stays.
        tab.evaluate("document.querySelector('#chart-loss .tools button').click()")
        tab.evaluate("Chart.getChart(document.querySelector('canvas[data-chart=loss]')).hide(1)")
        append_epoch(run, 4, weight_norm=2.5)
        tab.wait_for("document.documentElement.dataset.updates === '1'")
        assert points(tab, "loss") == [4, 4]
        assert points(tab, "weight-norm") == [1], "a chart that was not there"
        assert tab.evaluate("document.documentElement.dataset.charts") == "9"
        shown = tab.evaluate("""(() => {
            const chart = Chart.getChart(document.querySelector('canvas[data-chart=loss]'));
            return [chart.options.scales.y.type, chart.isDatasetVisible(0), chart.isDatasetVisible(1)];
        })()""")
        assert shown == ["logarithmic", True, False]
        append_epoch(run, 5, weight_norm=2.25)
        tab.wait_for("document.documentElement.dataset.updates === '2'")
        assert points(tab, "loss") == [5, 5]
        assert spread(tab.picture()) > 5
        assert tab.errors == []
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0
        tab.wait_for("document.getElementById('live').textContent === 'not connected'")
        assert points(tab, "loss") == [5, 5], "what was there stays"
