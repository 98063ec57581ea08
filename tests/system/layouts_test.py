# SPDX-License-Identifier: Apache-2.0
"""Tests one deck at 1, 2 and 4 ranks: equal losses up to rounding, equal bits if deterministic."""

import harness


class Layouts(harness.Case):
    def losses_at(self, ranks, steps, rate, name, *more):
        folder = "run-%s-%d" % (name, ranks)
        self.train(
            "--set",
            "run.folder=" + folder,
            "--set",
            "run.stop=%d steps" % steps,
            "--set",
            "schedule.kind=constant",
            "--set",
            "schedule.rate=%g" % rate,
            "--set",
            "schedule.warmup=1 step",
            *more,
            ranks=ranks
        )
        return harness.losses(self.path(folder))

    def check_close(self, steps, rate, name):
        """Checks losses against one rank.

        Another order of additions changes the last bits, and batch norm of small batches amplifies
        them. Hence few steps at the deck's rate, and more at a tenth of it. On devices only
        deterministic runs keep the order of additions.
        """
        plain = ("--set", "run.deterministic=%s" % ("true" if harness.DEVICE else "false"))
        one = self.losses_at(1, steps, rate, name, *plain)
        self.assertEqual(len(one), steps)
        for ranks in (2, 4):
            many = self.losses_at(ranks, steps, rate, name, *plain)
            for step, (a, b) in enumerate(zip(one, many, strict=True), 1):
                self.assertLess(
                    abs(a - b) / abs(a), 1e-5, "%d ranks, step %d: %r and %r" % (ranks, step, a, b)
                )

    def test_losses_agree_at_the_decks_rate(self):
        self.check_close(4, 0.1, "rate")

    def test_losses_agree_over_twenty_steps_at_a_tenth_of_it(self):
        self.check_close(20, 0.01, "tenth")

    def test_three_replicas_agree_to_rounding_over_the_first_steps(self):
        """Tests a number of ranks that is no power of two: the order of additions differs from one
        rank."""
        plain = ("--set", "run.deterministic=false", "--set", "batch.global=48")
        for a, b in zip(
            self.losses_at(1, 4, 0.01, "three", *plain),
            self.losses_at(3, 4, 0.01, "three", *plain),
            strict=True,
        ):
            self.assertLess(abs(a - b) / abs(a), 1e-5)

    def test_deterministic_runs_have_the_same_bits(self):
        digests, curves = {}, {}
        for ranks in (1, 2, 4):
            curves[ranks] = self.losses_at(ranks, 20, 0.1, "bits")
            digests[ranks] = harness.digest(
                self.path("run-bits-%d/checkpoints/step_000000020.h5" % ranks)
            )
        self.assertEqual(len(set(digests.values())), 1, digests)
        self.assertEqual(curves[1], curves[2])
        self.assertEqual(curves[1], curves[4])

    def test_deterministic_bfloat16_too(self):
        digests = set()
        for ranks in (1, 2, 4):
            self.losses_at(ranks, 6, 0.1, "bf16", "--set", "precision.compute=bfloat16")
            digests.add(
                harness.digest(self.path("run-bf16-%d/checkpoints/step_000000006.h5" % ranks))
            )
        self.assertEqual(len(digests), 1)

    def test_deterministic_with_winograds_algorithm_too(self):
        """Tests layers of 32 and 64 channels, which use Winograd's algorithm where the program was
        built for AVX-512. winograd_test.cpp holds that these layers do."""
        width = ("--set", "model.width=32")
        digests = set()
        for ranks in (1, 2):
            self.losses_at(ranks, 2, 0.1, "wide", *width)
            digests.add(
                harness.digest(self.path("run-wide-%d/checkpoints/step_000000002.h5" % ranks))
            )
        self.assertEqual(len(digests), 1)

    def test_an_odd_number_of_replicas_repeats_itself(self):
        more = ("--set", "batch.global=48")
        self.losses_at(3, 6, 0.1, "odd-a", *more)
        self.losses_at(3, 6, 0.1, "odd-b", *more)
        self.assertEqual(
            harness.digest(self.path("run-odd-a-3/checkpoints/step_000000006.h5")),
            harness.digest(self.path("run-odd-b-3/checkpoints/step_000000006.h5")),
        )

    def test_another_seed_is_another_run(self):
        a = self.losses_at(1, 3, 0.1, "seed-a")
        b = self.losses_at(1, 3, 0.1, "seed-b", "--set", "run.seed=8")
        self.assertNotEqual(a, b)

    def test_evaluation_counts_every_sample_once(self):
        for ranks in (1, 2, 4):
            self.losses_at(ranks, 5, 0.1, "evaluate")
        rows = [
            harness.read_rows(self.path("run-evaluate-%d" % ranks), "evaluate")
            for ranks in (1, 2, 4)
        ]
        self.assertEqual([row["split"] for row in rows[0]], ["validation", "test"])
        for row in rows[0] + rows[1] + rows[2]:
            self.assertEqual(row["samples"], {"validation": 90, "test": 70}[row["split"]])
        for other in rows[1:]:
            for a, b in zip(rows[0], other, strict=True):
                self.assertEqual((a["loss"], a["top1"]), (b["loss"], b["top1"]))


if __name__ == "__main__":
    harness.main(at_once=3)
