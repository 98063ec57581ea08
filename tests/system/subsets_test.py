# SPDX-License-Identifier: Apache-2.0
"""Tests `data.samples` and `evaluate.subset`, and the report of a rate that jumps at a restart."""

import harness

LAST = "checkpoints/step_%09d.h5"


class Subsets(harness.Case):
    def setUp(self):
        super().setUp()
        self.write_deck(harness.DECK.replace('test = "data/test"\n', ""))

    def words(self, **settings):
        words = ["--set", "data.augment.random_crop=0", "--set", "data.augment.flip=false"]
        for key, value in settings.items():
            words += ["--set", "%s=%s" % (key.replace("__", "."), value)]
        return words

    def evaluations(self, folder="run"):
        rows = harness.read_rows(self.path(folder), "evaluate")
        return [(r["step"], r["split"], r["samples"], r["loss"], r["top1"]) for r in rows]

    def test_a_few_samples_are_learned_by_heart(self):
        words = self.words(data__samples=64, schedule__rate=0.2, run__stop="30 epochs")
        text = self.train(*words).text
        self.assertIn("64 of 640 samples (data.samples)", text)
        losses = harness.losses(self.path("run"))
        self.assertEqual(len(losses), 30)  # an epoch has one step
        self.assertLess(losses[-1], 0.1 * losses[0])
        # The same samples, and bits, at two ranks.
        self.train(*words, "--set", "run.folder=two", ranks=2)
        self.assertEqual(harness.losses(self.path("two")), losses)
        # They are not simply the first ones.
        harness.make_dataset(self.path("first"), 64, shards=1)
        words = self.words(data__shuffle="none", run__stop="5 steps")
        self.train(*words, "--set", "data.samples=64", "--set", "run.folder=some")
        self.train(*words, "--set", "data.train=first", "--set", "run.folder=first-run")
        self.train(*words, "--set", "run.folder=all")
        of = [harness.losses(self.path(folder))[0] for folder in ("some", "first-run", "all")]
        self.assertNotEqual(of[0], of[1])
        self.assertEqual(of[1], of[2])  # a step of all samples begins with these

    def test_samples_are_a_part_of_the_identity_of_the_data(self):
        self.train(*self.words(data__samples=128, run__stop="6 steps"))
        text = self.train(*self.words(run__stop="8 steps"), expect=2).text
        self.assertIn("a restart may not change data.samples: 128 -> 0", text)
        for samples, message in (
            (641, "data.samples = 641: data.train = \"data/train\" holds only 640 samples"),
            (63, "data.samples = 63 is less than batch.global = 64, so no epoch has a step of it"),
        ):  # fmt: skip
            words = self.words(data__samples=samples, run__folder="none")
            self.assertIn(message, self.train(*words, expect=2).text)

    def test_evaluations_of_a_subset_leave_the_run_as_it_is(self):
        self.train(*self.words())
        words = self.words(evaluate__subset=30, run__folder="some")
        self.train(*words)
        self.assertEqual(
            [row[:3] for row in self.evaluations("some")],
            [(5, "validation-subset", 30), (10, "validation-subset", 30),
             (15, "validation-subset", 30), (20, "validation", 90)],
        )  # fmt: skip
        # The last evaluation and the weights are those of a run without a subset.
        self.assertEqual(self.evaluations("some")[-1], self.evaluations()[-1])
        last = LAST % 20
        self.assertEqual(
            harness.digest(self.path("some", last)), harness.digest(self.path("run", last))
        )
        with open(self.path("some/deck.toml"), encoding="utf-8") as file:
            self.assertIn('best = "none"', file.read())
        # The same samples at two ranks, and after a stop.
        parts = self.words(evaluate__subset=30, run__folder="parts")
        self.train(*parts, "--set", "run.stop=7 steps", "--set", "schedule.length=20 steps")
        self.train(*parts, ranks=2)
        found = [row for row in self.evaluations("parts") if row[0] != 7]
        self.assertEqual(found, self.evaluations("some"))

    def test_wrong_subsets_are_refused(self):
        for settings, message in (
            (
                {"checkpoint__best": "top1"},
                "30 samples are too few to decide which checkpoint is the best",
            ),
            ({"schedule__kind": "plateau"}, "30 samples are too few to decide about the rate"),
            ({"data__validation": '""'}, "30 samples of data.validation, which is missing"),
            ({"evaluate__subset": 90}, "evaluate.subset = 90: data.validation holds only 90"),
        ):
            words = self.words(**{"evaluate__subset": 30, **settings})
            self.assertIn(message, self.train(*words, expect=2).text)
            check = harness.run("check", "deck.toml", *words, cwd=self.folder)
            self.assertEqual(check.returncode, 2, check.text)
            self.assertIn(message, check.text)

    def test_a_rate_that_jumps_at_a_restart_is_reported(self):
        words = ("--set", "schedule.kind=constant")
        self.train(*words, "--set", "run.stop=6 steps")
        text = self.train(*words, "--set", "run.stop=8 steps", "--set", "schedule.rate=0.15").text
        self.assertNotIn("by the deck of the checkpoint", text)
        text = self.train(*words, "--set", "run.stop=10 steps", "--set", "schedule.rate=0.31").text
        detail = "the learning rate of step 9 is 0.31, by the deck of the checkpoint it was 0.15"
        self.assertIn(detail, text)
        events = harness.read_rows(self.path("run"), "event")
        self.assertEqual([r["detail"] for r in events if r["event"] == "rate_jump"], [detail])


if __name__ == "__main__":
    harness.main(at_once=2)
