# SPDX-License-Identifier: Apache-2.0
"""Tests the outputs of commands: two commands at once, addresses, and names with line feeds."""

import os
import subprocess
import tempfile
import unittest

import harness


class OutputPathsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name, text in (("a.txt", "first text\n" * 100), ("b.txt", "second\n" * 300)):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)

    def run_program(self, *words, prefix=()):
        return subprocess.run(
            [*prefix, harness.TRIREME, *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def test_one_of_two_shard_commands_wins(self):
        for count in range(6):
            out = "out%d" % count
            jobs = [
                subprocess.Popen(
                    [harness.TRIREME, "shard", "text", source, "--shards", shards, "--out", out],
                    cwd=self.folder,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                # the same command twice, or two commands
                for source, shards in (("a.txt", "1"), (("a.txt", "1"), ("b.txt", "3"))[count % 2])
            ]
            ended = [(job.communicate()[0], job.returncode) for job in jobs]
            self.assertEqual(sorted(code for _, code in ended), [0, 2], ended)
            shards = 3 if ended[1][1] == 0 and count % 2 else 1
            self.assertEqual(
                sorted(os.listdir(os.path.join(self.folder, out))),
                ["shard_%05d.h5" % i for i in range(shards)],
            )
            for text, _ in ended:
                self.assertNotIn("taken over", text)
                self.assertNotIn("cannot be", text)

    def test_address_is_no_output(self):
        for words in (
            ("shard", "text", "a.txt", "--out", "s3://bucket/out"),
            ("shard", "text", "a.txt", "--out", "o", "--hold-out", "9", "--hold-out-out", "s3://b"),
            ("export", "a.txt", "--out", "gs://bucket/x.safetensors"),
            ("import", "a.txt", "a.txt", "--out", "s3://bucket/x.h5"),
        ):
            result = self.run_program(*words)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("is an address, not a path", result.stderr)
            self.assertEqual(sorted(os.listdir(self.folder)), ["a.txt", "b.txt"])

    def test_missing_descriptors_are_no_wrong_input(self):
        os.mkdir(os.path.join(self.folder, "set"))
        few = ("bash", "-c", 'ulimit -n 3; exec "$@"', "bash")
        for words in (("check", "a.txt"), ("inspect", "set")):
            result = self.run_program(*words, prefix=few)
            self.assertNotEqual(result.returncode, 2, result.stderr)

    def test_name_cannot_forge_a_message(self):
        for words in (
            ("check", "no\ntrireme: error: forged"),
            ("check", "a:1:1: x\ntrireme: error: forged"),
            ("inspect", "no\ntrireme: error: forged"),
            ("shard", "--no\ntrireme: error: forged"),
            ("export", "no\n.h5", "--out", "x.safetensors"),
        ):
            result = self.run_program(*words)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn("\\x0A", result.stderr)


if __name__ == "__main__":
    unittest.main()
