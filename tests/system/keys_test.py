# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme check --keys`: text, JSON, and refused command lines."""

import json
import os
import re
import unittest

import harness

PROPERTIES = "table key type range required default owner restart meaning".split()


class Keys(unittest.TestCase):
    def print_keys(self, *options, ranks=1):
        result = harness.run("check", "--keys", *options, ranks=ranks, cwd=os.getcwd())
        self.assertEqual(result.returncode, 0, result.text)
        return result.stdout

    def test_json_has_all_properties_of_every_key(self):
        keys = json.loads(self.print_keys("--json"))
        self.assertGreater(len(keys), 100)
        for key in keys:
            self.assertEqual(list(key), PROPERTIES, key)
            self.assertIn(key["restart"], ("may change", "fixed"), key)
            for name in ("type", "range", "default", "owner"):
                self.assertNotEqual(key[name], "", key)
        by_path = {key["table"] + "." + key["key"]: key for key in keys}
        self.assertEqual(
            list(by_path["optimizer.nesterov"].values()),
            [
                "optimizer",
                "nesterov",
                "true or false",
                None,
                False,
                "false",
                'kind = "sgd", "lars" or "muon"',
                "may change",
                "sgd, lars, muon: uses Nesterov's form of momentum; default for muon: true.",
            ],
        )
        self.assertEqual(by_path["run.seed"]["restart"], "fixed")
        self.assertTrue(by_path["data.train"]["required"])

    def test_text_describes_each_key_in_three_lines(self):
        keys = json.loads(self.print_keys("--json"))
        lines = self.print_keys().splitlines()
        self.assertEqual(len(lines), 3 * len(keys))
        for key, first, facts, meaning in zip(keys, lines[::3], lines[1::3], lines[2::3]):
            self.assertTrue(first.startswith("%s.%s: " % (key["table"], key["key"])), first)
            self.assertIn("restart: " + key["restart"], facts)
            self.assertEqual("default " in facts, key["default"] is not None, facts)
            self.assertEqual(meaning, "  " + key["meaning"])
        at = [line.startswith("batch.micro: ") for line in lines].index(True)
        self.assertEqual(lines[at], "batch.micro: integer (at least 1 and at most 1073741824)")
        self.assertRegex(lines[at + 1], r"^  default \d+; restart: may change$")

    def test_rank_0_alone_prints_under_a_launcher(self):
        self.assertEqual(self.print_keys(ranks=2), self.print_keys())

    def test_wrong_command_lines_are_refused(self):
        for arguments, saying in (
            ((), "DECK is required; give a deck, or --keys"),
            (("--json",), "DECK is required; give a deck, or --keys"),
            (("deck.toml", "--keys"), "leave DECK out"),
            (("--keys", "--set", "run.name=a"), "leave --set out"),
            (("--keys", "--assume", "tokens:10,3"), "leave --assume out"),
            (("--keys", "--json", "--ranks", "2"), "leave --ranks out"),
            (("--kays",), "did you mean --keys?"),
        ):
            result = harness.run("check", *arguments, cwd=os.getcwd())
            self.assertEqual(result.returncode, 2, "%s: %s" % (arguments, result.text))
            self.assertIn(saying, result.stderr)
            self.assertEqual(len(re.findall("error", result.text)), 1, result.text)


if __name__ == "__main__":
    unittest.main()
