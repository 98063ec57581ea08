# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme watch`: a run that goes on, is killed, goes on again, and ends; and folders that
are no runs, or were damaged."""

import os
import pty
import re
import shutil
import subprocess
import threading
import time

import harness


class Watch(harness.Case):
    def setUp(self):
        super().setUp()
        self.arguments = ["--set", "monitor.every=5 steps", "--set", "run.stop=40 steps"]

    def start_watch(self):
        """Follows the run as lines of a log, in the background."""
        lines = []
        process = harness.start("watch", "run", "--every", "0.1", cwd=self.folder)
        self.addCleanup(process.kill)
        thread = threading.Thread(target=lambda: lines.extend(process.stdout))
        thread.start()
        return process, thread, lines

    def test_a_run_is_followed_over_a_kill_to_its_end(self):
        process, _, _ = self.start_held(*self.arguments, step=22)
        watch, thread, lines = self.start_watch()
        harness.wait_for(lambda: any("step 20, 50.0 %" in line for line in lines), "step 20")
        harness.kill(process)
        os.remove(self.path("run/run.lock"))
        harness.wait_for(lambda: any("was killed" in line for line in lines), "the kill")
        self.assertIsNone(watch.poll(), "another start may follow")
        self.train(*self.arguments)
        self.assertEqual(watch.wait(timeout=harness.PATIENCE), 0)
        thread.join()
        text = "".join(lines)
        self.assertIn("restart: resumed from step", text)
        self.assertRegex(lines[-2], r"^step 40, 100.0 % of the run.*, loss \d")
        self.assertIn("ended with 0: the stop condition", lines[-1])
        self.assertNotIn("\033", text)

    def test_the_folder_is_left_as_it_was(self):
        self.train(*self.arguments)

        def state():
            return {
                name: (os.stat(name).st_mtime_ns, os.stat(name).st_size)
                for folder, _, files in os.walk(self.path("run"))
                for name in [folder] + [os.path.join(folder, file) for file in files]
            }

        before = state()
        result = harness.run("watch", "run", "--once", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        self.assertEqual(state(), before)
        self.assertIn("run: ended with 0", result.stdout)
        self.assertIn("step 40, epoch", result.stdout)
        self.assertRegex(result.stdout, r"(?m)^loss \d\S* +[\u2581-\u2588]+$")
        self.assertRegex(result.stdout, r"(?m)^step \d.*: data .* %, forward .* %, backward .* %")
        self.assertIn("validation at step 40: loss", result.stdout)

    def test_on_a_terminal_a_view_takes_the_place_of_the_one_before(self):
        process, _, held = self.start_held(*self.arguments, step=12)
        leader, follower = pty.openpty()
        self.addCleanup(os.close, leader)
        watch = subprocess.Popen(
            harness.command("watch", "run", "--every", "0.1"),
            cwd=self.folder,
            env=harness.environment(),
            stdin=subprocess.DEVNULL,
            stdout=follower,
            stderr=follower,
        )
        os.close(follower)
        self.addCleanup(watch.kill)
        text = b""
        while b"step 10, epoch" not in text or b"\033[" not in text:
            text += os.read(leader, 65536)
        self.end_of(process, held)
        while True:
            try:
                text += os.read(leader, 65536)
            except OSError:  # its end
                break
        self.assertEqual(watch.wait(timeout=harness.PATIENCE), 0)
        self.assertIn("ended with 0", text.decode())
        # The cursor goes up by as many lines as were shown.
        self.assertTrue(re.search(rb"\033\[\d+A\r\033\[J", text))

    def test_a_file_in_the_place_of_the_rows_and_a_folder_that_goes(self):
        self.train(*self.arguments)
        os.remove(self.path("run/exit.json"))
        watch, thread, lines = self.start_watch()
        harness.wait_for(lambda: any("step 40" in line for line in lines), "step 40")
        for step in (7, 8, 9):
            with open(self.path("new"), "w") as file:
                file.write('{"kind": "train", "step": %d, "samples_per_s": 1}\n' % step)
            os.rename(self.path("new"), self.path("run/metrics.jsonl"))
            said = f"step {step}, "
            harness.wait_for(lambda: any(line.startswith(said) for line in lines), said)
        shutil.move(self.path("run"), self.path("away"))
        self.assertEqual(watch.wait(timeout=harness.PATIENCE), 2)
        thread.join()
        self.assertIn("run: the folder of the run is gone", lines[-1])

    def test_output_that_cannot_be_written_ends_it(self):
        self.train(*self.arguments)
        os.remove(self.path("run/exit.json"))
        with open("/dev/full", "w") as full:
            result = subprocess.run(
                harness.command("watch", "run"),
                cwd=self.folder,
                env=harness.environment(),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=harness.PATIENCE,
            )
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("standard output cannot be written", result.stderr)

    def test_damage_and_other_folders(self):
        self.train(*self.arguments)
        for name, contents in (("deck.toml", "]"), ("exit.json", "[]"), ("run.lock", "x")):
            with open(self.path("run", name), "w") as file:
                file.write(contents)
        with open(self.path("run/metrics.jsonl"), "a") as file:
            file.write('{"kind": "train", "step": "many"}\nno json\n\0\0\n{"kind": 1e999}\n')
        result = harness.run("watch", "run", "--once", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        self.assertIn("run: running, heartbeat", result.stdout)
        self.assertIn("exit.json: is not a JSON object", result.stdout)
        for words, saying in (
            (("nowhere",), "nowhere: no such folder"),
            (("data/train",), "data/train: is no run folder"),
            (("run", "--every", "0"), "--every 0: must be 0.1 to 3600 seconds"),
        ):
            result = harness.run("watch", *words, "--once", cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn(saying, result.stderr)


if __name__ == "__main__":
    harness.main(2)
