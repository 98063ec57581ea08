# SPDX-License-Identifier: Apache-2.0
"""Tests the account of a run: where its time went, over starts that were killed, stopped and done.

The clock outside of the program is the measure: parts of all starts and gaps add up to it.
"""

import json
import os
import signal
import time

import harness


def account_of(folder, cwd):
    text = harness.run("inspect", folder, "--json", cwd=cwd).text
    return json.loads(text)["account"]


class Account(harness.Case):
    def setUp(self):
        super().setUp()
        # Rows of each step, so that the account knows which steps a kill has lost.
        self.arguments = ["--set", "monitor.every=1 steps", "--set", "run.stop=40 steps"]
        self.arguments += ["--set", "checkpoint.every=10 steps"]

    def account(self):
        account = account_of("run", self.folder)
        parts = {key: part["seconds"] for key, part in account["parts"].items()}
        self.assertAlmostEqual(sum(parts.values()), account["wall_s"], delta=1e-3)
        self.assertTrue(all(seconds >= 0 for seconds in parts.values()), parts)
        return account, parts

    def test_a_chain_of_a_kill_a_stop_and_an_end(self):
        begin = time.time()
        # 1. Killed while step 25 waits.
        process, _, _ = self.start_held(*self.arguments, step=25)
        harness.kill(process)
        time.sleep(2)
        # 2. Stopped by a file.
        open(self.path("run", "STOP"), "w").close()
        self.train(*self.arguments, expect=75)
        os.remove(self.path("run", "STOP"))
        time.sleep(1)
        # 3. Done, at two ranks.
        text = self.train(*self.arguments, ranks=2).text
        wall = time.time() - begin
        self.assertRegex(text, r"this start took \S+ .*training")
        account, parts = self.account()
        self.assertEqual(account["starts"], 3)
        self.assertEqual(account["steps"], 40)
        last, resumed = self.steps_around_the_kill()
        self.assertLess(resumed, last)
        self.assertEqual(account["repeated_steps"], last - resumed)
        self.assertGreater(parts["repeated_s"], 0)
        self.assertGreater(parts["stopped_s"], 3)
        # The launcher's own start and end are not in it.
        self.assertLess(account["wall_s"], wall)
        self.assertGreater(account["wall_s"], wall - 6)
        for key in ("launch_s", "inputs_s", "restore_s", "train_s", "checkpoint_s"):
            self.assertGreater(parts[key], 0, key)
        goodput = parts["train_s"] / (account["wall_s"] - parts["stopped_s"])
        self.assertAlmostEqual(account["runtime_goodput"], goodput, places=6)

    def steps_around_the_kill(self):
        """Returns the last step of the first start, and the step that the second resumed from."""
        last = 0
        for row in harness.read_rows(self.path("run")):
            if row.get("event") == "restart":
                return last, row["step"]
            last = row["step"] if row["kind"] == "train" else last
        self.fail("no restart")

    def test_a_start_that_finds_nothing_to_do_adds_nothing(self):
        self.train(*self.arguments)
        before = self.account()[0]
        time.sleep(2)
        self.train(*self.arguments)
        after = self.account()[0]
        self.assertEqual((after["starts"], after["steps"]), (1, before["steps"]))
        # exit.json has whole seconds.
        self.assertAlmostEqual(after["wall_s"], before["wall_s"], delta=1)

    def test_the_parts_of_a_start_are_its_time(self):
        sleep = "sleep 2 rank 0 step 12; sleep 1 rank 0 step 25 phase evaluation"
        begin = time.time()
        self.train(
            "--allow-faults",
            *self.arguments,
            *("--set", "evaluate.every=25 steps", "--set", f"debug.fault={sleep}"),
        )
        wall = time.time() - begin
        account, parts = self.account()
        self.assertGreater(parts["train_s"], 2)
        self.assertGreater(parts["evaluate_s"], 1)
        self.assertLess(parts["train_s"] + parts["evaluate_s"], wall)
        self.assertGreater(account["wall_s"], wall - 2)

    def test_slurm_says_when_the_job_waited(self):
        now = int(time.time())
        with open(self.path("squeue"), "w") as file:
            asked = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now - 500))
            file.write(f'#!/bin/sh\ncase "$*" in *%V*) echo {asked} Unknown;; esac\n')
        os.chmod(self.path("squeue"), 0o755)
        path = self.folder + os.pathsep + os.environ["PATH"]
        self.train(*self.arguments, "--set", "run.stop=20 steps")
        time.sleep(3)
        job = {"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": str(now + 900)}
        started = time.time() - 1
        job |= {"PATH": path, "SLURM_JOB_START_TIME": f"{started:.0f}"}
        # The job was in the queue before the first start began, and started a second ago.
        harness.run("train", "deck.toml", *self.arguments, cwd=self.folder, env=job)
        rows = harness.read_rows(self.path("run"), "account")
        self.assertEqual(rows[-1]["job"], "slurm 17")
        self.assertEqual(rows[-1]["job_started"], round(started))
        self.assertEqual(rows[-1]["job_submitted"], now - 500)
        account, parts = self.account()
        self.assertEqual(account["starts"], 2)
        self.assertGreater(parts["queue_s"], 0.5)
        self.assertEqual(parts["stopped_s"], 0)
        self.assertAlmostEqual(parts["job_s"], 1, delta=1)

    def test_slurm_says_what_the_jobs_before_took(self):
        with open(self.path("sacct"), "w") as file:
            file.write(
                "#!/bin/sh\n"
                'case "$*" in *"-j 17"*) printf "17|9\\n17.batch|9\\n17.0|3600000\\n";;\n'
                '*"-j 18"*) printf "18.0|1800000\\n";; esac\n'
            )
        os.chmod(self.path("sacct"), 0o755)
        path = self.folder + os.pathsep + os.environ["PATH"]
        later = str(int(time.time()) + 900)
        for job, stop in (("17", 10), ("17", 20), ("18", 30), ("19", 40)):
            slurm = {"SLURM_JOB_ID": job, "SLURM_JOB_END_TIME": later, "PATH": path}
            stop = f"run.stop={stop} steps"
            result = harness.run(
                "train", "deck.toml", *self.arguments, "--set", stop, cwd=self.folder, env=slurm
            )
            self.assertEqual(result.returncode, 0, result.text)
        rows = [row for row in harness.read_rows(self.path("run")) if row["kind"] == "account"]
        asked = {
            row["previous_job"]: row["previous_job_energy_j"]
            for row in rows
            if "previous_job" in row
        }
        self.assertEqual(asked, {"slurm 17": 3600000, "slurm 18": 1800000})
        account, _ = self.account()
        self.assertEqual(account["slurm_energy"], {"joules": 5400000, "starts": 2})
        result = harness.run("inspect", "run", "--sacct", cwd=self.folder, env={"PATH": path})
        self.assertIn("energy: Slurm 1.5 kWh, of 2 jobs before the latest", result.stdout)
        self.assertIn("energy: Slurm 1.5 kWh, of 2 of 3 jobs", result.stdout)
        os.remove(self.path("sacct"))
        result = harness.run("inspect", "run", "--sacct", cwd=self.folder, env={"PATH": path})
        self.assertIn("energy: Slurm unknown, of 0 of 3 jobs", result.stdout)
        result = harness.run("inspect", "deck.toml", "--sacct", cwd=self.folder)
        self.assertEqual(result.returncode, 2)


if __name__ == "__main__":
    harness.main(2)
