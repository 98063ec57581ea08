# SPDX-License-Identifier: Apache-2.0
"""Tests precision.reduce = "bfloat16": gradients that are exchanged in 16 bits.

Losses equal those of float32 up to rounding. Repeated runs and all replicas have the same bits.
"""

import harness

NARROW = ("--set", "precision.reduce=bfloat16")
ALIKE = ("--set", "health.compare_replicas=1 step")
RESNET = (
    "--set",
    "schedule.kind=constant",
    "--set",
    "schedule.rate=0.01",
    "--set",
    "schedule.warmup=1 step",
)
GPT = (
    harness.GPT_DECK.replace('"text/', '"data/text/')
    .replace('every = "2 steps"', 'every = "4 steps"')
    .replace('every = "3 steps"', 'every = "4 steps"')
)
# Relative, over eight steps; measured: at most 1.5e-4. A gradient that lacks one rank's
# contribution is off by more from the second step on.
CLOSE = 1e-3
SHARDS = ("none", "optimizer", "gradients", "parameters")


class Reduce(harness.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        harness.make_text(cls.shared + "/text")

    def run_in(self, folder, *arguments, ranks, stop=8, **more):
        self.train(
            "--set",
            "run.folder=" + folder,
            "--set",
            "run.stop=%d steps" % stop,
            *arguments,
            ranks=ranks,
            **more
        )
        return harness.read_rows(self.path(folder), "train")

    def assert_alike(self, folder):
        self.assertEqual(
            [
                row
                for row in harness.read_rows(self.path(folder), "event")
                if row["event"] in ("replicas_differ", "rollback")
            ],
            [],
        )

    def digest(self, folder, step=8):
        return harness.digest(self.path(folder, "checkpoints/step_%09d.h5" % step))

    def check_close(self, name, *arguments, ranks):
        """Checks losses against the same layout in float32.

        The first loss has the same weights. Later ones must differ, otherwise nothing was rounded.
        """
        exact = self.run_in(name + "-float32", *arguments, ranks=ranks)
        narrow = self.run_in(name + "-bfloat16", *arguments, *NARROW, *ALIKE, ranks=ranks)
        self.assertEqual(narrow[0]["loss"], exact[0]["loss"])
        self.assertNotEqual([row["loss"] for row in narrow], [row["loss"] for row in exact])
        # Contributions and their sum have a relative error of at most 2^-8 in each element, at
        # random. The norm of the contributions is a few times that of the sum.
        self.assertLessEqual(
            abs(narrow[0]["grad_norm"] - exact[0]["grad_norm"]), 2**-6 * exact[0]["grad_norm"]
        )
        for a, b in zip(exact, narrow, strict=True):
            self.assertLess(
                abs(a["loss"] - b["loss"]),
                CLOSE * a["loss"],
                "%s, step %d: %r and %r" % (name, a["step"], a["loss"], b["loss"]),
            )
            self.assertEqual(b["skipped"], 0)
        self.assert_alike(name + "-bfloat16")

    def test_a_resnet_trains_as_with_float32(self):
        for ranks, shard in (
            (2, "none"),
            (4, "none"),
            (3, "none"),
            (2, "optimizer"),
            (4, "gradients"),
            (2, "parameters"),
        ):
            for deterministic in ("true", "false"):
                self.check_close(
                    "resnet-%d-%s-%s" % (ranks, shard, deterministic),
                    *RESNET,
                    "--set",
                    "batch.global=48",
                    "--set",
                    "batch.micro=4",
                    "--set",
                    "parallel.bucket_mb=0.02",
                    "--set",
                    "parallel.shard=" + shard,
                    "--set",
                    "run.deterministic=" + deterministic,
                    ranks=ranks
                )

    def test_a_language_model_trains_as_with_float32(self):
        self.write_deck(GPT)
        for ranks, layout in (
            (2, {}),
            (4, {}),
            (2, {"shard": "optimizer"}),
            (4, {"shard": "parameters"}),
            (2, {"sync": "delayed", "shard": "gradients"}),
            (4, {"sync": "delayed"}),
            (4, {"pipeline": 2}),
            (4, {"tensor": 2, "sequence": "true", "shard": "gradients"}),
        ):
            name = "gpt-%d-" % ranks + "-".join("%s.%s" % item for item in layout.items())
            settings = [
                word
                for key, value in layout.items()
                for word in ("--set", "parallel.%s=%s" % (key, value))
            ]
            self.check_close(name, "--set", "parallel.bucket_mb=0.02", *settings, ranks=ranks)

    def test_a_restart_has_the_same_bits(self):
        for deck, more in ((harness.DECK, RESNET), (GPT, ())):
            self.write_deck(deck)
            for shard in SHARDS:
                name = "%s-%d" % (shard, len(deck))
                arguments = (
                    *more,
                    *NARROW,
                    "--set",
                    "parallel.bucket_mb=0.02",
                    "--set",
                    "parallel.shard=" + shard,
                    "--set",
                    "evaluate.every=4 steps",
                    "--set",
                    "checkpoint.every=4 steps",
                )
                self.run_in("whole-" + name, *arguments, ranks=2)
                self.run_in("cut-" + name, *arguments, ranks=2, stop=4)
                self.run_in("cut-" + name, *arguments, ranks=2)
                self.assertEqual(self.digest("cut-" + name), self.digest("whole-" + name), name)

    def test_it_may_be_taken_up_and_left_at_a_restart(self):
        every = (
            "--set",
            "evaluate.every=4 steps",
            "--set",
            "checkpoint.every=4 steps",
            "--set",
            "schedule.warmup=1 step",
        )
        self.run_in("run", *every, ranks=2, stop=4)
        self.run_in("run", *every, *NARROW, ranks=2)
        self.run_in("run", *every, ranks=2, stop=12)
        self.assertEqual(len(harness.read_rows(self.path("run"), "train")), 12)

    def test_a_rank_alone_rounds_nothing(self):
        self.run_in("float32", "--set", "checkpoint.every=8 steps", ranks=1)
        self.run_in("bfloat16", "--set", "checkpoint.every=8 steps", *NARROW, ranks=1)
        self.assertEqual(self.digest("bfloat16"), self.digest("float32"))

    def test_a_gradient_that_is_not_finite_is_seen_by_all(self):
        for shard in SHARDS:
            rows = self.run_in(
                shard,
                *NARROW,
                *ALIKE,
                "--set",
                "parallel.shard=" + shard,
                "--allow-faults",
                "--set",
                "debug.fault=nan rank 1 step 3",
                ranks=2
            )
            self.assertEqual([row["skipped"] for row in rows], [0, 0, 1, 0, 0, 0, 0, 0], shard)
            self.assert_alike(shard)


if __name__ == "__main__":
    harness.main(at_once=2)
