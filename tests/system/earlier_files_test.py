# SPDX-License-Identifier: Apache-2.0
"""Reads datasets and runs that an earlier version of the program has made (tests/data/earlier).

Their formats are fixed: a dataset of terabytes and a run of weeks outlive a version.
"""

import json
import os
import pathlib
import shutil
import tempfile
import unittest

import harness

EARLIER = pathlib.Path(__file__).resolve().parents[1] / "data" / "earlier"
KNOWN = json.loads((EARLIER / "known.json").read_text())
CHECKPOINT = "%s/checkpoints/step_000000004.h5"
# Losses of other processors differ by rounding, which a few steps make larger.
TOLERANCE = 1e-4


class EarlierFiles(unittest.TestCase):
    def setUp(self):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        self.folder = tempfile.mkdtemp(prefix="trireme-test-")
        shutil.copytree(EARLIER, self.folder, dirs_exist_ok=True)

    def tearDown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, *words, ranks=1):
        result = harness.run(*words, ranks=ranks, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return result.stdout

    def test_datasets_are_whole_and_have_their_meaning(self):
        for name, samples, meaning in (
            ("pixels", 24, {"classes": ["ant", "bee", "cow"]}),
            ("files", 12, {"classes": ["blue", "red"]}),
            ("text", None, {"vocabulary": 320, "tokenizer": "sentencepiece"}),
            ("tokens", None, {"vocabulary": 1000, "tokens": 300}),
        ):
            verified = self.call("verify", "sets/" + name)
            self.assertIn("whole", verified)
            self.assertNotIn("no seal", verified)
            described = json.loads(self.call("inspect", "sets/" + name, "--json"))
            self.assertEqual(described.get("samples"), samples, name)
            for key, value in meaning.items():
                self.assertEqual(described[key], value, name)

    def test_checkpoints_have_their_values(self):
        for name, known in KNOWN.items():
            path = CHECKPOINT % name
            self.assertIn("whole", self.call("verify", path))
            self.assertEqual(self.call("inspect", path, "--digest").split()[-1], known["digest"])
            self.call("inspect", name)

    def test_runs_go_on_as_they_would_have(self):
        for name, known in KNOWN.items():
            for ranks in (1, 2):
                folder = "%s-%d" % (name, ranks)
                shutil.copytree(os.path.join(self.folder, name), os.path.join(self.folder, folder))
                changes = ("--set", "run.folder=" + folder)
                self.call("train", name + ".toml", *changes, ranks=ranks)
                with open(os.path.join(self.folder, folder, "metrics.jsonl")) as file:
                    rows = [json.loads(line) for line in file]
                losses = {str(row["step"]): row["loss"] for row in rows if row["kind"] == "train"}
                self.assertEqual(losses.keys(), known["losses"].keys(), folder)
                for step, loss in known["losses"].items():
                    self.assertAlmostEqual(losses[step] / loss, 1, delta=TOLERANCE, msg=folder)
                last = "%s/checkpoints/step_000000008.h5" % folder
                result = json.loads(
                    self.call("evaluate", name + ".toml", "--checkpoint", last, "--json")
                )
                self.assertEqual(result["samples"], known["evaluation"]["samples"])
                self.assertAlmostEqual(
                    result["loss"] / known["evaluation"]["loss"], 1, delta=TOLERANCE, msg=folder
                )


if __name__ == "__main__":
    unittest.main()
