# SPDX-License-Identifier: Apache-2.0
"""Tests monitor.noise_scale and monitor.tensors, and the event of a skipped step.

The training does not change, all layouts measure the same, and a restart continues the averages.
"""

import json
import os
import re

import harness

NOISE = ("--set", "monitor.noise_scale=2 steps")
TERMS = ("noise_scale", "gradient_norm_squared", "trace")
# (ranks, further options on the command line)
LAYOUTS = {
    "one": (1, {}),
    "data": (2, {}),
    "tensor": (2, {"parallel.tensor": "2", "parallel.sequence": "true"}),
    "pipeline": (2, {"parallel.pipeline": "2", "parallel.shard": "optimizer"}),
    "all": (4, {"parallel.tensor": "2", "parallel.pipeline": "2"}),
}
LAST = "checkpoints/step_000000006.h5"


def settings(values):
    return [word for key, value in values.items() for word in ("--set", "%s=%s" % (key, value))]


class Monitor(harness.Case):
    def setUp(self):
        super().setUp()
        harness.make_text(self.path("text"))
        self.write_deck(harness.GPT_DECK)

    def train_in(self, folder, *more, ranks=1, expect=0):
        return self.train("--set", "run.folder=" + folder, *more, ranks=ranks, expect=expect)

    def write_noise(self, folder, scales):
        os.makedirs(self.path(folder))
        with open(self.path(folder, "metrics.jsonl"), "w") as file:
            for scale in scales:
                file.write(json.dumps({"kind": "noise", "noise_scale": scale}) + "\n")

    def noise(self, folder):
        return harness.read_rows(self.path(folder), "noise")

    def test_every_layout_measures_the_same_noise_and_trains_as_without(self):
        for name, (ranks, layout) in LAYOUTS.items():
            result = self.train_in(name, *NOISE, *settings(layout), ranks=ranks)
            self.train_in(name + "-plain", *settings(layout), ranks=ranks)
            self.assertEqual(
                *(harness.digest(self.path(run, LAST)) for run in (name, name + "-plain"))
            )
            rows = self.noise(name)
            self.assertEqual([row["step"] for row in rows], [2, 4, 6])
            self.assertEqual(self.noise(name + "-plain"), [])
            for number, (row, one) in enumerate(zip(rows, self.noise("one"))):
                self.assertEqual(row["measurements"], number + 1)
                self.assertEqual((row["small_batch"], row["large_batch"]), (2, 8))
                for term in TERMS:
                    self.assertAlmostEqual(row[term] / one[term], 1, delta=1e-4, msg=name)
                self.assertAlmostEqual(
                    row["noise_scale"], row["trace"] / row["gradient_norm_squared"], delta=1e-9
                )
                self.assertIn(
                    "step %d: gradient noise scale %.4g samples (a step has 8)"
                    % (row["step"], row["noise_scale"]),
                    result.text,
                )

    def test_a_restart_continues_the_averages(self):
        self.train_in("whole", *NOISE, "--set", "run.deterministic=true")
        for stop in ("3 steps", "6 steps"):
            self.train_in(
                "parts", *NOISE, "--set", "run.deterministic=true", "--set", "run.stop=" + stop
            )
        whole, parts = self.noise("whole"), self.noise("parts")
        self.assertEqual(len(whole), 3)
        for row in whole + parts:
            del row["elapsed_s"]
        self.assertEqual(whole, parts)
        # Without the key the averages are dropped.
        self.train_in("parts", "--set", "run.stop=9 steps")
        self.train_in("parts", *NOISE, "--set", "run.stop=10 steps")
        self.assertEqual(self.noise("parts")[-1]["measurements"], 1)

    def test_the_noise_scale_advises_a_batch(self):
        result = self.train_in("one", *NOISE)
        scales = [row["noise_scale"] for row in self.noise("one")]
        advice = (
            r"batch 8 is [0-9.]+ times the noise scale \([0-9.]+ samples, [0-9.]+ to [0-9.]+\): "
            r"expect [0-9.]+ times the epochs of batch \d+, and [0-9.]+ times its steps"
        )
        self.assertRegex(result.text, advice)
        check = ("check", "deck.toml", "--noise-scale")
        result = harness.run(*check, "one", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        self.assertRegex(result.text, "(?m)^noise +" + advice)
        noise = json.loads(harness.run(*check, "one", "--json", cwd=self.folder).stdout)["noise"]
        self.assertEqual(noise["samples"], scales[-1])
        self.assertEqual((noise["low"], noise["high"]), (min(scales[1:]), max(scales[1:])))
        # A batch above the noise scale gets a ramp, which a deck can have.
        self.write_noise("small", [None, 2.0, 3.0, -5.0])
        result = harness.run(*check, "small", cwd=self.folder)
        [ramp] = re.findall(r"a ramp: batch\.ramp = (\[.*\]), run\.stop", result.text)
        self.assertEqual(json.loads(ramp)[0], ["0 epochs", 2])
        self.assertEqual(json.loads(ramp)[-1][1], 8)
        words = ("--set", "batch.ramp=" + ramp, "--set", "run.stop=1 epoch")
        result = harness.run("check", "deck.toml", *words, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        result = harness.run(*check, "", cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertIn("--noise-scale: must not be empty", result.text)
        # Other folders have no noise scale.
        self.train_in("plain")
        for folder in ("plain", "text", "missing"):
            result = harness.run(*check, folder, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn(
                "--noise-scale %s: this folder has no run that measured" % folder, result.text
            )

    def test_the_norms_of_every_tensor_are_written_at_every_layout(self):
        for optimizer, names in (
            ("adamw", ("one", "all")),
            ("lamb", ("one", "tensor", "pipeline")),
        ):
            rows = {}
            tensors = ("--set", "monitor.tensors=3 steps", "--set", "optimizer.kind=" + optimizer)
            for name in names:
                ranks, layout = LAYOUTS[name]
                folder = name + "-" + optimizer
                self.train_in(folder, *tensors, *settings(layout), ranks=ranks)
                self.train_in(folder + "-plain", *tensors[2:], *settings(layout), ranks=ranks)
                self.assertEqual(
                    *(harness.digest(self.path(run, LAST)) for run in (folder, folder + "-plain"))
                )
                self.assertEqual(harness.read_rows(self.path(folder + "-plain"), "tensors"), [])
                rows[name] = harness.read_rows(self.path(folder), "tensors")
                weights = {(row["step"], row["tensor"]): row for row in rows[name]}
                self.assertEqual(len(weights), len(rows[name]))
                self.assertEqual({step for step, _ in weights}, {3, 6})
                self.assertEqual(
                    any("trust_ratio" in row for row in rows[name]), optimizer == "lamb"
                )
                # The squares of all tensors are those of the whole gradient.
                for row in harness.read_rows(self.path(folder), "train"):
                    squares = [
                        other["gradient_norm"] ** 2
                        for other in rows[name]
                        if other["step"] == row["step"]
                    ]
                    if squares:
                        self.assertAlmostEqual(
                            sum(squares) ** 0.5 / row["grad_norm"], 1, delta=1e-6
                        )
                for row, one in zip(rows[name], rows["one"]):
                    self.assertEqual((row["step"], row["tensor"]), (one["step"], one["tensor"]))
                    self.assertAlmostEqual(row["weight_norm"], one["weight_norm"], delta=1e-3)
                    self.assertAlmostEqual(
                        row["update_ratio"], one["update_ratio"], delta=1e-2 * one["update_ratio"]
                    )

    def test_a_skipped_step_names_the_tensor(self):
        for name in ("one", "all"):
            ranks, layout = LAYOUTS[name]
            result = self.train_in(
                "skipped-" + name,
                "--allow-faults",
                "--set",
                "debug.fault=nan rank %d step 4" % (ranks - 1),
                *settings(layout),
                ranks=ranks
            )
            events = harness.read_rows(self.path("skipped-" + name), "event")
            details = [row["detail"] for row in events if row["event"] == "skipped_step"]
            self.assertEqual(len(details), 1, result.text)
            # The gradient of the loss is not a number, and so are those of all tensors. The last
            # one of the model is named. The table, which the head shares, is the first one.
            self.assertIn(", in the gradient of ln_f.bias)", details[0])

    def test_an_emulated_device_measures_the_same(self):
        both = (*NOISE, "--set", "monitor.tensors=3 steps")
        self.train_in("host", *both)
        self.train_in("emulated", *both, "--set", "debug.device=emulated", "--allow-faults")
        for host, emulated in zip(self.noise("host"), self.noise("emulated")):
            for term in TERMS:
                self.assertAlmostEqual(emulated[term] / host[term], 1, delta=1e-3)
        host, emulated = (
            harness.read_rows(self.path(run), "tensors") for run in ("host", "emulated")
        )
        self.assertEqual(len(host), len(emulated))
        for one, other in zip(host, emulated):
            self.assertEqual(one["tensor"], other["tensor"])
            self.assertAlmostEqual(one["weight_norm"], other["weight_norm"], delta=1e-3)

    def test_check_counts_the_buffer_and_refuses_what_cannot_be_measured(self):
        def check(*more, expect=0):
            result = harness.run("check", "deck.toml", *more, cwd=self.folder)
            self.assertEqual(result.returncode, expect, result.text)
            return result.text

        # In tree order a micro-batch has a buffer of its own. 3 replicas do not add in tree order:
        # there the sum before a micro-batch takes 4 bytes a weight.
        self.assertEqual(check(), check(*NOISE))
        three = ("--ranks", "3", "--set", "batch.global=12")
        kib = [
            float(re.search("gradients ([0-9.]+) KiB", check(*three, *more)).group(1))
            for more in ((), NOISE)
        ]
        self.assertAlmostEqual(kib[1] - kib[0], 14224 * 4 / 1024, delta=0.5)
        for more, saying in (
            ({"batch.micro": "8"}, "a step is one micro-batch"),
            ({"parallel.shard": "gradients"}, 'use shard = "optimizer"'),
            ({"parallel.shard": "parameters"}, 'use shard = "optimizer"'),
            ({"parallel.sync": "delayed"}, "sum of the gradients in each step"),
        ):
            self.assertIn(saying, check(*NOISE, *settings(more), expect=2))


if __name__ == "__main__":
    harness.main(at_once=2)
