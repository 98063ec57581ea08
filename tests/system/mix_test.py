# SPDX-License-Identifier: Apache-2.0
"""Tests training with erased and mixed images: the same bits at every layout, plain evaluations."""

import os

import harness

MIX = """erase = { probability = 0.5 }
mixup = 0.4
cutmix = 1.0
"""
LAST = "checkpoints/step_000000020.h5"
RESIZED = (
    ("random_crop = 2", "random_resized_crop = { size = 10, scale = [0.5, 1.0] }\n"),
    ("[batch]", "evaluate = { resize = 11, crop = 10 }\n[batch]"),
)


class Mix(harness.Case):
    def setUp(self):
        super().setUp()
        self.deck = harness.DECK.replace("[batch]", MIX + "[batch]")
        # The rate does not depend on the length of the run.
        for old, new in (('kind = "cosine"', 'kind = "constant"'), ('warmup = "5 steps"\n', "")):
            self.deck = self.deck.replace(old, new)
        self.deck = self.deck.replace('every = "5 steps"', 'every = "20 steps"')
        self.write_deck(self.deck)

    def digest(self, folder, *words, ranks=1):
        self.train("--set", "run.folder=" + folder, *words, ranks=ranks)
        return harness.digest(self.path(folder, LAST))

    def check_bits(self):
        digests = {
            "one": self.digest("one"),
            "two": self.digest("two", ranks=2),
            "four": self.digest("four", ranks=4),
            "workers": self.digest("workers", "--set", "data.workers=4"),
        }
        # A run that is stopped, and goes on at another number of ranks.
        self.train("--set", "run.folder=stopped", "--set", "run.stop=11 steps", ranks=2)
        digests["stopped"] = self.digest("stopped", ranks=4)
        self.assertEqual(len(set(digests.values())), 1, digests)

    def test_the_bits_are_those_of_every_layout(self):
        self.check_bits()

    def test_the_bits_after_a_resized_crop_are_those_of_every_layout(self):
        for old, new in RESIZED:
            self.deck = self.deck.replace(old, new)
        self.write_deck(self.deck)
        self.check_bits()

    def test_a_device_with_its_own_memory_has_the_bits_of_the_cpu(self):
        emulated = ("--allow-faults", "--set", "debug.device=emulated")
        self.assertEqual(self.digest("cpu"), self.digest("device", *emulated))

    def test_the_stages_of_a_pipeline_draw_the_same(self):
        """Tests losses to rounding: batch norm amplifies the last bits, hence a small rate."""
        more = ("--set", "schedule.rate=0.01", "--set", "loss.label_smoothing=0.1")
        losses = {}
        for stages in (1, 2):
            folder = "stages-%d" % stages
            words = ("--set", "run.folder=" + folder, "--set", "parallel.pipeline=%d" % stages)
            self.train(*words, *more, ranks=stages)
            losses[stages] = harness.losses(self.path(folder))
        self.assertEqual(len(losses[1]), 20)
        for step, (a, b) in enumerate(zip(losses[1], losses[2], strict=True), 1):
            self.assertLess(abs(a - b) / abs(a), 1e-5, "step %d: %r and %r" % (step, a, b))

    def test_each_key_has_an_effect_and_a_restart_may_change_it(self):
        def first_loss(folder, *words):
            stop = ("--set", "run.folder=" + folder, "--set", "run.stop=1 step")
            self.train(*stop, *words)
            return harness.losses(self.path(folder))[0]

        losses = {first_loss("all")}
        for key in ("erase", "mixup", "cutmix"):
            losses.add(first_loss(key, "--set", "data.augment.%s=false" % key))
        self.assertEqual(len(losses), 4, losses)
        words = ("--set", "run.folder=all", "--set", "run.stop=2 steps")
        text = self.train(*words, "--set", "data.augment.mixup=false").text
        self.assertIn("changed since the checkpoint: data.augment.mixup: 0.4 -> ", text)
        with open(self.path("all", "deck.toml")) as file:
            stored = file.read()
        self.assertIn(
            "erase = { probability = 0.5, scale = [0.02, 0.33], ratio = [0.3, 3.3] }", stored
        )
        self.assertIn("cutmix = 1.0", stored)

    def test_evaluations_are_plain(self):
        self.train("--set", "run.stop=5 steps", "--set", "loss.label_smoothing=0.1")
        row = harness.read_rows(self.path("run"), "evaluate")[0]
        checkpoint = ("--checkpoint", "run/checkpoints/step_000000005.h5", "--split", "validation")
        off = ("erase=false", "mixup=false", "cutmix=false", "flip=false", "random_crop=0")
        plain = sum((("--set", "data.augment." + word) for word in off), ())
        odd = ("--set", "batch.micro=15", "--set", "batch.global=60")
        for words in ((), plain, odd):
            text = harness.run("evaluate", "deck.toml", *checkpoint, *words, cwd=self.folder).text
            self.assertIn("loss %.6f" % row["loss"], text)

    def test_what_cannot_be_mixed_is_refused(self):
        odd = ("--set", "batch.micro=15", "--set", "batch.global=60")
        text = self.train(*odd, expect=2).text
        self.assertIn(
            "batch.micro = 15 is odd, but data.augment.mixup mixes the samples of a micro-batch in "
            "pairs; use batch.micro = 12 or 20",
            text,
        )
        self.assertFalse(os.path.exists(self.path("run")))
        self.write_deck(harness.GPT_DECK + "[data.augment]\nmixup = 0.2\n", "gpt.toml")
        text = self.train(expect=2, deck="gpt.toml").text
        self.assertIn("[data.augment] mixup: belongs to image models", text)


if __name__ == "__main__":
    harness.main(at_once=2)
