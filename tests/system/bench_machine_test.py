# SPDX-License-Identifier: Apache-2.0
"""Tests that `trireme bench comm` writes a machine file, which `trireme bench step` reads."""

import re
import tomllib
import unittest

import harness


class BenchMachine(harness.Case):
    def succeed(self, *arguments, ranks=1):
        result = harness.run(*arguments, ranks=ranks, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return result.stdout

    def test_bench_comm_writes_a_machine_file_that_bench_step_reads(self):
        file = self.path("one.toml")
        rows = self.succeed("bench", "comm", "--machine-out", "one.toml", "--rounds", "1", ranks=2)
        self.assertEqual(len(re.findall(r"^tree_all_reduce +\d+", rows, re.M)), 6, rows)
        with open(file, "rb") as stream:
            machine = tomllib.load(stream)
        self.assertEqual(machine["collectives"]["all_reduce"]["ranks"], [2])
        self.assertEqual(machine["links"]["node"]["source"], "trireme bench comm, 2 ranks")
        self.assertEqual(machine["device"]["kind"], "cpu")
        # other tables of the file stay as they are
        with open(file) as stream:
            text = stream.read()
        changed = text.replace("tested = false", "tested = true")
        with open(file, "w") as stream:
            stream.write(changed)
        rows = self.succeed("bench", "step", "--machine", "./one.toml", "--rounds", "1")
        self.assertEqual(len(re.findall(r" [+-][\d.]+%$", rows, re.M)), 4, rows)
        # a key that is misspelled
        with open(file, "w") as stream:
            stream.write(text.replace("launch_seconds", "lunch_seconds"))
        line = 1 + text[: text.index("launch_seconds")].count("\n")
        result = harness.run("bench", "step", "--machine", "./one.toml", cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertIn(
            f"./one.toml:{line}:1: [overhead] lunch_seconds: unknown key, did you mean "
            '"launch_seconds"?',
            result.text,
        )

    def test_what_cannot_be_measured_is_refused(self):
        for arguments, saying in (
            (("comm", "--type", "bfloat16"), "--type belongs to bench conv, gemm, ops, step"),
            (("comm",), "needs several ranks"),
            (("step",), "name a machine, as in --machine cluster.toml"),
            (("step", "--machine", "h10"), "did you mean h100?"),
            (("gemm", "--type", "float64"), "--type"),
        ):
            result = harness.run("bench", *arguments, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn(saying, result.text)


if __name__ == "__main__":
    unittest.main()
