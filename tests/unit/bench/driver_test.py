"""bench/run.py: ratios, floors, alternating runs, error messages."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench"))

import run  # noqa: E402
from run import BenchError, Command, Row  # noqa: E402


def printing(text):
    return Command([sys.executable, "-c", f"print({text!r})"])


class CommandTest(unittest.TestCase):
    def test_reads_the_last_line(self):
        self.assertEqual(printing('starting\n{"value": 2.5, "unit": "us", "size": 1}')("us"), 2.5)

    def test_wall_clock_measures_the_process(self):
        command = Command([sys.executable, "-c", "import time; time.sleep(0.05)"], wall_clock=True)
        self.assertGreaterEqual(command("s"), 0.05)

    def test_passes_the_environment(self):
        command = Command([sys.executable, "-c", 'import os; print(os.environ["LINE"])'],
                          env={"LINE": '{"value": 1, "unit": "s"}'})
        self.assertEqual(command("s"), 1)

    def assert_fails(self, command, pattern):
        with self.assertRaisesRegex(BenchError, pattern):
            command("us")

    def test_names_what_went_wrong(self):
        self.assert_fails(printing("hello"), "last line: 'hello'")
        self.assert_fails(printing(""), "last line: ''")
        self.assert_fails(printing('{"value": 1, "unit": "ms"}'), "unit 'ms' where the row says 'us'")
        self.assert_fails(Command(["/nonexistent/program"]), "not there: /nonexistent/program")
        self.assert_fails(Command([sys.executable, "-c", "import sys; sys.exit('boom')"]), "(?s)status 1.*boom")
        self.assert_fails(Command([sys.executable, "-c", "input()\nwhile True: pass"], timeout_s=30), "status 1")
        self.assert_fails(Command([sys.executable, "-c", "while True: pass"], timeout_s=0.2), "within 0.2 s")


class RowTest(unittest.TestCase):
    def test_takes_turns_and_drops_the_warm_up(self):
        calls = []

        def side(name, values):
            iterator = iter(values)

            def measure(unit):
                calls.append(name)
                return next(iterator)

            return measure

        row = Row("r", "s", side("ours", [9, 1, 3, 2]), side("peer", [99, 10, 30, 20]), repeat=3, warm_up=1)
        result = run.measure(row)
        self.assertEqual(calls, ["ours", "peer"] * 4)
        self.assertEqual(result.ours.values, [1, 3, 2])
        self.assertEqual(result.ratio, 10)

    def ratio(self, ours, peer, **options):
        row = Row("r", "s", lambda unit: ours, lambda unit: peer, repeat=1, warm_up=0, **options)
        return run.measure(row)

    def test_ratio_says_how_many_times_better(self):
        self.assertEqual(self.ratio(2, 10).ratio, 5)
        self.assertEqual(self.ratio(10, 2, higher_is_better=True).ratio, 5)
        self.assertEqual(self.ratio(0, 0).ratio, 1)
        self.assertEqual(self.ratio(0, 1).ratio, float("inf"))
        self.assertEqual(self.ratio(1, 0).ratio, 0)

    def test_floor_decides(self):
        self.assertTrue(self.ratio(2, 10, floor=5).passed)
        self.assertFalse(self.ratio(2, 9.9, floor=5).passed)

    def test_reference_instead_of_a_peer(self):
        result = run.measure(Row("r", "bytes", lambda unit: 0, reference=0, repeat=1))
        self.assertTrue(result.passed)
        self.assertFalse(run.measure(Row("r", "bytes", lambda unit: 4, reference=0, repeat=1)).passed)
        with self.assertRaises(ValueError):
            Row("r", "s", lambda unit: 1)

    def test_a_side_that_cannot_be_measured_fails_the_row(self):
        result = run.measure(Row("r", "us", printing("x"), printing("x"), warm_up=0))
        self.assertFalse(result.passed)
        self.assertIn("last line", run.table([result]))
        self.assertIsNone(result.as_json()["ratio"])


class MainTest(unittest.TestCase):
    def call(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            status = run.main(arguments)
        return status, out.getvalue()

    def test_selftest_suite(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "result.json"
            status, text = self.call("--suite", "selftest", "--json", str(path))
            report = json.loads(path.read_text())
        self.assertIn("2 of 2 rows", text)
        self.assertEqual(status, 0)
        row = report["suites"][0]["rows"][0]
        self.assertEqual((row["name"], row["ratio"], row["floor"], row["passed"]), ("a printed value", 5, 5, True))
        self.assertEqual(row["ours"], {"median": 2, "min": 2, "max": 2, "values": [2, 2]})
        self.assertIn("cores", report["machine"])

    def test_no_row_is_a_failure(self):
        status, text = self.call("--suite", "selftest", "--row", "no such row")
        self.assertEqual(status, 1)
        self.assertIn("0 of 0", text)

    def test_unknown_suite_names_the_others(self):
        with self.assertRaisesRegex(BenchError, "'nope'; there are: .*selftest"):
            self.call("--suite", "nope")


if __name__ == "__main__":
    unittest.main()
