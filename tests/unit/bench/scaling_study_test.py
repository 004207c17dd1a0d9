"""bench/scaling_study.py: medians and spread of repeated studies. bench/render_results.py: pictures of a result."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench"))

import render_results  # noqa: E402
import scaling_study  # noqa: E402


def row(ranks, speed, speed_up=1.0, loss=0.5):
    return {"nodes": 1, "ranks": ranks, "cpus_per_rank": 1, "samples_per_s": speed, "seconds": 10.0, "speed_up": speed_up,
            "efficiency": speed_up / ranks, "speed_up_by_duration": speed_up, "efficiency_by_duration": speed_up / ranks,
            "final_metrics": {"train_loss": loss, "val_loss": 0.25, "val_accuracy": 0.75}}


def left_out(ranks):
    return {"nodes": 1, "ranks": ranks, "cpus_per_rank": 1, "failure": "left out: it needs 4 CPUs"}


class ScalingStudyTest(unittest.TestCase):
    def test_medians_and_spread(self):
        repetitions = [[row(1, 1000), row(2, speed, speed / 1000)] for speed in (1900, 1200, 1800)]
        rows = scaling_study.rows_of(repetitions)
        self.assertEqual(rows[1], [2, 1, "1,800", "1,200 to 1,900", "1.80", "90 %", "10.0", "1.80, 90 %", "0.5000", "0.2500",
                                   "0.7500"])
        self.assertEqual(len(scaling_study.HEAD), len(rows[1]))

    def test_what_was_left_out_is_no_row(self):
        self.assertEqual(len(scaling_study.rows_of([[row(1, 1000), left_out(4)]])), 1)

    def test_losses_that_differ_are_all_shown(self):
        self.assertEqual(scaling_study.rows_of([[row(1, 1, loss=0.5)], [row(1, 1, loss=0.25)]])[0][8], "0.2500 or 0.5000")

    def test_repetitions_of_other_settings_are_refused(self):
        with self.assertRaisesRegex(ValueError, "different rows"):
            scaling_study.rows_of([[row(1, 1000)], [row(2, 1000)]])

    def test_the_page_shows_the_pictures_of_a_result(self):
        result = scaling_study.result_of([[row(1, 1000)]], "one core", "2.15.0", "The machine was quiet.")
        text = render_results.run_section(result)
        self.assertIn("| 1 | 1 | 1,000 | 1,000 to 1,000 |", text)
        self.assertIn(" divided by the ranks. The machine was quiet.", text)
        for picture in result["pictures"]:
            self.assertIn(f"\n\n![{picture['title']}]({picture['file']})", text)


if __name__ == "__main__":
    unittest.main()
