#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs parts or sections of the GPU acceptance (scripts/gpu_session.sh finds the libraries).

A section starts only if its time limit fits into --seconds. It fails if one of its runs does; the
other runs follow all the same. Speeds are only reported. A signal ends the running section and
leaves out the others. Results: OUT/results.tar.gz and OUT/summary.md (results.py). Exit status: 0
if every section passed or was left out, otherwise 1.
"""

import argparse
import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import checks  # noqa: E402
import gradients  # noqa: E402
import kernel_profile  # noqa: E402
import loopback  # noqa: E402
import measured_machine  # noqa: E402
import networks  # noqa: E402
import parity  # noqa: E402
import results  # noqa: E402
import runs  # noqa: E402

BLOCKING = {
    "CUDA_LAUNCH_BLOCKING": "1"
}  # the host waits for each kernel, so the failing one is named
LAST_LINES = 40


def again(section):
    """Repeats the failed runs of the other sections, with the host waiting for each kernel."""
    section.result["again"] = found = {}
    for name in section.results.order:
        earlier = section.results.of(name)
        if not SECTIONS[name].repeated or not earlier or not earlier.get("failed"):
            continue
        part = Section(name, section.arguments, section.results, section.left())
        part.only, part.environment = set(earlier["failed"]), BLOCKING
        part.use_logs("again-" + name)
        try:
            SECTIONS[name].work(part)
        except Exception as failure:  # of any kind: the next section may work
            part.result["failed"].update((run, describe(failure)) for run in part.only)
        found[name] = {
            run: {
                "verdict": part.result["failed"].get(run)
                or ("passed" if run in part.attempted else "not run"),
                "last_lines": results.last_lines(part.newest_log(run), LAST_LINES),
            }
            for run in earlier["failed"]
        }
        section.results.note_progress(section.result)
    verdicts = [run["verdict"] for runs_of in found.values() for run in runs_of.values()]
    section.result["summary"] = "%d runs failed before; now %d pass, %d were not run" % (
        len(verdicts),
        verdicts.count("passed"),
        verdicts.count("not run"),
    )


class Kind:
    """A section: its work, its time limit in seconds, and whether it needs a GPU.

    `repeated`: section `again` repeats its failed runs.
    """

    def __init__(self, limit, work, needs_gpu=False, repeated=True):
        self.limit, self.work = limit, work
        self.needs_gpu, self.repeated = needs_gpu, repeated


SECTIONS = {
    "libraries": Kind(15, checks.libraries, needs_gpu=True, repeated=False),
    "parity": Kind(100, lambda section: parity.compare(section, section.device)),
    "gradients": Kind(240, lambda section: gradients.run(section, section.device)),
    "networks": Kind(130, networks.first_steps, needs_gpu=True),
    "tests": Kind(80, checks.tests),
    "ceilings": Kind(60, measured_machine.ceilings, needs_gpu=True, repeated=False),
    "kernels": Kind(35, measured_machine.kernels),
    "resnet50": Kind(
        250, lambda section: networks.side_by_side(section, "resnet50"), needs_gpu=True
    ),
    "gpt2": Kind(240, lambda section: networks.side_by_side(section, "gpt2"), needs_gpu=True),
    "sanitizer": Kind(90, checks.sanitizer, needs_gpu=True, repeated=False),
    "layouts": Kind(90, checks.layouts),
    "again": Kind(180, again, repeated=False),
    "profile": Kind(200, kernel_profile.run, needs_gpu=True, repeated=False),
}
# The limits of a part's sections fit into PART_SECONDS. Real networks come first.
PARTS = {
    1: ("libraries", "parity", "gradients", "networks", "tests"),
    2: ("ceilings", "kernels", "resnet50", "gpt2"),
    3: ("sanitizer", "layouts", "again", "profile"),
}
PART_SECONDS = 585


def describe(failure):
    """Returns the text of a requirement that is not met, or the traceback of another error."""
    if isinstance(failure, runs.Failed):
        return str(failure)
    return "".join(traceback.format_exception(failure)[-3:])


class Section(runs.Runner):
    """A running section. Its result becomes SECTION.json."""

    def __init__(self, name, arguments, all_results, seconds):
        self.name, self.arguments, self.results = name, arguments, all_results
        self.limit = min(SECTIONS[name].limit * arguments.patience, seconds)
        super().__init__(
            os.path.join(arguments.bin, "trireme"),
            os.path.join(arguments.work, name),
            self.limit,
            algorithms=all_results.path("algorithms.txt"),
        )
        self.use_logs(name)
        self.data = os.path.abspath(arguments.reference)
        self.shared = os.path.join(arguments.work, "shared")  # datasets of several sections
        os.makedirs(self.shared, exist_ok=True)
        self.device, self.batch, self.python = arguments.device, arguments.batch, arguments.python
        self.only, self.attempted = None, set()  # names of runs; None: all
        self.result = {"section": name, "passed": False, "summary": "", "failed": {}, "seconds": 0}
        self.result["gpu"] = arguments.gpu
        self.lock = threading.Lock()

    def use_logs(self, name):
        self.logs = self.results.path("logs", name)
        os.makedirs(self.logs, exist_ok=True)

    def newest_log(self, name):
        """Returns the log of a run, or of the last program that it started under another name."""
        if os.path.exists(self.log_of(name)):
            return self.log_of(name)
        logs = [entry for entry in os.scandir(self.logs) if entry.name.endswith(".log")]
        return max(logs, key=lambda entry: entry.stat().st_mtime).path if logs else ""

    def attempt(self, name, work, needed=False):
        """Calls `work` and returns its value. Records a failure under the run's name and returns
        None.

        `needed`: other runs depend on it, so it also runs when only those are repeated.
        """
        if not self.wanted(name) and not needed:
            return None
        try:
            with self.lock:
                self.attempted.add(name)
            return work()
        except Exception as failure:  # of any kind: the next run may work
            with self.lock:
                self.result["failed"][name] = describe(failure)
            return None
        finally:
            with self.lock:
                if self.only is None:
                    self.results.note_progress(self.result)

    def wanted(self, name):
        return self.only is None or name in self.only

    def programs(self, pattern):
        """Returns the paths of the test programs whose whole name matches."""
        folder = self.arguments.bin
        names = sorted(name for name in os.listdir(folder) if re.fullmatch(pattern, name))
        if not names:
            raise runs.Failed("no %s in %s" % (pattern, folder))
        return [os.path.join(folder, name) for name in names]


def run_section(name, arguments, all_results, left):
    """Runs a section and returns its result."""
    kind, start = SECTIONS[name], time.monotonic()
    all_results.begin(name)
    section = Section(name, arguments, all_results, left)
    result = section.result
    try:
        if arguments.device != "cuda" and kind.needs_gpu:
            result["passed"], result["summary"] = None, "left out: needs a GPU"
        else:
            kind.work(section)
            result["passed"] = not result["failed"]
    except Exception as failure:  # of any kind: the next section may work
        result["failed"][name] = describe(failure)
    if result["failed"]:
        words = "failed: " + ", ".join(result["failed"])
        result["summary"] = "; ".join(filter(None, [result["summary"], words]))
    result["seconds"] = round(time.monotonic() - start, 1)
    shutil.rmtree(section.folder, ignore_errors=True)
    all_results.end(result)
    for run, text in result["failed"].items():
        print("%s: %s: %s" % (name, run, text), flush=True)
    print("%s: %s (%.0f s)" % (name, result["summary"], result["seconds"]), flush=True)
    return result


def not_run(name, why, all_results):
    result = {"section": name, "passed": None, "summary": "not run: " + why, "seconds": 0}
    if not all_results.of(name):  # of an earlier call
        all_results.end(result)
    print("%s: not run: %s" % (name, why), flush=True)
    return result


def run_all(names, arguments, all_results):
    """Runs the sections one after the other, as far as the time allows."""
    deadline = time.monotonic() + arguments.seconds * arguments.patience
    found, broken = [], False
    for name in names:
        left = deadline - time.monotonic()
        if runs.ENDING.is_set():
            found.append(not_run(name, "ended by a signal", all_results))
        elif broken:
            found.append(not_run(name, "libraries are missing", all_results))
        elif SECTIONS[name].limit * arguments.patience > left:
            found.append(not_run(name, "no time left", all_results))
        else:
            found.append(run_section(name, arguments, all_results, left))
        if name == "libraries" and found[-1]["passed"] is False:
            broken = not arguments.rehearse
    return found


def gpu_of(device):
    """Returns name, driver, used memory and clock of the GPU, for the notes."""
    if device != "cuda":
        return "device: " + device
    fields = "name,driver_version,memory.used,clocks.sm,persistence_mode"
    words = ["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader"]
    try:
        found = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
        return "GPU: " + " ".join(found.stdout.decode(errors="replace").split()[:40])
    except (OSError, subprocess.SubprocessError) as failure:
        return "GPU: nvidia-smi cannot be asked: %s" % failure


def parse(words):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, help="folder of trireme and the test programs")
    parser.add_argument("--reference", required=True, help="folder that parity.py made")
    parser.add_argument("--out", required=True)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--part", type=int, choices=list(PARTS))
    chosen.add_argument("--sections", help="with commas; known: " + ", ".join(SECTIONS))
    parser.add_argument(
        "--earlier",
        action="append",
        default=[],
        help="results.tar.gz of earlier parts: their results and algorithms are used and kept",
    )
    parser.add_argument(
        "--seconds", type=float, default=PART_SECONDS, help="limit of the part; the last one counts"
    )
    parser.add_argument("--work", help="folder of scratch data (a temporary one)")
    parser.add_argument(
        "--device",
        default="cuda",
        choices=["cuda", "cpu"],
        help="cpu: the sections that need no GPU, to try the acceptance itself",
    )
    parser.add_argument("--rehearse", action="store_true", help="go on if libraries are missing")
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    parser.add_argument("--batch", type=int, default=0, help="of the networks (256 and 32)")
    parser.add_argument("--patience", type=float, default=1, help="all time limits times this")
    arguments = parser.parse_args(words)
    names = PARTS[arguments.part] if arguments.part else arguments.sections.split(",")
    if unknown := [name for name in names if name not in SECTIONS]:
        known = ", ".join(SECTIONS)
        parser.error('unknown section "%s"; known: %s' % (", ".join(unknown), known))
    if missing := [path for path in arguments.earlier if not os.path.isfile(path)]:
        parser.error("--earlier: %s is no file; give a results.tar.gz" % missing[0])
    for option in ("seconds", "patience"):
        if not 0 < getattr(arguments, option) < float("inf"):
            parser.error("--%s: must be a number above 0" % option)
    if arguments.batch < 0:
        parser.error("--batch: must not be negative")
    if not os.path.isdir(arguments.bin):
        parser.error("--bin: %s is no folder; give the folder of trireme" % arguments.bin)
    losses = os.path.join(arguments.reference, "losses.json")
    if {"parity", "layouts"} & set(names) and not os.path.isfile(losses):
        parser.error("--reference: there is no %s; scripts/gpu/parity.py makes it" % losses)
    if arguments.work and os.path.exists(os.path.join(arguments.work, "results")):
        parser.error("--work: %s is of another run; give an empty folder" % arguments.work)
    for option in ("out", "work"):
        folder = getattr(arguments, option)
        try:
            if folder is not None:
                os.makedirs(folder, exist_ok=True)
        except OSError as failure:
            parser.error('--%s: "%s": %s' % (option, folder, failure.strerror))
    return arguments, names


def main():
    arguments, names = parse(sys.argv[1:])

    all_results = None

    def end(*_):
        runs.stop_all()
        if not all_results or not all_results.running:
            sys.exit(1)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    if not arguments.work:
        arguments.work = tempfile.mkdtemp(prefix="trireme-gpu-")
        atexit.register(shutil.rmtree, arguments.work, True)
    arguments.work = os.path.abspath(arguments.work)
    all_results = results.Results(arguments.out, arguments.work, SECTIONS, arguments.earlier)
    arguments.gpu, network = gpu_of(arguments.device), loopback.bring_up()
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    all_results.note("%s: %s; %s; %s" % (now, ", ".join(names), arguments.gpu, network))
    print(arguments.gpu, network, sep="\n", flush=True)
    found = run_all(names, arguments, all_results)
    with open(os.path.join(arguments.out, "summary.md")) as file:
        print("\n" + file.read())
    failed = any(result["passed"] is False for result in found)
    return 1 if failed or runs.ENDING.is_set() else 0


if __name__ == "__main__":
    sys.exit(main())
