# SPDX-License-Identifier: Apache-2.0
"""Tests debug.device = "emulated": the host acts as a device whose memory the host may not touch.

Losses, weights, evaluations and texts have the same bits as on the CPU, through checkpoints and
restarts.
"""

import os

import harness

EMULATED = ("--allow-faults", "--set", "debug.device=emulated")
FIVE, TEN = "checkpoints/step_000000005.h5", "checkpoints/step_000000010.h5"
RESNET = harness.DECK.replace('stop = "20 steps"', 'stop = "10 steps"').replace(
    "global = 64", "global = 32"
)
GPT = (
    harness.GPT_DECK.replace('stop = "6 steps"', 'stop = "10 steps"')
    .replace("seed = 3", "seed = 3\ndeterministic = true")
    .replace("width = 16", "width = 16\ndropout = 0.1")
    .replace('every = "3 steps"', 'every = "5 steps"')
    .replace('every = "2 steps"', 'every = "5 steps"')
)


class Emulated(harness.Case):
    samples = 320

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        harness.make_text(cls.shared + "/text")

    def write(self, deck):
        self.write_deck(deck.replace('"text/', '"data/text/'))

    def said(self, *arguments, ranks=1):
        result = harness.run(*arguments, ranks=ranks, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return result.stdout

    def trained(self, folder, *arguments, ranks=1):
        """Returns the results of an existing run."""
        self.train("--set", "run.folder=" + folder, *arguments, ranks=ranks)
        rows = [
            {
                key: row.get(key)
                for key in ("step", "split", "loss", "top1", "perplexity", "grad_norm")
            }
            for row in harness.read_rows(self.path(folder))
            if "loss" in row
        ]
        return rows, harness.digest(self.path(folder, TEN))

    def expect_same_through_a_restart(self):
        rows, digest = self.trained("cpu")
        self.assertGreater(len(rows), 10)
        # Trains the first half and resumes; checkpoints are written once in the background, once
        # between steps.
        self.train(
            "--set",
            "run.folder=halves",
            "--set",
            "schedule.length=10 steps",
            "--set",
            "run.stop=5 steps",
            "--set",
            "checkpoint.async=false",
            *EMULATED
        )
        self.assertEqual(
            harness.digest(self.path("halves", FIVE)), harness.digest(self.path("cpu", FIVE))
        )
        halves, again = self.trained("halves", *EMULATED)
        self.assertEqual(again, digest)
        with open(self.path("halves", "log.txt")) as log:
            self.assertRegex(log.read(), r"kernel launches replayed \(\d+ graphs\)")
        self.assertEqual(
            [row for row in halves if row["step"] != 5], [row for row in rows if row["step"] != 5]
        )
        # The CPU resumes from the state of the device.
        self.assertEqual(self.trained("onward", "--restart", "halves/" + FIVE)[1], digest)

    def test_images_through_a_restart(self):
        self.write(RESNET)
        self.expect_same_through_a_restart()
        texts = [
            self.said(
                "evaluate", "deck.toml", "--checkpoint", "cpu/" + TEN, "--split", "test", *more
            )
            for more in ((), EMULATED[1:])
        ]
        self.assertIn("70 samples", texts[0])
        self.assertEqual(texts[0], texts[1])
        joined = ("--set", "debug.joined_norms=true")
        self.assertEqual(
            self.trained("joined-emulated", *joined, *EMULATED), self.trained("joined", *joined)
        )

    def test_a_language_model_through_a_restart(self):
        self.write(GPT)
        self.expect_same_through_a_restart()
        texts = [
            self.said("evaluate", "deck.toml", "--checkpoint", "cpu/" + TEN, *more)
            for more in ((), EMULATED[1:])
        ]
        self.assertEqual(texts[0], texts[1])
        fused = ("--set", "debug.fused_softmax=true", "--set", "precision.compute=bfloat16")
        self.assertEqual(
            self.trained("fused-emulated", *fused, *EMULATED), self.trained("fused", *fused)
        )
        # The deck in the checkpoint sets the device.
        self.train("--set", "run.folder=emulated", *EMULATED)
        texts = [
            self.said("generate", folder + "/" + TEN, "--prompt", "so", "--tokens", "20")
            for folder in ("cpu", "emulated")
        ]
        self.assertEqual(texts[0], texts[1])
        self.assertGreater(len(texts[0]), 20)

    def test_ranks_whose_memory_travels_by_way_of_the_host(self):
        self.write(GPT)
        for ranks, layout in (
            (2, {"tensor": 2, "sequence": "true"}),
            (2, {"pipeline": 2}),
            (4, {"tensor": 2, "pipeline": 2}),
            (2, {"shard": '"parameters"'}),
        ):
            with self.subTest(ranks=ranks, layout=layout):
                settings = [
                    word
                    for key, value in layout.items()
                    for word in ("--set", "parallel.%s=%s" % (key, value))
                ]
                name = "-".join(layout)
                on_cpu = self.trained(name, *settings, ranks=ranks)
                self.assertEqual(
                    self.trained(name + "-emulated", *settings, *EMULATED, ranks=ranks), on_cpu
                )

    def test_sharded_images_of_four_ranks(self):
        self.write(RESNET.replace("micro = 16", "micro = 4"))
        settings = (
            "--set",
            'parallel.shard="gradients"',
            "--set",
            'parallel.offload=["optimizer"]',
        )
        on_cpu = self.trained("cpu", *settings, ranks=4)
        self.assertEqual(self.trained("emulated", *settings, *EMULATED, ranks=4), on_cpu)

    def test_a_checkpoint_is_of_its_step_while_steps_go_on(self):
        """Tests that a background checkpoint has the state of its step.

        Writer threads are delayed before they wait for the copies. The device makes the copies as
        late as it may: just before the state changes.
        """
        images, text = RESNET.replace("micro = 16", "micro = 4"), GPT.replace(
            'kind = "adamw"', 'kind = "lamb"'
        )
        slow = (
            "--set",
            "debug.fault="
            + "; ".join(
                "sleep 1 rank %d step 1..10 phase checkpoint-copy" % rank for rank in range(2)
            ),
        )
        for name, deck, settings in (
            ("averages", images, {"optimizer.ema": 0.9}),
            ("delayed", text, {"parallel.sync": '"delayed"'}),
            (
                "periodic",
                text,
                {
                    "parallel.sync": '"every 5 steps"',
                    "parallel.outer_momentum": 0.5,
                    "optimizer.ema": 0.9,
                },
            ),
            ("shards", images, {"parallel.shard": '"gradients"'}),
            ("stages", text, {"parallel.pipeline": 2}),
            (
                "offload",
                text,
                {
                    "parallel.shard": '"parameters"',
                    "parallel.offload": '["optimizer", "parameters"]',
                },
            ),
        ):
            with self.subTest(name):
                self.write(deck)
                settings = [
                    word
                    for key, value in settings.items()
                    for word in ("--set", "%s=%s" % (key, value))
                ]
                on_cpu = self.trained(name, *settings, ranks=2)
                self.assertEqual(
                    self.trained(name + "-emulated", *settings, *EMULATED, *slow, ranks=2), on_cpu
                )
                written = harness.checkpoints(self.path(name))
                self.assertEqual(len(written), 2)
                for one, other in (
                    [
                        harness.digest(self.path(folder, "checkpoints", file))
                        for folder in (name, name + "-emulated")
                    ]
                    for file in written
                ):
                    self.assertEqual(one, other)

    def test_evaluations_longer_than_their_sums_are_kept(self):
        # the test set has 70 micro-batches; 64 are read at once
        self.write(RESNET.replace("global = 32", "global = 4").replace("micro = 16", "micro = 1"))
        for settings in ((), ("--set", "optimizer.ema=0.9")):
            with self.subTest(settings=settings):
                name = "cpu%d" % len(settings)
                on_cpu = self.trained(name, *settings)
                self.assertIn("test", [row["split"] for row in on_cpu[0]])
                self.assertEqual(self.trained(name + "-emulated", *settings, *EMULATED), on_cpu)

    def test_a_step_that_is_not_applied_is_heard_of_behind_the_next(self):
        self.write(RESNET)
        fault = ("--allow-faults", "--set", "debug.fault=nan rank 1 step 3..4")
        on_cpu = self.trained("cpu", *fault, ranks=2)
        self.assertEqual(self.trained("emulated", *fault, *EMULATED[1:], ranks=2), on_cpu)
        for folder in ("cpu", "emulated"):
            self.assertEqual(
                [
                    row["step"]
                    for row in harness.read_rows(self.path(folder))
                    if row.get("event") == "skipped_step"
                ],
                [3, 4],
            )

    def test_bad_steps_roll_back_one_step_later(self):
        self.write(RESNET)
        fault = (
            "--allow-faults",
            "--set",
            "debug.fault=nan rank 0 step 7..8",
            "--set",
            "health.rollback_after=2",
            "--set",
            "checkpoint.every=3 steps",
        )
        for folder, more, seen in (("cpu", (), 8), ("emulated", EMULATED[1:], 9)):
            with self.subTest(folder):
                result = self.train("--set", "run.folder=" + folder, *fault, *more, ranks=2)
                self.assertIn("rolled back from step %d to 6" % seen, result.text)
                steps = [row["step"] for row in harness.read_rows(self.path(folder), "train")]
                self.assertEqual(steps, [*range(1, seen + 1), *range(7, 11)])

    def test_it_is_for_tests(self):
        result = harness.run(
            "train", "deck.toml", "--set", "debug.device=emulated", cwd=self.folder
        )
        if result.returncode == 2:  # a test build allows it
            self.assertIn("--allow-faults", result.text)
            self.assertFalse(os.path.exists(self.path("run")))

    def test_a_cuda_device_that_is_not_there_is_said_to_be_missing(self):
        result = harness.run("train", "deck.toml", "--set", "run.device=cuda", cwd=self.folder)
        if result.returncode != 0:  # on a machine with a GPU
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.text, "no CUDA device: .+ CPU")


if __name__ == "__main__":
    harness.main(at_once=3)
