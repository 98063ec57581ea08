# SPDX-License-Identifier: Apache-2.0
"""Tests monitor.machine: TFLOP/s and MFU in the records, prediction.json, and the lines that
compare a run with its prediction."""

import json
import os
import re

import harness
from plan_test import CPU_MACHINE

PEAK = 1e11  # of CPU_MACHINE
# ranks, further keys
LAYOUTS = {
    "one": (1, {}),
    "data": (2, {}),
    "tensor": (2, {"parallel.tensor": "2", "parallel.sequence": "true"}),
    "pipeline": (2, {"parallel.pipeline": "2", "parallel.recompute": "all"}),
}
SHORT = {"run.stop": "2 steps", "schedule.warmup": "none"}
MACHINE = {"monitor.machine": "./node.toml"}


def settings(values):
    return [word for key, value in values.items() for word in ("--set", "%s=%s" % (key, value))]


class Utilization(harness.Case):
    def setUp(self):
        super().setUp()
        self.write_deck(CPU_MACHINE, "node.toml")

    def train_in(self, folder, values, ranks=1, expect=0):
        values = {"run.folder": folder, **values}
        return self.train(*settings(values), ranks=ranks, expect=expect)

    def prediction(self, folder):
        with open(self.path(folder, "prediction.json")) as file:
            return json.load(file)

    def test_every_layout_records_the_flops_that_plan_counts(self):
        harness.make_text(self.path("text"))
        self.write_deck(harness.GPT_DECK)
        flops = set()
        for name, (ranks, layout) in LAYOUTS.items():
            text = self.train_in(name, {**MACHINE, **layout}, ranks=ranks).text
            planned = json.loads(
                harness.run(
                    *("plan", "deck.toml", "--machine", "./node.toml", "--json", "-"),
                    *("--ranks", ranks, *settings({**MACHINE, **layout, "run.folder": name})),
                    cwd=self.folder
                ).stdout
            )
            kept = self.prediction(name)
            self.assertEqual(kept["layout"], planned["layout"])
            self.assertEqual(kept["step"], planned["step"])
            self.assertEqual(set(kept), set(planned))
            model_flops = planned["compute"]["model_flops"]
            flops.add(model_flops)
            rows = harness.read_rows(self.path(name), "train")
            self.assertEqual(len(rows), 6)
            for row in rows:
                flops_per_s = 1e12 * row["tflops_per_rank"]
                self.assertAlmostEqual(flops_per_s * row["step_s"] * ranks / model_flops, 1)
                self.assertAlmostEqual(row["mfu"] * PEAK / flops_per_s, 1)
            self.assertRegex(text, r"step 6/6, .* [0-9.]+ [KMG]FLOP/s a rank, MFU [0-9.]+ %")
            self.assertIn(
                "prediction for made_up: means of rank 0 over 3 steps, without the first 3;", text
            )
            found = re.search("prediction: step: (.*), ratio ([0-9.]+)", text)
            predicted, measured = (
                float(number) * (1e-3 if unit == "ms" else 1)
                for number, unit in re.findall("ed ([0-9.]+) (m?s)", found.group(1))
            )
            self.assertAlmostEqual(predicted / kept["step"]["seconds"], 1, delta=0.01)
            mean = sum(row["step_s"] for row in rows[3:]) / 3
            self.assertAlmostEqual(measured / mean, 1, delta=0.01)
            self.assertAlmostEqual(float(found.group(2)) * predicted / measured, 1, delta=0.02)
            for part in ("forward", "backward", "update", "waiting for other ranks", "MFU"):
                self.assertIn("prediction: %s: predicted " % part, text)
            for part in ("waiting for data", "evaluation, mean of 3", "checkpoint, mean of 2"):
                self.assertIn("prediction: %s: not predicted, measured " % part, text)
        self.assertEqual(len(flops), 1)

    def test_without_a_machine_there_are_flops_and_no_mfu(self):
        text = self.train_in("run", {**SHORT, "monitor.tensorboard": "true"}).text
        self.assertNotIn("prediction", text)
        self.assertFalse(os.path.exists(self.path("run/prediction.json")))
        for row in harness.read_rows(self.path("run"), "train"):
            self.assertGreater(row["tflops_per_rank"], 0)
            self.assertNotIn("mfu", row)
        (events,) = self.contents("run/tensorboard").values()
        self.assertIn(b"train/tflops_per_rank", events)
        self.assertNotIn(b"train/mfu", events)

    def test_a_machine_that_does_not_fit_is_a_warning(self):
        no_links = re.sub(r"\[links\.node\].*?(?=\[eff)", "", CPU_MACHINE, flags=re.DOTALL)
        self.write_deck(no_links, "alone.toml")
        bfloat16 = {"precision.compute": "bfloat16"}
        for machine, ranks, more, saying, has_mfu, is_predicted in (
            ("h100", 1, {}, "is a node with GPUs, but this run computes on the CPU", False, False),
            ("./node.toml", 1, bfloat16, "its table [peak] has nothing for", False, True),
            ("./alone.toml", 2, {}, "the run cannot be predicted: machine made_up: ", True, False),
        ):
            folder = "run-" + machine.strip("./")
            os.makedirs(self.path(folder))
            self.write_deck("of an earlier start", folder + "/prediction.json")
            values = {**SHORT, "monitor.machine": machine, **more}
            text = self.train_in(folder, values, ranks=ranks).text
            self.assertIn('warning: monitor.machine = "%s": %s' % (machine, saying), text)
            self.assertEqual("prediction: step: predicted" in text, is_predicted)
            kept = os.path.exists(self.path(folder, "prediction.json"))
            self.assertEqual(kept, is_predicted)
            rows = harness.read_rows(self.path(folder), "train")
            self.assertEqual(len(rows), 2)
            for row in rows:
                self.assertGreater(row["tflops_per_rank"], 0)
                self.assertEqual("mfu" in row, has_mfu)

    def test_a_wrong_machine_is_refused_before_anything_is_made(self):
        self.write_deck(harness.DECK + 'machine = "h10"\n')
        self.write_deck(CPU_MACHINE.replace("float32 = 1e11", "float32 = -1"), "wrong.toml")
        line = harness.DECK.count("\n") + 1
        for command, ranks in (("check", 1), ("train", 1), ("train", 2)):
            result = harness.run(command, "deck.toml", ranks=ranks, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertEqual(result.text.count('monitor.machine = "h10": '), 1, result.text)
            self.assertRegex(result.text, r"deck\.toml:%d:\d+: monitor\.machine" % line)
            self.assertIn("did you mean h100?", result.text)
            self.assertIn("a100, b200, gh200, h100, h200", result.text)
        wrong = harness.run(
            "check", "deck.toml", "--set", "monitor.machine=./wrong.toml", cwd=self.folder
        )
        self.assertEqual(wrong.returncode, 2, wrong.text)
        self.assertRegex(wrong.text, r"wrong\.toml:\d+:\d+: \[peak\] float32")
        self.assertFalse(os.path.exists(self.path("run")))

    def test_each_start_and_each_row_of_a_ramp_is_predicted(self):
        rows = '[["0 epochs", 32], ["0.2 epochs", 64]]'
        self.write_deck(harness.DECK.replace("global = 64", "ramp = " + rows))
        # Steps 1 to 4 have 32 samples.
        first = self.train_in("run", {**MACHINE, "run.stop": "6 steps"}).text
        self.assertEqual(
            re.findall("prediction for made_up: means of rank 0 over (.*);", first),
            ["2 steps, without the first 2", "1 step, without the first 1"],
        )
        self.assertEqual(self.prediction("run")["batch"]["samples"], 64)
        os.remove(self.path("run/prediction.json"))
        second = self.train_in("run", {**MACHINE, "run.stop": "8 steps"}).text
        self.assertEqual(second.count("prediction for made_up: means"), 1)
        self.assertEqual(self.prediction("run")["batch"]["samples"], 64)
        by_step = harness.last_by_step(harness.read_rows(self.path("run"), "train"))
        flops = [by_step[step]["mfu"] * by_step[step]["step_s"] for step in range(1, 9)]
        for step in range(1, 8):
            ratio = flops[step] / flops[0]
            self.assertAlmostEqual(ratio, 1 if step < 4 else 2, places=6)


if __name__ == "__main__":
    harness.main(at_once=2)
