# SPDX-License-Identifier: Apache-2.0
"""Tests monitor.prometheus: the file of a run that ends, is killed or loses its folder; and the
board for Grafana."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import time

import harness

DOCUMENTS = pathlib.Path(__file__).resolve().parents[2] / "docs"
KNOWN = set(
    re.findall(r"^\| `(trireme_\w+)`", (DOCUMENTS / "reference/metrics.md").read_text(), re.M)
)


def samples(text):
    """Returns the values by name and labels: {("trireme_up", 'run="test"'): 1.0}."""
    found = re.findall(r"^(\w+)\{(.*)\} (\S+)$", text, re.M)
    return {(name, labels): float(value) for name, labels, value in found}


class Prometheus(harness.Case):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("collected"))
        self.file = pathlib.Path(self.path("collected/run.prom"))
        self.option = ["--set", "monitor.prometheus=collected/run.prom"]

    def values(self):
        return samples(self.file.read_text())

    def test_the_figures_of_a_run(self):
        before = time.time()
        self.train(*self.option, ranks=2)
        rows = harness.read_rows(self.path("run"))
        values = self.values()
        run = 'run="test"'
        last = [row for row in rows if row["kind"] == "train"][-1]
        self.assertEqual(values["trireme_up", run], 0)
        self.assertAlmostEqual(values["trireme_loss", run], last["loss"])
        self.assertEqual(values["trireme_step", run], 20)
        self.assertEqual(values["trireme_steps_total", run], 19)  # since the first row
        self.assertEqual(values["trireme_samples_total", run], 19 * 64)
        part = run + ',part="forward"'
        self.assertAlmostEqual(values["trireme_step_part_seconds", part], last["forward_s"])
        split = run + ',split="validation"'
        evaluated = [row for row in rows if row.get("split") == "validation"][-1]
        self.assertAlmostEqual(values["trireme_evaluation_top1_ratio", split], evaluated["top1"])
        self.assertEqual(values["trireme_events_total", run + ',event="start"'], 1)
        checkpoints = [row for row in rows if row["kind"] == "checkpoint"]
        self.assertEqual(values["trireme_checkpoints_total", run], len(checkpoints))
        updated = values["trireme_updated_timestamp_seconds", run]
        self.assertTrue(before - 1 <= updated <= time.time())
        self.assertEqual({name for name, _ in values} - KNOWN, set(), "documented")
        self.assertEqual(os.listdir(self.path("collected")), ["run.prom"])
        # The run goes on; the file is its own.
        self.train(*self.option, "--set", "run.stop=25 steps")
        self.assertEqual(self.values()["trireme_step", run], 25)
        self.assertEqual(self.values()["trireme_events_total", run + ',event="restart"'], 1)

    def test_rows_of_a_ramp_are_one_start(self):
        ramp = 'batch.ramp=[["0 steps", 32], ["10 steps", 64]]'
        process, _, held = self.start_held(
            *self.option, "--unset", "batch.global", "--set", ramp, step=12
        )
        self.assertEqual(self.values()["trireme_up", 'run="test"'], 1)
        self.end_of(process, held)
        values = self.values()
        self.assertEqual(values["trireme_up", 'run="test"'], 0)
        self.assertEqual(values["trireme_steps_total", 'run="test"'], 19)
        self.assertEqual(values["trireme_events_total", 'run="test",event="rollback"'], 0)

    def test_every_metric_is_documented(self):
        source = DOCUMENTS.parent / "src/monitor/prometheus.cpp"
        text = source.read_text()
        self.assertEqual(set(re.findall(r'"(trireme_\w+)"', text)), KNOWN)
        events = re.search(r"known_events\{(.*?)\}", text, re.S).group(1)
        rows = (DOCUMENTS / "reference/metrics.md").read_text()
        table = rows[rows.index("| `event` | meaning |") :].split("\n\n")[0]
        named = re.findall(r"^\| `(\w+)` \| [^m]", table, re.M)
        self.assertEqual(re.findall(r'"(\w+)"', events), named)

    def test_promtool_accepts_the_file(self):
        if not shutil.which("promtool"):
            self.skipTest("promtool is not installed")
        self.train(*self.option, "--set", "monitor.noise_scale=5 steps")
        result = subprocess.run(
            ["promtool", "check", "metrics"],
            stdin=open(self.file),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual((result.returncode, result.stdout), (0, ""))

    def test_a_killed_run_stays_up_and_is_not_updated(self):
        process, _, _ = self.start_held(*self.option, step=12)
        harness.kill(process)
        values = self.values()
        self.assertEqual(values["trireme_up", 'run="test"'], 1)
        time.sleep(1.1)
        self.assertEqual(self.values(), values)

    def test_a_folder_that_vanishes_costs_a_warning(self):
        process, _, held = self.start_held(*self.option, step=12)
        shutil.rmtree(self.path("collected"))
        self.end_of(process, held)
        self.assertEqual(process.returncode, 0)
        log = pathlib.Path(self.path("run/log.txt")).read_text()
        self.assertEqual(log.count("warning: monitor.prometheus: "), 1)
        self.assertRegex(log, r"run.prom.tmp.*; training continues")

    def test_wrong_files_are_refused_before_the_run(self):
        self.file.write_text("# HELP node_load1 of another program\n")
        pathlib.Path(self.path("collected/x.prom.d")).mkdir()
        for name, words in (
            ("collected/run.prom", "exists and is no file of this kind"),
            ("collected/run.txt", "must end in .prom"),
            ("none/run.prom", "there is no folder"),
        ):
            result = self.train("--set", "monitor.prometheus=" + name, expect=2)
            self.assertIn("--set monitor.prometheus=" + name, result.text)
            self.assertIn(words, result.text)
        self.assertIn("node_load1", self.file.read_text())
        self.assertFalse(os.path.exists(self.path("run/metrics.jsonl")))

    def test_the_board_shows_known_metrics(self):
        board = json.loads((DOCUMENTS / "grafana.json").read_text())
        expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        names = set(re.findall(r"\btrireme_\w+", " ".join(expressions)))
        self.assertGreater(len(names), 10)
        self.assertEqual(names - KNOWN, set())


if __name__ == "__main__":
    harness.main(2)
