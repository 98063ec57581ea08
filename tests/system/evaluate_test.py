# SPDX-License-Identifier: Apache-2.0
"""Tests `evaluate`: the numbers of the run at any layout, and layouts that it refuses."""

import csv
import json
import os
import unittest
import xml.etree.ElementTree

import harness

CHECKPOINT = "run/checkpoints/step_000000005.h5"


class Evaluate(harness.Case):
    """All tests evaluate one run."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with open(cls.shared + "/deck.toml", "w") as file:
            file.write(harness.DECK)
        os.symlink(".", cls.shared + "/data")
        words = ("train", "deck.toml", "--set", "run.stop=5 steps", *harness.DEVICE)
        result = harness.run(*words, cwd=cls.shared)
        if result.returncode != 0:
            raise RuntimeError(result.text)
        cls.said = result.text
        rows = harness.read_rows(cls.shared + "/run", "evaluate")
        cls.rows = {row["split"]: row for row in rows}

    def evaluate(self, *arguments, ranks=1):
        words = ("evaluate", "run/deck.toml", "--checkpoint", CHECKPOINT, *arguments)
        result = harness.run(*words, ranks=ranks, cwd=self.shared)
        self.assertEqual(result.returncode, 0, result.text)
        return result.stdout

    def test_it_gives_the_numbers_of_the_run(self):
        self.assertEqual(set(self.rows), {"validation", "test"})
        for split, row in self.rows.items():
            meant = "%s: loss %.6f, top-1 %.2f %%, top-5 %.2f %%, %d samples\n" % (
                split,
                row["loss"],
                100 * row["top1"],
                100 * row["top5"],
                row["samples"],
            )
            for ranks in (1, 2, 4):
                said = self.evaluate("--split", split, ranks=ranks)
                self.assertEqual(
                    said.count("\n" + meant) + said.startswith(meant),
                    1,
                    "%d ranks: %s" % (ranks, said),
                )

    def test_it_prints_the_row_of_the_run_as_json(self):
        row = self.rows["validation"]
        for ranks in (1, 2):
            found = json.loads(self.evaluate("--json", ranks=ranks))
            self.assertEqual(found.pop("checkpoint"), CHECKPOINT)
            self.assertAlmostEqual(found.pop("loss"), row["loss"], places=9)
            self.assertNotIn("perplexity", row)
            self.assertEqual(len(found.pop("classes")), 5)
            self.assertTrue(0 <= found.pop("calibration_error") <= 1)
            self.assertEqual(found, {key: row[key] for key in ("split", "samples", "top1", "top5")})

    def confusion(self, name, *words, ranks=1):
        """Returns the JSON object and the rows of the CSV file."""
        words = ("--split", "test", "--json", "--set", "batch.micro=7", *words)
        found = json.loads(self.evaluate(*words, "--confusion", name, ranks=ranks))
        with open(os.path.join(self.shared, name), newline="") as file:
            return found, list(csv.reader(file))

    def test_scores_of_classes_are_those_of_the_confusion_matrix(self):
        found, rows = self.confusion("one.csv")
        self.assertEqual(rows[0], ["true\\predicted", *"01234"])
        self.assertEqual([row[0] for row in rows[1:]], list("01234"))
        counts = [[int(cell) for cell in row[1:]] for row in rows[1:]]
        self.assertEqual(sum(map(sum, counts)), found["samples"])
        correct = sum(counts[i][i] for i in range(5))
        self.assertAlmostEqual(correct / found["samples"], found["top1"], places=12)
        self.assertGreater(len({row["accuracy"] for row in found["classes"]}), 1)
        for i, row in enumerate(found["classes"]):
            samples, predicted = sum(counts[i]), sum(line[i] for line in counts)
            self.assertEqual(row["name"], str(i))
            self.assertEqual(
                (row["samples"], row["predicted"], row["correct"]),
                (samples, predicted, counts[i][i]),
            )
            self.assertEqual(row["accuracy"], row["recall"])
            for key, whole, part in (
                ("recall", samples, 1),
                ("precision", predicted, 1),
                ("f1", samples + predicted, 2),
            ):
                if whole == 0:
                    self.assertIsNone(row[key])
                else:
                    self.assertAlmostEqual(row[key], part * counts[i][i] / whole, places=12)
        for ranks in (2, 3):
            other, cells = self.confusion("%d.csv" % ranks, ranks=ranks)
            self.assertEqual(cells, rows)
            self.assertEqual(other["classes"], found["classes"])
            for key in ("loss", "calibration_error"):
                self.assertAlmostEqual(other[key], found[key], delta=1e-6)

    def test_table_names_the_worst_class_first(self):
        words = ("--split", "test", "--confusion", "table.svg")
        lines = self.evaluate(*words).splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("class "))
        recalls = [float(line.split()[3]) for line in lines[start + 1 : start + 6]]
        self.assertEqual(recalls, sorted(recalls))
        self.assertRegex(lines[-2], r"^calibration error \d+\.\d{3} % \(15 bins\)$")
        self.assertTrue(lines[-1].startswith("test: loss "))
        # It is well-formed, has a title in each cell that is not empty, and is replaced.
        picture = xml.etree.ElementTree.parse(os.path.join(self.shared, "table.svg")).getroot()
        titles = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}title")]
        self.assertEqual(sum(int(text.split(": ")[1]) for text in titles[1:]), 70)
        self.evaluate(*words)

    def test_a_run_ends_with_the_worst_classes_of_its_last_evaluation(self):
        found = json.loads(self.evaluate("--split", "test", "--json"))["classes"]
        expected = sorted(found, key=lambda one: (one["accuracy"], one["f1"] or 0))
        words = "test: accuracy of the worst classes: "
        [line] = [one for one in self.said.splitlines() if words in one]
        line = line.split(words)[1]
        for one, part in zip(expected, line.split(", ")):
            name, accuracy, *samples = part.split()
            self.assertEqual(
                (name, float(accuracy)), (one["name"], round(100 * one["accuracy"], 2))
            )
            if samples[1:]:
                self.assertEqual(int(samples[2]), one["samples"])
        self.assertEqual(len(line.split(", ")), len(expected))
        # The same at other layouts, and of the validation set without a test set.
        for ranks, more in (
            (2, ()),
            (4, ("--set", "parallel.pipeline=2")),
            (2, ("--unset", "data.test")),
        ):
            again = harness.run(
                *("train", "deck.toml", "--set", "run.stop=5 steps", *harness.DEVICE),
                *("--set", "run.folder=" + self.path("again"), "--restart", "none", *more),
                ranks=ranks,
                cwd=self.shared,
            )
            self.assertEqual(again.returncode, 0, again.text)
            self.assertEqual(again.text.count("accuracy of the worst classes"), 1)
            if "--unset" in more:
                self.assertIn("validation: accuracy of the worst classes: ", again.text)
            else:
                self.assertIn(words + line + "\n", again.text)

    def test_it_replaces_only_its_own_files(self):
        for name, text in (
            ("other.csv", "image,reason\n"),
            ("other.svg", '<svg xmlns="http://www.w3.org/2000/svg"></svg>\n'),
        ):
            path = os.path.join(self.shared, name)
            with open(path, "w") as file:
                file.write(text)
            self.refuse("exists and is no confusion matrix file", "--confusion", name)
            with open(path) as file:
                self.assertEqual(file.read(), text)
        self.refuse("ends neither in .csv nor in .svg", "--confusion", "confusion.png")
        self.refuse("there is no folder", "--confusion", "none/confusion.csv")

    def refuse(self, message, *words):
        words = ("evaluate", "run/deck.toml", "--checkpoint", CHECKPOINT, *words)
        result = harness.run(*words, cwd=self.shared)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertIn(message, result.text)

    def test_it_needs_no_steps_of_whole_micro_batches(self):
        row = self.rows["validation"]
        words = ("--json", "--set", "batch.micro=7", "--set", "parallel.data=2")
        results = [json.loads(self.evaluate(*words, ranks=ranks)) for ranks in (1, 3)]
        self.assertEqual(*results)
        self.assertNotEqual(row["samples"] % 7, 0)
        self.assertEqual(results[0]["samples"], row["samples"])
        # Each micro-batch is summed in float32.
        self.assertAlmostEqual(results[0]["loss"], row["loss"], delta=1e-5 * row["loss"])

    def test_it_refuses_more_stages_than_blocks(self):
        self.write_deck(
            '[run]\nname = "mlp"\n[model]\nkind = "mlp"\nwidths = [4]\n'
            '[data]\ntrain = "data/train"\nvalidation = "data/validation"\n'
        )
        words = ("evaluate", "deck.toml", "--checkpoint", "none.h5", "--set", "parallel.pipeline=2")
        result = harness.run(*words, ranks=2, cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertIn("parallel.pipeline = 2 cuts the model into 2 parts", result.text)


if __name__ == "__main__":
    unittest.main()
