# SPDX-License-Identifier: Apache-2.0
"""Tests the reports of hangs: by the watchdog, and at SIGUSR2.

A rank sleeps or stops itself in a step while the others wait for it. The reports name the group,
the bucket or the micro-batch, and all outstanding requests. No test depends on the speed of the
machine: each one waits for the event that it needs.
"""

import os
import re
import signal
import subprocess
import time

import harness
from short_run import ARGUMENTS, LAST

# Rank 1 or 0 sleeps until another process ends it.
SLEEP = ("--allow-faults", "--set", "debug.fault=sleep 3600 rank %d step 12")
STOP = ("--allow-faults", "--set", "debug.fault=stop rank %d step 12")
# seconds, multiplied by the ranks on each core
WATCHDOG = ("--set", "health.watchdog=2 seconds")
# The sum of a gradient, as in the list of requests of a rank that waits for another one.
SUM = (
    r"all_reduce \d+ trireme/parallel/reduce_bucket, bucket \d+: \d+ bytes over group data "
    r"\(world ranks %s\), tree order"
)


def of_rank(words, rank):
    """Returns the options of a fault for this rank."""
    return tuple(word % rank if "%d" in word else word for word in words)


class Hang(harness.Case):
    samples = 320

    def start_writing(self, *more, ranks=2):
        """Starts a run whose output goes to the file `output`, which a test can read meanwhile."""
        with open(self.path("output"), "w") as file:
            return subprocess.Popen(
                harness.command("train", "deck.toml", *ARGUMENTS, *more, ranks=ranks),
                cwd=self.folder,
                env=harness.environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def output(self):
        with open(self.path("output"), errors="replace") as file:
            return file.read()

    def lost(self, *more, ranks=2):
        """Runs a job that ends because of a lost rank, and returns its output."""
        process = self.start_writing(*more, ranks=ranks)
        self.assertEqual(process.wait(timeout=harness.PATIENCE), 77, self.output())
        text = self.output()
        self.assertEqual(len(self.errors_of(text)), 1, text)
        harness.wait_for(lambda: not harness.processes_in(self.folder), "all processes gone")
        return text

    def assert_lists_all_requests(self, text, rank):
        """Checks that the newest list of outstanding requests of a rank is complete."""
        listed = re.findall(r"rank %d on \S+: request (\d+) of (\d+): " % rank, text)
        if not listed:
            self.assertRegex(text, r"rank %d on \S+: no outstanding requests\n" % rank)
            return
        count = int(listed[-1][1])
        self.assertEqual(listed[-count:], [(str(i + 1), str(count)) for i in range(count)], text)

    # The watchdog

    def test_a_stalled_rank_is_reported_with_the_requests_of_all_that_wait(self):
        text = self.lost(*of_rank(SLEEP, 1), *WATCHDOG, ranks=4)
        self.assertRegex(text, r"error: rank 1 on \S+ stalled for \d")
        for rank in (0, 2, 3):
            self.assertRegex(
                text,
                r"rank %d on \S+: request \d+ of \d+: " % rank
                + SUM % "0, 1, 2, 3"
                + "; blocked on peers\n",
            )
        for rank in range(4):
            self.assert_lists_all_requests(text, rank)
        with open(self.path("run", "log.txt")) as file:
            self.assertRegex(file.read(), r"rank 2 on \S+: request \d+ of \d+: ")

    def test_a_stalled_stage_is_reported_with_the_message_for_which_the_next_one_waits(self):
        text = self.lost(*of_rank(SLEEP, 0), *WATCHDOG, "--set", "parallel.pipeline=2", ranks=4)
        self.assertRegex(text, r"error: rank 0 on \S+ stalled for \d")
        # Ranks 0 and 1 are the first stage, 2 and 3 the second one.
        self.assertRegex(
            text,
            r"rank 2 on \S+: request \d+ of \d+: receive \d+ trireme/train/receive_activation, "
            r"micro-batch 0, chunk 1: \d+ bytes from world rank 0 \(rank 0 of group pipeline\), "
            r"tag \d+; blocked on peers\n",
        )
        self.assertRegex(text, r"over group data \(world ranks (0, 1|2, 3)\)")

    def test_a_stopped_rank_is_not_asked(self):
        text = self.lost(*of_rank(STOP, 1), *WATCHDOG)
        self.assertRegex(text, r"error: rank 1 on \S+ sent no heartbeat for \d")
        self.assertRegex(
            text, r"rank 0 on \S+: request \d+ of \d+: " + SUM % "0, 1" + "; blocked on peers\n"
        )
        self.assertNotRegex(text, r"rank 1 on \S+: (request|no outstanding|outstanding)")

    def test_a_lost_rank_0_is_reported_with_the_requests_of_the_reporter(self):
        text = self.lost(*of_rank(STOP, 0), *WATCHDOG)
        self.assertRegex(text, r"error: rank 0 on \S+ sent no heartbeat for \d")
        self.assertRegex(text, r"rank 0 on \S+: last known: step \d+, phase ")
        self.assert_lists_all_requests(text, 1)

    def test_a_rank_in_a_blocking_call_is_not_blamed(self):
        """Rank 1 sleeps in an evaluation. Rank 0 waits for it in a call that blocks."""
        text = self.lost(
            "--allow-faults",
            "--set",
            "debug.fault=sleep 3600 rank 1 step 10 phase evaluation",
            *WATCHDOG,
        )
        self.assertRegex(text, r"error: rank 1 on \S+ stalled for \d")
        self.assertRegex(
            text,
            r"rank 0 on \S+: last known: step 10, phase evaluation; .* blocked on peers for "
            r"[0-9.]+ s: blocking all_reduce of group world \(2 ranks\)\n",
        )

    # SIGUSR2

    def report_of_hang(self, watchdog):
        """Hangs rank 1 in step 12 and sends SIGUSR2 to the launcher until rank 0 is blocked."""
        process = self.start_writing(*of_rank(SLEEP, 1), "--set", "health.watchdog=" + watchdog)
        blocked = r"rank 0 on \S+: request \d+ of \d+: " + SUM % "0, 1" + "; blocked on peers\n"

        def reported():
            if process.poll() is not None:
                return True
            os.kill(process.pid, signal.SIGUSR2)
            time.sleep(0.1)
            text = self.output()
            return re.search(blocked, text) and re.search(r"rank 1 on .* step 12, phase step", text)

        try:
            harness.wait_for(lambda: harness.row_count(self.path("run"), "train") >= 11, "11 steps")
            harness.wait_for(reported, "a report of both ranks")
            self.assertIsNone(process.poll(), self.output())
        finally:
            harness.kill(process)
        text = self.output()
        self.assertRegex(text, r"rank 0 on \S+: step 12, phase step for [0-9.]+ s\n")
        self.assertRegex(text, r"rank 0 on \S+: blocked on peers for [0-9.]+ s: \S+ \d+ trireme/")
        # Nobody waits for the reports of ranks, which may be under way.
        reports = r"(, oldest request: all_gather \d+ trireme/train/rank_reports: .*; not polled)?"
        self.assertRegex(text, r"rank 1 on \S+: computing" + reports + r"\n")
        self.assertEqual(self.errors_of(text), [])

    def test_sigusr2_reports_a_hang_of_every_rank(self):
        self.report_of_hang("1 hour")

    def test_sigusr2_reports_a_hang_also_without_the_watchdog(self):
        self.report_of_hang("none")

    def test_sigusr2_changes_nothing_but_the_output(self):
        self.train(*ARGUMENTS, "--set", "run.folder=whole")
        process = self.start_writing(*of_rank(STOP, 0))

        def stopped():
            pids = harness.ranks_of(process)
            return [pid for pid in pids if (harness.state_of(pid) or "?")[0] == "T"]

        harness.wait_for(stopped, "a rank that stopped itself")
        held = stopped()[0]
        os.kill(process.pid, signal.SIGUSR2)
        harness.wait_for(
            lambda: process.poll() is not None or "rank 1 on " in self.output(),
            "the report of rank 1",
        )
        self.assertIsNone(process.poll(), self.output())
        os.kill(held, signal.SIGCONT)
        self.assertEqual(process.wait(timeout=harness.PATIENCE), 0, self.output())
        for rank in (0, 1):
            self.assertRegex(
                self.output(), r"rank %d on \S+: step \d+, phase \S+ for [0-9.]+ s\n" % rank
            )
        self.assertEqual(
            harness.digest(self.path("run", LAST)), harness.digest(self.path("whole", LAST))
        )


if __name__ == "__main__":
    harness.main(at_once=4)
