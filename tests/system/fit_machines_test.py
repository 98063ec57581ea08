# SPDX-License-Identifier: Apache-2.0
"""Tests scripts/fit_machines.py: machine files against published training runs."""

import os
import sys
import tomllib
import unittest

import harness

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts")
sys.path.insert(0, SCRIPTS)

import fit_machines  # noqa: E402


class FitMachines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        rows = tomllib.loads(fit_machines.ROWS.read_text())["row"]
        cls.rows = [row for row in rows if not row.get("slow")]
        cls.by_name = {row["name"]: row for row in rows}

    def rate(self, row, **options):
        return fit_machines.rate_of(row, fit_machines.predict(harness.TRIREME, row, **options))

    def test_machines_are_fitted_and_rows_keep_their_bars(self):
        rates = {row["name"]: self.rate(row) for row in self.rows}
        self.assertEqual(fit_machines.problems(self.rows, rates), [])
        # A step that is slower than predicted by a fifth misses bars and the page.
        slower = {name: 0.8 * rate for name, rate in rates.items()}
        found = "\n".join(fit_machines.problems(self.rows, slower))
        self.assertIn("machines/a100.toml is not fitted to row F1", found)
        self.assertIn("row T1: error -25", found)
        self.assertIn("row T4: error", found)
        self.assertIn("row O1: 416,344 tokens/s a GPU, not 490,000 to 590,000", found)
        slower = dict(rates, **{"T6, 128 GPUs": 0.8 * rates["T6, 128 GPUs"]})
        self.assertIn("row T6: ratio", "\n".join(fit_machines.problems(self.rows, slower)))

    def test_the_fit_finds_the_number_of_the_machine_file(self):
        row = self.by_name["F2"]
        value = fit_machines.fit(harness.TRIREME, row)
        self.assertEqual(value, fit_machines.scaling_of("h100"))
        with fit_machines.TrialMachine(row) as trial:
            error = fit_machines.error_of(row, self.rate(row, machine=trial.at(value + 0.005)))
        self.assertGreater(error, fit_machines.FIT_TOLERANCE)

    def test_runs_on_one_gpu_do_not_have_the_fitted_number(self):
        for name, part in (("O1", 1), ("O2", 1), ("T4", 0.9)):
            row = self.by_name[name]
            with fit_machines.TrialMachine(row) as trial:
                full, half = (self.rate(row, machine=trial.at(value)) for value in (1.0, 0.5))
            ratio = full / half
            self.assertEqual(ratio, 1) if part == 1 else self.assertLess(ratio, part)

    def test_flops_are_those_of_the_sources(self):
        """Equation 3 of SC21, and the formula of Megatron-LM, for one sequence."""
        layers, width, context, vocabulary = 80, 12288, 2048, 51200
        expected = 96 * context * layers * width**2
        expected *= 1 + context / (6 * width) + vocabulary / (16 * layers * width)
        flops = fit_machines.published_flops(self.by_name["F1"], 1)
        self.assertAlmostEqual(flops / expected, 1, delta=1e-12)
        layers, context, vocabulary = 96, 4096, 131072
        expected = 72 * context * layers * width**2
        expected *= 1 + context / (6 * width) + vocabulary / (12 * layers * width)
        flops = fit_machines.published_flops(self.by_name["F2"], 1)
        self.assertAlmostEqual(flops / expected, 1, delta=1e-12)


if __name__ == "__main__":
    unittest.main()
