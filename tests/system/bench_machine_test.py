# SPDX-License-Identifier: Apache-2.0
"""Tests of `trireme bench` comm and step, which share a machine file, and of ops."""

import json
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

    def test_bench_ops_measures_given_sizes(self):
        ops = ("bench", "ops", "--rounds", "1", "--sizes", "64x64", "3x5")
        table = self.succeed(*ops)
        rows = re.findall(r"^([a-z_]+) +(\d+) +(\d+) +[\d.]+ +[\d.]+ +[\d.]+$", table, re.M)
        names = {
            size: [row[0] for row in rows if row[1:] == size] for size in set(r[1:] for r in rows)
        }
        self.assertEqual(set(names), {("64", "64"), ("3", "5")}, table)
        self.assertEqual(
            [name for name in names["64", "64"] if name != "rotary"], names["3", "5"], table
        )
        for name in ("rotary", "batch_norm_backward", "prepare_images", "row_square_sums"):
            self.assertIn(name, names["64", "64"])
        for kind, bytes_of_number in (("float32", 4), ("bfloat16", 2), ("float16", 2)):
            lines = self.succeed(*ops, "--json", "--type", kind, "--op", "add").splitlines()
            found = [json.loads(line) for line in lines]
            self.assertEqual([(row["rows"], row["columns"]) for row in found], [(64, 64), (3, 5)])
            for row in found:  # reads two tensors and writes one
                self.assertEqual(row["bytes"], 3 * bytes_of_number * row["rows"] * row["columns"])
                self.assertAlmostEqual(row["gb_per_s"] * row["seconds"] * 1e9, row["bytes"], 3)
                self.assertGreater(row["of_copy"], 0)

    def test_what_cannot_be_measured_is_refused(self):
        for arguments, saying in (
            (("comm", "--type", "bfloat16"), "--type belongs to bench conv, gemm, ops, step"),
            (("comm",), "needs several ranks"),
            (("step",), "name a machine, as in --machine cluster.toml"),
            (("step", "--machine", "h10"), "did you mean h100?"),
            (("gemm", "--type", "float64"), "--type"),
            (("ops", "--sizes", "64"), "--sizes 64: is not ROWSxCOLUMNS"),
            (("ops", "--sizes", "0x64"), "as in 32768x768"),
            (("ops", "--sizes", "65536x65536"), "at most 2^31 numbers"),
            (("ops", "--sizes", "8x8", "--op", "rotary"), "rotary: is no op on numbers of 8x8"),
            (("ops", "--op", "add"), "--op needs --sizes"),
            (("ops", "--sizes", "8x8", "--machine-out", "new.toml"), "contradicts --machine-out"),
            (("gemm", "--sizes", "8x8"), "--sizes belongs to bench ops"),
        ):
            result = harness.run("bench", *arguments, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn(saying, result.text)


if __name__ == "__main__":
    unittest.main()
