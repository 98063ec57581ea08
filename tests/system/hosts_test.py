# SPDX-License-Identifier: Apache-2.0
"""Tests training over two hosts (tests/system/hosts.py).

The results have the bits of one host. One of the hosts is cut off, frozen or killed. A stranger on
the second host records and forges heartbeats (heartbeat_stranger.py). With -v the script prints the
duration of each test.
"""

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

import harness
import hosts

HERE = os.path.dirname(os.path.abspath(__file__))
# seconds without heartbeat. A shorter one could blame a healthy host on a busy machine
DEADLINE = 4
# A constant rate: the final step, which is known only at the end, changes no earlier one.
ARGUMENTS = (
    "--set",
    "schedule.kind=constant",
    "--set",
    "schedule.rate=1e-4",
    "--set",
    "evaluate.every=1000 steps",
    "--set",
    "checkpoint.every=4 steps",
    "--set",
    "checkpoint.best=none",
    "--set",
    "health.watchdog=%d seconds" % DEADLINE,
)
# The run does not end before the host is disturbed. Its steps take a second, and one of them is
# known by then. A rank may stall for ten times as long, so the missing heartbeat is noticed first.
ENDLESS = (
    "--set",
    "run.stop=1000000 steps",
    "--allow-faults",
    "--set",
    "debug.fault=sleep 1 rank 0 step 5..1000000",
)

DISTURBANCES = {
    "cut": lambda host: host.set_link("down"),
    "frozen": lambda host: host.signal_all(signal.SIGSTOP),
    "dead": lambda host: host.signal_all(signal.SIGKILL),
}


class SeveralHosts(harness.Case):
    samples = 320

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        names = ["alpha", "beta"] + [
            where + "-" + what for what in DISTURBANCES for where in ("first", "second")
        ]
        cls.hosts = hosts.Hosts(names, cls.shared + "/hosts")

    @classmethod
    def tearDownClass(cls):
        cls.hosts.close()
        super().tearDownClass()

    def finish(self, process):
        text, _ = process.communicate(timeout=harness.PATIENCE)
        self.assertEqual(process.returncode, 0, text)

    def start(self, names, run, *more, ranks_per_host=1):
        return self.hosts.start(
            names,
            "train",
            "deck.toml",
            "--set",
            "run.folder=" + run,
            *ARGUMENTS,
            *more,
            ranks_per_host=ranks_per_host,
            cwd=self.folder
        )

    def until(self, step):
        return "--set", "run.stop=%d steps" % step

    def checkpoint(self, run, step):
        return self.path(run, "checkpoints/step_%09d.h5" % step)

    def has_checkpoint(self, run):
        return os.path.isdir(self.path(run, "checkpoints")) and bool(
            harness.checkpoints(self.path(run))
        )

    def disturbed(self, what):
        """Disturbs the second of two hosts and returns the step at which the run ended.

        The job ends, names that host and leaves nothing behind. A later start resumes.
        """
        names = ("first-" + what, "second-" + what)
        process = self.start(names, what, *ENDLESS)
        try:
            harness.wait_for(
                lambda: process.poll() is not None
                or (self.has_checkpoint(what) and harness.row_count(self.path(what), "train") >= 6),
                "a checkpoint, and a slow step",
            )
            begin = time.monotonic()
            DISTURBANCES[what](self.hosts[names[1]])
            harness.wait_for(
                lambda: process.poll() is not None or os.path.exists(self.path(what, "exit.json")),
                "the end",
            )
            named = time.monotonic() - begin
            text, _ = process.communicate(timeout=harness.PATIENCE)
            ended = time.monotonic() - begin
        finally:
            process.kill()
        self.assertNotIn(process.returncode, (0, 75), text)
        # the launcher may notice dead processes first
        if what != "dead" or os.path.exists(self.path(what, "exit.json")):
            said = [line for line in text.splitlines() if line.startswith("error:")]
            self.assertEqual(len(said), 1, text)
            self.assertRegex(said[0], r"rank 1 on second-%s sent no heartbeat for \d" % what)
            with open(self.path(what, "exit.json")) as file:
                record = json.load(file)
            self.assertEqual(record["code"], 77)
            self.assertIn("rank 1 on second-" + what, record["reason"])
        harness.wait_for(
            lambda: not self.hosts[names[0]].processes(), "no process on the first host"
        )
        if what == "frozen":
            self.hosts[names[1]].signal_all(signal.SIGCONT)
        harness.wait_for(
            lambda: not self.hosts[names[1]].processes(), "no process on the second host"
        )
        self.hosts[names[1]].set_link("up")
        harness.wait_for(
            lambda: self.hosts[names[1]].reaches(self.hosts[names[0]]),
            "the network goes through again",
        )
        last = int(re.search(r"\d+", harness.checkpoints(self.path(what))[-1]).group()) + 8
        self.finish(self.start(names, what, *self.until(last)))
        print(
            "%s: exit code %d; named after %.1f s, ended after %.1f s"
            % (what, process.returncode, named, ended)
        )
        return last

    def test_a_host_is_lost(self):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            last = dict(zip(DISTURBANCES, pool.map(self.disturbed, DISTURBANCES)))
        self.train(
            "--set",
            "run.folder=whole",
            *ARGUMENTS,
            *self.until(max(last.values())),
            "--set",
            "checkpoint.keep=1000"
        )
        for what, step in last.items():
            self.assertEqual(
                harness.digest(self.checkpoint(what, step)),
                harness.digest(self.checkpoint("whole", step)),
                what,
            )

    def test_a_stranger_changes_nothing(self):
        process = self.start(("alpha", "beta"), "stranger", *ENDLESS)
        try:
            harness.wait_for(
                lambda: process.poll() is not None
                or harness.row_count(self.path("stranger"), "train") >= 2,
                "a step",
            )
            # Long enough that refused heartbeats would be missed.
            report = subprocess.run(
                self.hosts["beta"].inside()
                + [sys.executable, os.path.join(HERE, "heartbeat_stranger.py"), str(3 * DEADLINE)],
                capture_output=True,
                text=True,
                check=True,
                timeout=harness.PATIENCE,
            )
            self.assertIsNone(process.poll(), "the job has ended")
            open(self.path("stranger", "STOP"), "w").close()
            text, _ = process.communicate(timeout=harness.PATIENCE)
        finally:
            process.kill()
        self.assertEqual(process.returncode, 75, text)
        self.assertNotIn("heartbeat", text)
        found = json.loads(report.stdout)
        # heartbeats and answers go over the network, and none over loopback of the second host
        self.assertEqual(set(found["recorded"]), {"eth0"}, found)
        self.assertGreater(found["recorded"]["eth0"], 10, found)
        self.assertGreater(found["sent"], 100, found)

    def test_two_hosts_have_the_bits_of_one(self):
        self.finish(self.start(("alpha", "beta"), "two", *self.until(24)))
        self.finish(self.start(("alpha",), "one", *self.until(24), ranks_per_host=2))
        self.assertEqual(
            harness.digest(self.checkpoint("two", 24)), harness.digest(self.checkpoint("one", 24))
        )
        with open(self.path("two/environment.json")) as file:
            self.assertEqual(json.load(file)[0]["hosts"], ["alpha", "beta"])


if __name__ == "__main__":
    hosts.enter()
    unittest.main()
