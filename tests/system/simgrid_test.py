# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme plan --simgrid`: its options, its folder, and the replay where SimGrid is."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import unittest

import harness

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
DECK = os.path.join(ROOT, "tests", "decks", "simgrid.toml")
DATA = ("--assume", "tokens:1000000000,32000")
# Two nodes of 8 GPUs, with every kind of communication.
LAYOUT = ("--ranks", "16", "--set", "parallel.tensor=4", "--set", "parallel.pipeline=2")
SMALL = ("--set", "model.layers=2", "--set", "batch.global=8")
EVERY = ("--set", "parallel.sync=every 4 steps")


def load_compare():
    """Returns scripts/compare_simgrid.py as a module."""
    path = os.path.join(ROOT, "scripts", "compare_simgrid.py")
    spec = importlib.util.spec_from_file_location("compare_simgrid", path)
    compare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compare)
    return compare


class Simgrid(harness.Case):
    def plan(self, *arguments, expect=0):
        words = ("plan", DECK, *DATA, *LAYOUT, *SMALL, *arguments)
        result = harness.run(*words, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result

    def replay(self, folder, *arguments):
        result = self.plan("--machine", "a100", "--json", "-", "--simgrid", folder, *arguments)
        return json.loads(result.stdout)["simgrid"]

    def test_writes_a_folder_once(self):
        arguments = ("--machine", "a100", "--simgrid", "new/replay")
        refused = self.plan(*arguments, "--group", "tied", expect=2)
        self.assertIn("the step has no communication over this group", refused.stderr)
        result = self.plan(*arguments)
        self.assertIn("sh new/replay/replay.sh", result.stdout)
        names = sorted(os.listdir(self.path("new", "replay")))
        self.assertEqual(names, ["hosts.txt", "platform.xml", "replay.sh", "traces", "traces.txt"])
        traces = os.listdir(self.path("new", "replay", "traces"))
        self.assertGreater(len(traces), 16)
        self.assertIn("smpirun -no-privatize -np %d " % len(traces), result.stdout)
        again = self.plan(*arguments, expect=2)
        self.assertIn("--simgrid new/replay: the folder is not empty", again.stderr)

    def test_nothing_is_left_of_a_replay_that_does_not_fit(self):
        arguments = ("--machine", "a100", "--simgrid", "small/new/replay")
        estimate = self.plan("--machine", "a100", "--simgrid", "whole").stderr
        pattern = r"writes (\d+) files, about (\S+) (KiB|MiB) on the file system; .* are free"
        count, number, unit = re.search(pattern, estimate).groups()
        files = [file for file in pathlib.Path(self.path("whole")).rglob("*") if file.is_file()]
        self.assertEqual(int(count), len(files))
        # Each file may leave a block unused.
        size = sum(file.stat().st_size + 4096 for file in files)
        written = size / {"KiB": 1 << 10, "MiB": 1 << 20}[unit]
        self.assertAlmostEqual(float(number) / written, 1, delta=0.05, msg=estimate)
        # A trace is longer than a file may be: the write fails in the middle of the work.
        script = ["sh", "-c", 'ulimit -f 16; exec "$@"', "sh"]
        words = ("plan", DECK, *DATA, *LAYOUT, *SMALL, *arguments)
        failed = subprocess.run(
            script + harness.command(*words),
            cwd=self.folder,
            env=harness.environment(),
            capture_output=True,
            text=True,
        )
        self.assertEqual(failed.returncode, 1, failed.stderr)
        self.assertIn("the files of the replay are removed", failed.stderr)
        self.assertFalse(os.path.exists(self.path("small")))

    def test_a_replay_larger_than_the_disk_is_refused(self):
        with harness.SmallDisk(self.path("small"), 1 << 16):
            refused = self.plan("--machine", "a100", "--simgrid", "small/new/replay", expect=2)
            self.assertIn("--simgrid small/new/replay: ", refused.stderr)
            self.assertIn("use fewer --ranks", refused.stderr)
            self.assertEqual(os.listdir(self.path("small")), [])

    def test_bad_options(self):
        with open(self.path("file"), "w"):
            pass
        cases = {
            ("--simgrid", "file"): "--simgrid file: the folder cannot be created",
            ("--simgrid", "file/a"): "--simgrid file/a: the folder cannot be created",
            ("--simgrid", "a", "--topology", "ring"): "use fat-tree or dragonfly",
            ("--simgrid", "a", "--taper", "3"): "1, 2, 4, 8, 16 or 32",
            ("--simgrid", "a", "--taper", "1e9"): 'a whole number of 1 to 32, but is "1e9"',
            ("--simgrid", "a", "--group", "rows"): "use one of: world, data",
            ("--simgrid", "a", "--search"): "write it with the tables of the layout",
            ("--taper", "4"): "add --simgrid FOLDER",
            ("--simgrid", "a", "--set", "parallel.sync=delayed"): "--set parallel.sync=step",
            ("--simgrid", "a", *EVERY): 'parallel.sync = "every 4 steps": --simgrid writes one',
        }
        for arguments, message in cases.items():
            with self.subTest(arguments=arguments):
                result = self.plan("--machine", "a100", *arguments, expect=2)
                self.assertIn(message, result.stderr)
                self.assertFalse(os.path.exists(self.path("a")))

    def test_the_page_has_the_recorded_times(self):
        self.assertEqual(load_compare().check(), 0)

    def test_simulated_time_is_the_predicted_one(self):
        if shutil.which("smpirun") is None:
            self.skipTest("smpirun is missing: install SimGrid (libsimgrid-dev)")
        compare = load_compare()
        # Gathers of weights run while the rank computes, so waits must be for single requests.
        keys = ("parallel.pipeline=1", "model.layers=4", "parallel.shard=parameters")
        sharded = [word for key in keys for word in ("--set", key)]
        groups = {group: ("--group", group) for group in ("data", "tensor", "pipeline")}
        for name, arguments in {"step": (), "sharded": sharded, **groups}.items():
            with self.subTest(name=name):
                folder = "replay_" + name
                predicted = self.replay(folder, *arguments)["predicted_s"]
                simulated = compare.simulated_seconds(self.path(folder))
                # The bar of docs/design/planning.md.
                self.assertLess(abs(simulated / predicted - 1), compare.BAR, (simulated, predicted))


if __name__ == "__main__":
    unittest.main()
