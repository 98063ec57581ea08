# SPDX-License-Identifier: Apache-2.0
"""Tests parallel.sync_batch_norm: loss curves of groups, restarts, the log, and refusals."""

import json

import harness


def with_settings(*settings):
    return [word for setting in settings for word in ("--set", setting)]


class SyncBatchNorm(harness.Case):
    def losses_at(self, folder, ranks, micro, group, *more):
        """Trains 10 steps of the same 64 samples each; returns the losses and the log."""
        result = self.train(
            *with_settings(
                "run.folder=" + folder,
                "run.stop=10 steps",
                "schedule.kind=constant",
                "schedule.rate=0.01",
                "schedule.warmup=1 step",
                "batch.micro=%d" % micro,
                "parallel.sync_batch_norm=%s" % group,
                *more
            ),
            ranks=ranks
        )
        return harness.losses(self.path(folder)), result.text

    def last_digest(self, folder):
        return harness.digest(
            self.path(folder, "checkpoints", harness.checkpoints(self.path(folder))[-1])
        )

    def expect_close(self, one, many):
        """Float32 sums in another order: the tolerance of layouts_test.py."""
        self.assertEqual(len(one), len(many))
        for step, (a, b) in enumerate(zip(one, many), 1):
            self.assertLess(abs(a - b), 1e-5 * a, "step %d" % step)

    def test_a_group_trains_as_one_rank_with_its_micro_batches(self):
        """Several micro-batches a step, of which the ranks of a group take turns."""
        one, text = self.losses_at("one", 1, 16, "false")
        self.assertNotIn("neighboring data ranks", text)
        for name, ranks, micro, group, more in (
            ("all", 2, 8, "true", ()),
            ("four", 4, 4, "true", ()),
            ("pairs", 4, 8, "2", ()),
            ("shards", 2, 8, "2", ("parallel.shard=parameters", "parallel.recompute=all")),
            ("stages", 4, 8, "true", ("parallel.pipeline=2",)),
        ):
            with self.subTest(layout=name):
                many, text = self.losses_at(name, ranks, micro, group, *more)
                self.expect_close(one, many)
                self.assertIn(
                    "batch norm: statistics of %d neighboring data ranks, 16 samples; a replica"
                    % (16 // micro),
                    text,
                )
        other, text = self.losses_at("other", 2, 8, "false")
        self.assertGreater(abs(one[0] - other[0]), 1e-3 * one[0])
        self.assertIn("parallel.sync_batch_norm joins those of data ranks", text)
        # Evaluations use the running statistics.
        evaluated = [harness.read_rows(self.path(name), "evaluate") for name in ("one", "all")]
        for a, b in zip(*evaluated, strict=True):
            self.assertLess(abs(a["loss"] - b["loss"]), 1e-4 * a["loss"])

    def test_a_restart_gives_the_bits_of_a_run_that_was_never_stopped(self):
        self.losses_at("whole", 2, 8, "true")
        self.losses_at("parts", 2, 8, "true", "run.stop=5 steps")
        self.losses_at("parts", 2, 8, "true")
        self.assertEqual(self.last_digest("whole"), self.last_digest("parts"))

    def test_recomputation_and_the_emulated_device_keep_the_bits(self):
        self.losses_at("plain", 2, 8, "true")
        self.losses_at("again", 2, 8, "true", "parallel.recompute=all")
        self.assertEqual(self.last_digest("plain"), self.last_digest("again"))
        if harness.DEVICE:
            return
        result = self.train(
            "--allow-faults",
            *with_settings(
                "run.folder=device",
                "run.stop=10 steps",
                "schedule.kind=constant",
                "schedule.rate=0.01",
                "schedule.warmup=1 step",
                "batch.micro=8",
                "parallel.sync_batch_norm=true",
                "debug.device=emulated",
            ),
            ranks=2
        )
        self.assertIn("CUDA graphs", result.text)
        self.assertEqual(self.last_digest("plain"), self.last_digest("device"))

    def test_a_restart_may_change_the_group(self):
        """Also on one rank, where there is no group. An evaluation ignores the key."""
        self.losses_at("run", 2, 8, "true", "run.stop=5 steps")
        for ranks, group in ((4, "2"), (1, "false")):
            result = self.train(
                *with_settings(
                    "run.stop=%d steps" % (10 if ranks == 4 else 15),
                    "batch.micro=8",
                    "parallel.sync_batch_norm=" + group,
                ),
                ranks=ranks
            )
            self.assertIn("parallel.sync_batch_norm", result.text)
        self.losses_at("single", 2, 8, "true", "run.stop=5 steps")
        result = harness.run(
            "evaluate",
            self.path("single/deck.toml"),
            "--checkpoint",
            self.path("single/checkpoints/step_000000005.h5"),
            cwd=self.folder,
        )
        self.assertEqual(result.returncode, 0, result.text)

    def test_check_states_the_group_and_its_bytes(self):
        result = harness.run(
            "check",
            "deck.toml",
            "--ranks",
            "4",
            "--json",
            *with_settings("parallel.sync_batch_norm=2", "batch.micro=8"),
            cwd=self.folder
        )
        self.assertEqual(result.returncode, 0, result.text)
        report = json.loads(result.stdout)
        self.assertEqual(report["norm"]["ranks"], 2)
        # Depth 8, width 8: norms of 8 + 2 x 8, 3 x 16 and 3 x 32 channels; 24 bytes a channel in
        # each of two micro-batches.
        self.assertEqual(report["norm"]["bytes_per_step"], (24 + 48 + 96) * 24 * 2)
        # Without --ranks: the fewest that the deck allows.
        result = harness.run(
            "check", "deck.toml", *with_settings("parallel.sync_batch_norm=true"), cwd=self.folder
        )
        self.assertEqual(result.returncode, 0, result.text)
        self.assertIn("2 ranks = 2 data", result.stdout)

    def test_layouts_without_groups_are_refused(self):
        for ranks, group, more, saying in (
            (
                1,
                "true",
                (),
                "several data ranks, but here is 1 data rank; use sync_batch_norm = false",
            ),
            (4, "3", ("batch.micro=4",), "3 does not divide 4 data ranks"),
            (2, "true", ("model.norm=group",), "takes those of each sample by itself"),
            (2, "2", ("parallel.sync=every 2 steps",), "each data rank trains by itself"),
        ):
            result = harness.run(
                "train",
                "deck.toml",
                *with_settings("parallel.sync_batch_norm=" + group, *more),
                ranks=ranks,
                cwd=self.folder
            )
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn("parallel.sync_batch_norm", result.text)
            self.assertIn(saying, result.text)


if __name__ == "__main__":
    harness.main(at_once=2)
