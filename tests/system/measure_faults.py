# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of faults, for the table of docs/reliability.md, which joins similar rows.

For each fault: seconds until the job has ended, number of lost steps, and seconds until the next
start has made them again. This is not a test: faults_test.py checks exit codes, lines and bits. Run
it on an idle machine.

  TRIREME=build/release/bin/trireme python3 tests/system/measure_faults.py [PART OF A NAME ...]
"""

import argparse
import dataclasses
import os
import shutil
import signal
import statistics
import sys
import threading
import time

import harness
from safe_harbour_test import libc

MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096
# A checkpoint every EVERY steps. The fault is in step AT, or in the checkpoint of step AT + 3.
EVERY, AT, STEPS = (10, 27, 60)
ARGUMENTS = (
    "--set",
    "run.stop=%d steps" % STEPS,
    "--set",
    "checkpoint.every=%d steps" % EVERY,
    "--set",
    "evaluate.every=1000 steps",
    "--set",
    "checkpoint.best=none",
    "--set",
    "model.width=24",
    "--set",
    "health.watchdog=2 seconds",
)


@dataclasses.dataclass
class Fault:
    name: str
    fault: str = ""  # the deck key debug.fault
    act: object = (
        # Disturbs the run after step AT, where rank 0 stops itself: act(case, process, ids of its
        # ranks, of which the first one is stopped).
        None
    )
    damage: object = (
        None  # Damages the newest checkpoint after a run ended at step AT, before the next start.
    )
    before: object = None  # prepares the run: before(case)
    after: object = None  # repairs the damage before the next start: after(case)
    ranks: int = 2
    more: tuple = ()


def send(signal_number, index):
    return lambda case, process, pids: os.kill(pids[index], signal_number)


def cut(path):
    os.truncate(path, os.path.getsize(path) * 2 // 3)


def zero(path):
    size = os.path.getsize(path)
    with open(path, "wb") as file:
        file.write(bytes(size))


def flip(path):
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def mount(case, source, kind, flags, options):
    folder = case.path("run").encode()
    if libc.mount(source or folder, folder, kind, flags, options) != 0:
        raise PermissionError(
            "this user may not mount: measured as root in a mount namespace of its own"
        )


def make_read_only(case, process, pids):
    mount(case, None, None, MS_BIND, None)
    mount(case, None, None, MS_BIND | MS_REMOUNT | MS_RDONLY, None)


def unmount(case):
    libc.umount2(case.path("run").encode(), 2)


def give_a_small_disk(case):
    """Makes a disk with space for two checkpoints, but not for a third."""
    case.train(*ARGUMENTS, "--set", "run.folder=size", "--set", "run.stop=%d steps" % EVERY)
    size = os.path.getsize(case.path("size/checkpoints/step_%09d.h5" % EVERY))
    os.makedirs(case.path("run"))
    mount(case, b"tmpfs", b"tmpfs", 0, b"size=%d" % (2 * size + (3 << 19)))


def make_room(case):
    mount(case, b"tmpfs", b"tmpfs", MS_REMOUNT, b"size=100m")


KILL = "kill rank %d step %d"
PHASES = {
    "before a checkpoint": "checkpoint-begin",
    "in the middle of its write": "checkpoint-write",
    "after it is closed": "checkpoint-close",
    "before its rename": "checkpoint-rename",
    "after its rename": "checkpoint-renamed",
    "during rotation": "checkpoint-rotate",
}
FAULTS = [
    Fault("rank 0 of 2 killed in a step", KILL % (0, AT + 1)),
    Fault("rank 1 of 4 killed in a step", KILL % (1, AT + 1), ranks=4),
    Fault("rank 3 of 4 killed in a step", KILL % (3, AT + 1), ranks=4),
    *[
        Fault("rank %d killed %s" % (rank, when), (KILL + " phase %s") % (rank, AT + 3, phase))
        for when, phase in PHASES.items()
        for rank in ((0,) if phase == "checkpoint-rotate" else (0, 1))
    ],
    Fault(
        "the launcher killed",
        "sleep 3600 rank 0 step %d" % (AT + 1),
        act=lambda case, process, pids: process.kill(),
    ),
    Fault("rank 0 stopped (SIGSTOP)", "stop rank 0 step %d" % (AT + 1)),
    Fault("rank 1 stopped", "stop rank 1 step %d" % (AT + 1)),
    Fault("rank 1 stands still, its signs go on", "sleep 3600 rank 1 step %d" % (AT + 1)),
    Fault("SIGTERM to rank 1 alone", act=send(signal.SIGTERM, -1)),
    Fault("run folder taken away", act=lambda case, process, pids: shutil.rmtree(case.path("run"))),
    Fault("run folder becomes read-only", act=make_read_only, after=unmount),
    Fault(
        "disk full",
        before=give_a_small_disk,
        after=make_room,
        more=("--set", "checkpoint.keep=100"),
    ),
    Fault("gradient of rank 1 not a number, one step", "nan rank 1 step %d" % (AT + 1)),
    Fault(
        "the same, 5 steps in a row",
        "nan rank 1 step %d..%d" % (AT, AT + 4),
        more=("--set", "health.rollback_after=5"),
    ),
    Fault(
        "a bit of rank 1's weights flipped",
        "flip rank 1 step %d" % (AT + 1),
        more=("--set", "health.compare_replicas=5 steps"),
    ),
    Fault("newest checkpoint cut short", damage=cut),
    Fault("newest checkpoint zeroed", damage=zero),
    Fault("newest checkpoint with a flipped bit", damage=flip),
]


class Watcher:
    """Records the time of the newest row of a run, and the highest step so far."""

    def __init__(self, folder):
        self.folder, self.at, self.step, self.ending = folder, time.monotonic(), 0, False
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.ending:
            try:
                steps = [row["step"] for row in harness.read_rows(self.folder, "train")]
                if steps and steps[-1] != self.step:
                    self.at, self.step = time.monotonic(), steps[-1]
            # The file does not exist yet, or its last line is incomplete.
            except (OSError, ValueError):
                pass
            time.sleep(0.01)

    def end(self):
        self.ending = True
        self.thread.join()


def seconds(value):
    return "%.1f s" % value


def newest(case):
    try:
        return max([int(name[5:14]) for name in harness.checkpoints(case.path("run"))], default=0)
    except OSError:
        return 0


def measure(case, fault):
    """Returns one row of the table."""
    first = (
        fault.damage is not None
        and ("--set", "run.stop=%d steps" % AT, "--set", "schedule.length=%d steps" % STEPS)
        or ()
    )
    if fault.before:
        fault.before(case)
    watcher = Watcher(case.path("run"))
    faults = ("--allow-faults", "--set", "debug.fault=" + fault.fault) if fault.fault else ()
    if fault.act and not fault.fault:
        process, pids, held = case.start_held(
            *ARGUMENTS, *fault.more, step=AT + 1, ranks=fault.ranks
        )
        fault.act(case, process, [held] + [pid for pid in pids if pid != held])
        watcher.at = time.monotonic()
        os.kill(held, signal.SIGCONT)
    else:
        process = harness.start(
            "train",
            "deck.toml",
            *ARGUMENTS,
            *first,
            *fault.more,
            *faults,
            ranks=fault.ranks,
            cwd=case.folder
        )
        if fault.act:
            harness.wait_for(lambda: watcher.step == AT, "the step before the fault")
            fault.act(case, process, harness.ranks_of(process))
            watcher.at = time.monotonic()
    text, _ = process.communicate()
    harness.wait_for(lambda: not harness.processes_in(case.folder), "all processes gone")
    ended = time.monotonic()
    watcher.end()
    if fault.after:
        fault.after(case)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    if code == 0 and not fault.damage:
        return [fault.name, code, *within(case)]
    if fault.damage:
        fault.damage(case.path("run/checkpoints", harness.checkpoints(case.path("run"))[-1]))
        # The damaged checkpoint was set aside and now has another name.
        case.train(
            *ARGUMENTS,
            "--set",
            "run.stop=%d steps" % (AT + 1),
            "--set",
            "schedule.length=%d steps" % STEPS,
            ranks=fault.ranks
        )
        restarts = [
            row["step"]
            for row in harness.read_rows(case.path("run"), "event")
            if row["event"] == "restart"
        ]
        return [fault.name, 0, "at the next start", AT - restarts[-1], "within that start"]
    rows = (
        harness.read_rows(case.path("run"), "event")
        if os.path.exists(case.path("run/metrics.jsonl"))
        else []
    )
    failed = [row["step"] for row in rows if row["event"] == "checkpoint_failed"]
    detected = (
        "after step %d, the end after step %d" % (failed[0], failed[-1])
        if failed
        else seconds(ended - watcher.at)
    )
    lost = watcher.step - newest(case)
    begin = time.monotonic()
    again = harness.start("train", "deck.toml", *ARGUMENTS, ranks=fault.ranks, cwd=case.folder)
    before = harness.row_count(case.path("run"), "train")
    harness.wait_for(
        lambda: again.poll() is not None
        or harness.row_count(case.path("run"), "train") >= before + max(1, lost),
        "the steps lost",
    )
    recovery = time.monotonic() - begin
    again.communicate()
    return [fault.name, code, detected, lost, seconds(recovery)]


def within(case):
    """For faults that a run survives: returns the step that detected it, and the number of wasted
    steps."""
    rows = [
        row
        for row in harness.read_rows(case.path("run"), "event")
        if row["event"] in ("skipped_step", "rollback")
    ]
    steps = [row["step"] for row in harness.read_rows(case.path("run"), "train")]
    back = [row for row in rows if row["event"] == "rollback"]
    skipped = len(rows) - len(back)
    if not back:
        return ["the same step", "0 (%d not applied)" % skipped, "none"]
    return [
        "after step %d" % max(a for a, b in zip(steps, steps[1:]) if b <= a),
        "%d (%s)" % (len(steps) - STEPS, back[0]["detail"].split(", ")[-1]),
        "within the run",
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="PART", help="only the faults whose name holds one of these"
    )
    names = parser.parse_args().names

    class Measured(harness.Case):
        samples = 320

        def runTest(self):
            pass

    Measured.setUpClass()
    step_seconds = []
    print("| fault | exit code | detected | steps lost | recovery |\n|---|---|---|---|---|")
    for fault in FAULTS:
        if names and not any(name in fault.name for name in names):
            continue
        case = Measured()
        case.setUp()
        try:
            print("| " + " | ".join(map(str, measure(case, fault))) + " |", flush=True)
            step_seconds += (
                [row["step_s"] for row in harness.read_rows(case.path("run"), "train")]
                if fault.ranks == 2
                else []
            )
        finally:
            unmount(case)
            case.tearDown()
    Measured.tearDownClass()
    if step_seconds:
        print(
            "\n%d cores, 2 ranks: a step takes %.0f ms"
            % (os.cpu_count(), 1000 * statistics.median(step_seconds))
        )


if __name__ == "__main__":
    sys.exit(main())
