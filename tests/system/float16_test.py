# SPDX-License-Identifier: Apache-2.0
"""Tests precision.compute = "float16".

Losses are near those of float32. The loss scale is the same at every layout and after restarts.
Some steps only lower the scale.
"""

import json

import harness
from precision_case import DETERMINISTIC, PrecisionCase

FLOAT16 = ("--set", "precision.compute=float16")
# A loss scale far too large for these models: 1/64 of it times the loss exceeds the range of
# float16.
HUGE = 2**26
LARGE = (
    "--set",
    "precision.loss_scale.initial=%d" % HUGE,
    "--set",
    "precision.loss_scale.interval=4",
)


class Float16(PrecisionCase):
    samples = 320

    def write(self, model):
        deck = {"resnet": harness.DECK, "gpt": harness.GPT_DECK.replace('"text/', '"data/text/')}[
            model
        ]
        self.write_deck(deck)

    def expect_near_float32(self, rate):
        """Checks losses against float32. Tolerance: 20 roundings of 2^-11, at a rate without
        divergence."""
        slow = ("--set", "schedule.rate=%g" % rate)
        exact, rounded = self.rows("float32", *slow), self.rows("float16", *slow, *FLOAT16)
        for a, b in zip(exact, rounded, strict=True):
            self.assertLess(abs(a["loss"] - b["loss"]), 0.01 * a["loss"], "step %d" % a["step"])
            self.assertEqual((a["loss_scale"], b["loss_scale"]), (1, 65536))
            self.assertEqual(b["skipped"], 0)
        self.assertNotEqual([row["loss"] for row in exact], [row["loss"] for row in rounded])
        self.assertLess(rounded[-1]["loss"], rounded[0]["loss"])

    def test_images_are_near_float32(self):
        self.write("resnet")
        self.expect_near_float32(0.01)

    def test_a_language_model_is_near_float32(self):
        self.write("gpt")
        self.expect_near_float32(0.001)

    def expect_scale_to_settle(self, rows):
        """Checks that each dropped step halves the scale, and that four other steps double it."""
        self.assertEqual(rows[0]["loss_scale"], HUGE)
        good = 0
        for before, after in zip(rows, rows[1:]):
            if before["skipped"]:
                good = 0
                self.assertEqual(after["loss_scale"], before["loss_scale"] / 2)
            else:
                good += 1
                self.assertEqual(
                    after["loss_scale"], before["loss_scale"] * (2 if good % 4 == 0 else 1)
                )
        # as many as a run may drop before it ends
        self.assertGreater(sum(row["skipped"] for row in rows), 5)
        self.assertLess(sum(row["skipped"] for row in rows), len(rows) - 4)

    def test_a_scale_that_is_too_large_falls_and_the_run_goes_on(self):
        for model in ("resnet", "gpt"):
            self.write(model)
            rows = self.rows(model, *FLOAT16, *LARGE, "--set", "schedule.length=40 steps", steps=40)
            self.expect_scale_to_settle(rows)
            self.assertLess(rows[-1]["loss"], rows[0]["loss"])
            info = json.loads(
                harness.run(
                    "inspect", "--json", self.path(model, "checkpoints/step_000000036.h5")
                ).stdout
            )
            self.assertEqual(info["updates"], 36 - sum(row["skipped"] for row in rows[:36]))
            events = [
                row
                for row in harness.read_rows(self.path(model), "event")
                if row["event"] == "skipped_step"
            ]
            self.assertIn("at loss scale %.6g" % HUGE, events[0]["detail"])
            self.assertEqual(
                [
                    row
                    for row in harness.read_rows(self.path(model), "event")
                    if row["event"] == "rollback"
                ],
                [],
            )

    def test_at_its_floor_steps_are_bad_ones(self):
        self.write("resnet")
        result = harness.run(
            "train",
            "deck.toml",
            *FLOAT16,
            "--set",
            "precision.loss_scale.initial=4",
            "--allow-faults",
            "--set",
            "debug.fault=nan rank 0 step 2..30",
            "--set",
            "run.stop=30 steps",
            cwd=self.folder
        )
        self.assertEqual(result.returncode, 76, result.text)
        rows = harness.read_rows(self.path("run"), "train")
        self.assertEqual([row["loss_scale"] for row in rows[:8]], [4, 4, 2, 1, 1, 1, 1, 1])

    def test_a_restart_gives_the_bits_of_a_run_that_was_never_stopped(self):
        """Restarts after the scale fell. It grows later, by steps that were counted before the
        stop."""
        more = (
            *FLOAT16,
            *DETERMINISTIC,
            *LARGE,
            "--set",
            "precision.loss_scale.initial=%d" % 2**22,
        )
        for model in ("resnet", "gpt"):
            for sync in ("step", "delayed"):
                with self.subTest(model=model, sync=sync):
                    self.write(model)
                    name, both = "-".join((model, sync)), (*more, "--set", "parallel.sync=" + sync)
                    whole = self.rows(name + "-whole", *both)
                    self.rows(name, *both, steps=6)
                    again = self.rows(name, *both)
                    for key in ("loss", "loss_scale", "grad_norm", "skipped"):
                        self.assertEqual([row[key] for row in again], [row[key] for row in whole])
                    self.assertEqual(self.digest(name), self.digest(name + "-whole"))

    def test_one_and_two_replicas_have_the_same_bits(self):
        for model in ("resnet", "gpt"):
            self.write(model)
            digests, curves = set(), []
            for ranks, layout in ((1, ()), (2, ()), (2, ("--set", "parallel.shard=parameters"))):
                name = "%s-%d-%d" % (model, ranks, len(layout))
                rows = self.rows(name, *FLOAT16, *DETERMINISTIC, *LARGE, *layout, ranks=ranks)
                curves.append([(row["loss"], row["loss_scale"], row["skipped"]) for row in rows])
                digests.add(self.digest(name))
            self.assertEqual(curves[0], curves[1])
            self.assertEqual(curves[0], curves[2])
            self.assertEqual(len(digests), 1)

    def test_every_layout_has_one_scale(self):
        self.write("gpt")
        one = self.rows("one", *FLOAT16, *LARGE)
        self.assertGreater(sum(row["skipped"] for row in one), 0)
        for ranks, layout in (
            (2, {"tensor": 2}),
            (2, {"pipeline": 2}),
            (4, {"data": 2, "tensor": 2, "shard": "gradients"}),
            (2, {"data": 2, "offload": '["optimizer"]'}),
        ):
            with self.subTest(layout=layout):
                name = "-".join("%s.%s" % item for item in layout.items() if item[0] != "offload")
                rows = self.rows(
                    name,
                    *FLOAT16,
                    *LARGE,
                    *(
                        word
                        for item in layout.items()
                        for word in ("--set", "parallel.%s=%s" % item)
                    ),
                    ranks=ranks
                )
                self.assertEqual(
                    [(row["loss_scale"], row["skipped"]) for row in rows],
                    [(row["loss_scale"], row["skipped"]) for row in one],
                )
                for a, b in zip(one, rows, strict=True):
                    self.assertLess(
                        abs(a["loss"] - b["loss"]), 0.005 * a["loss"], "step %d" % a["step"]
                    )

    def test_replicas_that_go_their_own_ways_agree_where_they_are_averaged(self):
        self.write("gpt")
        more = (
            *FLOAT16,
            *LARGE,
            "--set",
            "parallel.sync=every 3 steps",
            "--set",
            "schedule.length=24 steps",
        )
        rows = self.rows("periodic", *more, ranks=2, steps=24)
        self.assertLess(rows[-1]["loss_scale"], HUGE)
        self.assertLess(sum(row["skipped"] for row in rows), 18)
        self.rows("cut", *more, ranks=2, steps=12)
        self.assertEqual(
            [row["loss"] for row in self.rows("cut", *more, ranks=2, steps=24)],
            [row["loss"] for row in rows],
        )

    def test_every_optimizer_takes_the_scale_out(self):
        """Tests each optimizer at two loss scales that fit from the start.

        The updates are equal, except for the rounding of small gradients.
        """
        self.write("resnet")
        for kind, rate in (("sgd", 0.01), ("adamw", 0.001), ("lars", 0.5), ("lamb", 0.001)):
            more = (
                *FLOAT16,
                "--set",
                "optimizer.kind=" + kind,
                "--set",
                "schedule.rate=%g" % rate,
                "--set",
                "optimizer.ema=0.9",
                "--set",
                "optimizer.clip_norm=1",
            )
            if kind in ("adamw", "lamb"):
                deck = harness.DECK.replace("momentum = 0.9\n", "")
                self.write_deck(deck)
            small, large = (
                self.rows(
                    "%s-%d" % (kind, scale),
                    *more,
                    "--set",
                    "precision.loss_scale.initial=%d" % scale
                )
                for scale in (2**12, 2**14)
            )
            self.write("resnet")
            for a, b in zip(small, large, strict=True):
                self.assertLess(
                    abs(a["loss"] - b["loss"]), 0.005 * a["loss"], "%s, step %d" % (kind, a["step"])
                )
                self.assertLess(abs(a["grad_norm"] - b["grad_norm"]), 0.05 * a["grad_norm"])

    def test_a_run_of_another_precision_goes_on_in_float16(self):
        self.write("resnet")
        self.rows("run", steps=6)
        rows = self.rows("run", *FLOAT16)
        self.assertEqual([row["loss_scale"] for row in rows], [1] * 6 + [65536] * 6)

    def test_the_emulated_device_gives_the_bits_of_the_cpu(self):
        for model in ("resnet", "gpt"):
            self.write(model)
            digests = set()
            for device in ((), ("--allow-faults", "--set", "debug.device=emulated")):
                self.rows("%s-%d" % (model, len(device)), *FLOAT16, *DETERMINISTIC, *LARGE, *device)
                digests.add(self.digest("%s-%d" % (model, len(device))))
            self.assertEqual(len(digests), 1)


if __name__ == "__main__":
    harness.main(at_once=3)
