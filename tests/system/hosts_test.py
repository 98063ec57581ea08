"""Training over two hosts (tests/system/hosts.py): the bits of one host, and what becomes of a run one of whose hosts is cut off, frozen or dead. With -v it
says how long each took."""

import concurrent.futures
import json
import os
import re
import signal
import time
import unittest

import harness
import hosts

STEPS = 24
LAST = "checkpoints/step_%09d.h5" % STEPS
DEADLINE = 2  # seconds without a sign of life; grows with the ranks on a core
ARGUMENTS = ("--set", "run.stop=%d steps" % STEPS, "--set", "evaluate.every=%d steps" % STEPS, "--set", "checkpoint.every=4 steps", "--set", "checkpoint.best=none",
             "--set", "health.watchdog=%d seconds" % DEADLINE)
# Steps after the first checkpoint take long, so that what is done to a host is done in the middle of the run.
SLOW = ("--allow-faults", "--set", "debug.fault=sleep 0.3 rank 0 step 5..%d" % STEPS)

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
        names = ["alpha", "beta"] + [where + "-" + what for what in DISTURBANCES for where in ("first", "second")]
        cls.hosts = hosts.Hosts(names, cls.shared + "/hosts")

    @classmethod
    def tearDownClass(cls):
        cls.hosts.close()
        super().tearDownClass()

    def wait_for(self, condition, what):
        """Far longer than it takes on a busy machine."""
        deadline = time.monotonic() + 120
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)

    def finish(self, process, timeout=300):
        text, _ = process.communicate(timeout=timeout)
        self.assertEqual(process.returncode, 0, text)

    def start(self, names, run, *more, ranks_each=1):
        return self.hosts.start(names, "train", "deck.toml", "--set", "run.folder=" + run, *ARGUMENTS, *more, ranks_each=ranks_each, cwd=self.folder)

    def has_checkpoint(self, run):
        return os.path.isdir(self.path(run, "checkpoints")) and bool(harness.checkpoints(self.path(run)))

    def disturbed(self, what):
        """A run over two hosts, the second of which is disturbed. The job ends, names that host, leaves nothing behind, and goes on later. Returns what took how long."""
        names = ("first-" + what, "second-" + what)
        process = self.start(names, what, *SLOW)
        try:
            self.wait_for(lambda: process.poll() is not None or self.has_checkpoint(what), "a checkpoint")
            begin = time.monotonic()
            DISTURBANCES[what](self.hosts[names[1]])
            self.wait_for(lambda: process.poll() is not None or os.path.exists(self.path(what, "exit.json")), "the end")
            named = time.monotonic() - begin
            text, _ = process.communicate(timeout=120)
            ended = time.monotonic() - begin
        finally:
            process.kill()
        self.assertNotIn(process.returncode, (0, 75), text)
        if what != "dead" or os.path.exists(self.path(what, "exit.json")):  # the launcher may hear of dead processes first
            said = [line for line in text.splitlines() if line.startswith("error:")]
            self.assertEqual(len(said), 1, text)
            self.assertRegex(said[0], r"rank 1 on second-%s gives no sign of life for \d" % what)
            with open(self.path(what, "exit.json")) as file:
                record = json.load(file)
            self.assertEqual(record["code"], 77)
            self.assertIn("rank 1 on second-" + what, record["reason"])
        self.wait_for(lambda: not self.hosts[names[0]].processes(), "processes are left on the first host")
        if what == "frozen":
            self.hosts[names[1]].signal_all(signal.SIGCONT)
        self.wait_for(lambda: not self.hosts[names[1]].processes(), "processes are left on the second host")
        self.hosts[names[1]].set_link("up")
        self.wait_for(lambda: self.hosts[names[1]].reaches(self.hosts[names[0]]), "the network goes through again")
        newest = int(re.search(r"\d+", harness.checkpoints(self.path(what))[-1]).group())
        self.assertLess(newest, STEPS)
        self.finish(self.start(names, what))
        return "%s: exit code %d; named after %.1f s, ended after %.1f s" % (what, process.returncode, named, ended)

    def test_a_host_is_lost(self):
        self.train("--set", "run.folder=whole", *ARGUMENTS)
        whole = harness.digest(self.path("whole", LAST))
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for line in pool.map(self.disturbed, DISTURBANCES):
                print(line)
        for what in DISTURBANCES:
            self.assertEqual(harness.digest(self.path(what, LAST)), whole, what)

    def test_two_hosts_have_the_bits_of_one(self):
        self.finish(self.start(("alpha", "beta"), "two"))
        self.finish(self.start(("alpha",), "one", ranks_each=2))
        self.assertEqual(harness.digest(self.path("two", LAST)), harness.digest(self.path("one", LAST)))
        with open(self.path("two/environment.json")) as file:
            self.assertEqual(json.load(file)[0]["hosts"], ["alpha", "beta"])


if __name__ == "__main__":
    hosts.enter()
    unittest.main()
