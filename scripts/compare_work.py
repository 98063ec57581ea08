#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the work of a training step of two builds: exact counts instead of times.

Usage: compare_work.py BEFORE AFTER [--decks NAME,...] [--instructions perf|callgrind|none]
       BEFORE, AFTER: two builds of `trireme`
       exit 0: nothing grew; 1: each count that grew on a line; 2: something cannot be counted

Times drift on shared machines; these counts do not. Build two commits with the same options:

  git worktree add ../before COMMIT && ln -s "$PWD/.deps" ../before/.deps
  for tree in ../before .; do (cd $tree &&
    cmake --preset release -B build/v3 -DTRIREME_CPU_ARCH=x86-64-v3 &&
    cmake --build build/v3 --target trireme); done
  scripts/compare_work.py ../before/build/v3/bin/trireme build/v3/bin/trireme

TRIREME_CPU_ARCH is for callgrind, which cannot execute AVX-512; leave it out where perf counts. It
stays in the cache of CMake, so these builds have a folder of their own.

Each deck trains a small network on one rank with one thread, deterministic. A count of a step is
the difference between a run of 2N steps and a run of N steps, divided by N, so that the start
cancels out.

  instructions  perf: all of user space. callgrind: those of the program's own code, without
                libraries. oneDNN is kept at SSE4.1: callgrind executes the FMA instructions of AVX2
                15 times slower. A case takes about a minute of a core.
  launches      kernel launches and library calls, on the emulated device
  ops           their calls, the bytes that they read and write at least, and their FLOPs
  memory        planned bytes of a rank; ops and memory are those of `check --json`
  allocations   calls of operator new by the program's own code. Calls inside the C++ library, which
                allocates for most strings, are not seen. Rounded to whole ones: a growth of less
                than one a step may not show.

Launches, calls of ops and allocations may not grow; the other counts by at most --tolerance.
"""

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from compare import processes  # noqa: E402
from compare.models import BATCHES, Images, Tokens, deck_of  # noqa: E402

SUPPORT = HERE.parent / "tests/support"
# Steps of the shorter run. Under callgrind a run takes 50 to 100 times as long; the emulated device
# is slow, too.
STEPS = {"perf": 40, "callgrind": 4}
ALLOCATION_STEPS = 40
LAUNCH_STEPS = 2
# The program logs its progress at each quarter of an epoch, which no run reaches.
EPOCH_STEPS = BATCHES * 41
PRECISIONS = ("float32", "bfloat16")
MOST_NAMES = 5  # functions and ops that are listed for a count that grew


class CannotCount(Exception):
    """A program or a counter failed; the text says why and what to do."""


# --- decks ---------------------------------------------------------------------------------------


class Mlp(Images):
    """A network of two hidden layers on random images."""

    def deck(self):
        return """
[model]
kind = "mlp"
widths = [128, 64]
[optimizer]
kind = "adamw"
"""


def images(kind, name, side, channels, micro, width):
    """Returns a network on images, with data for an epoch. `micro`: images of a step."""
    samples = micro * EPOCH_STEPS // BATCHES
    return kind(name, name, 8, "small", side, channels, samples, 1, 1, width)


def tokens(name, layers, heads, width, context, vocabulary, micro):
    """Returns a transformer with data for an epoch. `micro`: sequences of a step."""
    samples = micro * EPOCH_STEPS // BATCHES
    return Tokens(name, name, layers, heads, width, context, vocabulary, samples, 1, 1)


# All kernels of the CPU can be used: widths are multiples of 32 for Winograd's algorithm, heads
# have 64 values for attention in bfloat16.
MODELS = {
    model.name: model
    for model in (
        images(Images, "resnet", side=16, channels=3, micro=8, width=32),
        tokens("gpt", layers=2, heads=2, width=128, context=64, vocabulary=512, micro=4),
        images(Mlp, "mlp", side=16, channels=1, micro=32, width=0),
    )
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A network and its precision."""

    model: object
    precision: str

    @property
    def name(self):
        return f"{self.model.name}:{self.precision}"


CASES = {case.name: case for case in (Case(m, p) for m in MODELS.values() for p in PRECISIONS)}


# --- one program ---------------------------------------------------------------------------------


def call(words, **variables):
    """Returns the standard output of a command. Raises CannotCount. No process is left."""
    words = [str(word) for word in words]
    try:
        text, _ = processes.call(words, variables=variables)
        return text.decode(errors="replace")
    except OSError as error:
        raise CannotCount(f"{words[0]}: {error.strerror}") from error
    except processes.Broken as error:
        lines = error.lines[-3:]
        if -error.code == signal.SIGILL:
            lines = [
                "an instruction is unknown to callgrind, as those of AVX-512 are: build the "
                "program with -DTRIREME_CPU_ARCH=x86-64-v3, or use --instructions none"
            ]
        raise CannotCount("\n".join([f"{' '.join(words)}: exit {error.code}", *lines])) from error


class Program:
    """Counts the work of a build of `trireme` in a folder of its own."""

    def __init__(self, path, folder):
        self.path = pathlib.Path(path).resolve()
        started = self.path.parent.parent / "libexec/trireme"  # by bin/trireme
        if self.path.name == "trireme" and started.exists():
            self.path = started
        if not os.access(self.path, os.X_OK) or self.path.is_dir():
            raise CannotCount(f"{path}: not a program; name a build, as build/release/bin/trireme")
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True)

    def deck_of(self, model):
        """Returns the path of a model's deck. The first call makes the dataset."""
        folder = self.folder / model.name
        deck = folder / "deck.toml"
        if deck.exists():
            return deck
        folder.mkdir()
        call([self.path, "shard", *model.make_shards(folder), "--out", folder / "data"])
        micro = model.batch * BATCHES // EPOCH_STEPS
        values = {
            "run.name": "work",
            "run.folder": f"{folder}/run",
            "run.deterministic": True,
            "data.train": f"{folder}/data",
            "batch.global": micro,
            "batch.micro": micro,
            "monitor.every": "1000000 steps",
        }
        deck.write_text(deck_of(model, values))
        return deck

    def train(self, case, steps, launcher=(), options=(), **variables):
        """Trains some steps. Returns the log."""
        deck = self.deck_of(case.model)
        run = deck.parent / "run"
        shutil.rmtree(run, ignore_errors=True)
        settings = (f"run.stop={steps} steps", f"precision.compute={case.precision}")
        words = [word for setting in settings for word in ("--set", setting)]
        call([*launcher, self.path, "train", deck, *words, *options], **variables)
        return (run / "log.txt").read_text()

    def launches(self, case, **variables):
        """Returns the kernel launches of a step on the emulated device."""
        options = ("--allow-faults", "--set", "debug.device=emulated")

        def count(steps):
            log = self.train(case, steps, options=options, **variables)
            found = re.search(r"CUDA graphs: \d+ of (\d+) kernel launches", log)
            if not found:
                raise CannotCount(f"{self.path}: the log does not have the number of launches")
            return int(found[1])

        return per_step(count, LAUNCH_STEPS)

    def allocations(self, case, counter):
        """Returns the calls of operator new of a step. `counter`: the library that counts them.

        Rounded, since two runs differ by a few calls: lists of the log grow, and threads start in
        any order."""
        path = self.folder / "allocations"

        def count(steps):
            path.unlink(missing_ok=True)
            self.train(case, steps, LD_PRELOAD=str(counter), TRIREME_TEST_ALLOCATIONS=str(path))
            number = int.from_bytes(path.read_bytes() if path.exists() else b"", sys.byteorder)
            if number == 0:
                raise CannotCount(f"{self.path}: no allocation was seen, not even at the start")
            return number

        return round(per_step(count, ALLOCATION_STEPS))

    def instructions(self, case, counter):
        """Returns the instructions of a step, by function where the counter knows them."""
        path = self.folder / "instructions"
        if counter == "perf":
            launcher = ["perf", "stat", "-x,", "-e", "instructions:u", "-o", path]

            def count(steps):
                self.train(case, steps, launcher=launcher)
                number = perf_count(path.read_text())
                if number is None:
                    raise CannotCount(
                        "perf has not counted the instructions of a run (<not counted>); try "
                        "again, or use --instructions callgrind"
                    )
                return collections.Counter({"all": number})

        else:
            launcher = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={path}"]
            variables = {
                "ONEDNN_MAX_CPU_ISA": "SSE41",
                "LD_PRELOAD": str(build_library("spawn_by_name.cpp", self.folder)),
                "TRIREME_TEST_PROGRAM": str(self.path),
            }

            def count(steps):
                self.train(case, steps, launcher=launcher, **variables)
                return callgrind_counts(path, self.path)

        steps = STEPS[counter]
        shorter, longer = count(steps), count(2 * steps)
        return {name: (longer[name] - shorter[name]) / steps for name in longer | shorter}

    def check(self, case):
        """Returns the ops of a step, {name: (calls, bytes, FLOPs)}, and the planned bytes."""
        words = ["check", self.deck_of(case.model), "--json", "--set", "run.stop=1 steps"]
        words += ["--set", f"precision.compute={case.precision}"]
        text = call([self.path, *words])
        try:
            return work_of(json.loads(text))
        except json.JSONDecodeError as error:
            raise CannotCount(f"{self.path}: `check --json` printed no JSON: {error}") from error
        except KeyError as error:
            raise CannotCount(
                f"{self.path}: `check --json` has no {error}; compare with a newer build"
            ) from error


def work_of(report):
    """Returns the ops of a step and the planned bytes, as check(). Raises KeyError."""
    ops = {}
    for op in report["ops"]:
        calls = op["calls"]
        work = (calls, calls * int(op["bytes"]), calls * int(op["flops"]))
        ops[op["op"]] = tuple(map(sum, zip(work, ops.get(op["op"], (0, 0, 0)))))
    memory = report["memory"]
    return ops, memory["bytes"] + memory["host_bytes"]


def per_step(count, steps):
    """Returns the count of a step, from runs of `steps` and of twice as many steps."""
    total = count(2 * steps) - count(steps)
    return total / steps if total % steps else total // steps


def perf_count(text):
    """Returns the number of instructions in the output of perf; none where it cannot count them.

    Processors with two kinds of cores have a line for each kind."""
    found = re.findall(r"^(\d+),[^,]*,[^,]*instructions", text, re.M)
    return sum(map(int, found)) if found else None


def callgrind_counts(path, program):
    """Returns the instructions of the program's own functions in an output of callgrind.

    A line `calls=` is followed by the cost of the callee, which is counted where it is executed."""
    counts, names, own, function, skip = collections.Counter(), {}, False, "", False
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if skip:
                skip = False
            elif line[0] in "0123456789+-*":
                if own:
                    counts[function] += int(line.split()[1])
            elif line.startswith("calls="):
                skip = True
            elif match := re.match(r"(c?ob|c?fn)=\((\d+)\)(?: (.*))?", line):
                kind, number, name = match.groups()
                key = (kind[-2:], number)
                name = names.setdefault(key, name)
                if kind == "ob":
                    own = name is not None and os.path.realpath(name) == str(program)
                elif kind == "fn":
                    function = name
    if not counts:
        raise CannotCount(f"{path}: callgrind has seen no function of {program}")
    return counts


# --- counters ------------------------------------------------------------------------------------


def perf_counts():
    """Returns whether perf counts instructions on this machine."""
    if not shutil.which("perf"):
        return False
    words = ["perf", "stat", "-x,", "-e", "instructions:u", "true"]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode == 0 and perf_count(done.stderr) is not None


def choose_counter(wish):
    """Returns perf, callgrind or none. Raises CannotCount."""
    if wish == "none" or (wish in (None, "perf") and perf_counts()):
        return wish or "perf"
    if wish == "perf":
        raise CannotCount(
            "perf cannot count instructions here: it is missing (package linux-perf), it is not "
            "permitted, or a virtual machine has no counter; use --instructions callgrind"
        )
    if not shutil.which("valgrind"):
        raise CannotCount(
            "neither perf nor callgrind can count instructions here; install the package valgrind "
            "or linux-perf, or use --instructions none"
        )
    return "callgrind"


def compiler():
    """Returns the words of the C++ compiler, such as `ccache g++`. Raises CannotCount."""
    try:
        return shlex.split(os.environ.get("CXX", "")) or ["c++"]
    except ValueError as error:
        raise CannotCount(f"CXX={os.environ['CXX']}: {error}") from error


def build_library(source, folder):
    """Compiles a source of tests/support for LD_PRELOAD once. Returns the path of the library."""
    source = SUPPORT / source
    library = folder / f"lib{source.stem}.so"
    if not library.exists():
        words = [*compiler(), "-std=c++20", "-O2", "-shared", "-fPIC"]
        call([*words, source, "-o", library, "-ldl"])
    return library


# --- comparison ----------------------------------------------------------------------------------


@dataclasses.dataclass
class Count:
    """A count of a step, and its parts by name."""

    title: str
    value: float
    parts: dict = dataclasses.field(default_factory=dict)
    tolerance: float = 0  # growth that is allowed, as a fraction

    def has_grown(self, before):
        return self.value > before.value * (1 + self.tolerance)

    def largest_growth(self, before):
        """Returns lines about the parts that grew most."""
        names = self.parts.keys() | before.parts.keys()
        growth = {name: self.parts.get(name, 0) - before.parts.get(name, 0) for name in names}
        most = sorted((name for name in names if growth[name] > 0), key=lambda n: -growth[n])
        return [f"{growth[name]:+,.0f}  {name}" for name in most[:MOST_NAMES]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    counter: str  # of instructions
    tolerance: float  # growth that is allowed, as a fraction
    allocation_counter: pathlib.Path

    def counts_of(self, program, case):
        """Returns all counts of a case."""
        ops, memory = program.check(case)
        calls, moved, flops = ({op: work[i] for op, work in ops.items()} for i in range(3))
        counts = [
            Count("kernel launches", program.launches(case)),
            Count("calls of ops", sum(calls.values()), calls),
            Count("bytes of ops", sum(moved.values()), moved, self.tolerance),
            Count("FLOPs of ops", sum(flops.values()), flops, self.tolerance),
            Count("bytes of planned memory", memory, {}, self.tolerance),
            Count("allocations", program.allocations(case, self.allocation_counter)),
        ]
        if self.counter != "none":
            functions = program.instructions(case, self.counter)
            title = "instructions" if self.counter == "perf" else "instructions of own code"
            counts.insert(0, Count(title, sum(functions.values()), functions, self.tolerance))
        return counts

    def show(self, case, programs):
        """Prints the table of a case. Returns lines about the counts that grew."""
        before, after = (self.counts_of(program, case) for program in programs)
        grown = []
        print(f"\n{case.name:26} {'before':>16} {'after':>16}  change")
        for old, new in zip(before, after):
            change = "equal" if old.value == new.value else f"{new.value - old.value:+,.0f}"
            if old.value not in (0, new.value):
                change += f" ({100 * (new.value / old.value - 1):+.2f} %)"
            print(f"  {old.title:24} {old.value:16,.0f} {new.value:16,.0f}  {change}", flush=True)
            if new.has_grown(old):
                grown.append(f"{case.name}: {new.title}: {old.value:,.0f} -> {new.value:,.0f}")
                grown += ["    " + line for line in new.largest_growth(old)]
        return grown


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--decks", default=",".join(CASES), help="default: %(default)s")
    parser.add_argument(
        "--instructions",
        choices=("perf", "callgrind", "none"),
        help="default: perf if it counts here, otherwise callgrind",
    )
    parser.add_argument("--tolerance", type=float, default=1, help="in percent; default: 1")
    arguments = parser.parse_args()
    names = arguments.decks.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f'--decks: "{unknown[0]}" is none of {", ".join(CASES)}')
    if not 0 <= arguments.tolerance < 100:
        parser.error("--tolerance must be at least 0 and below 100")
    return arguments, [CASES[name] for name in names]


def compare(arguments, cases, folder):
    """Prints the tables. Returns lines about the counts that grew. Raises CannotCount."""
    counter = choose_counter(arguments.instructions)
    programs = [Program(getattr(arguments, side), folder / side) for side in ("before", "after")]
    allocation_counter = build_library("count_allocations.cpp", folder)
    comparison = Comparison(counter, arguments.tolerance / 100, allocation_counter)
    print(f"counts of a step; instructions: {counter}", flush=True)
    return [line for case in cases for line in comparison.show(case, programs)]


def main():
    arguments, cases = parse_arguments()
    try:
        with tempfile.TemporaryDirectory() as work:
            grown = compare(arguments, cases, pathlib.Path(work))
    except CannotCount as error:
        print(f"compare_work: {error}", file=sys.stderr)
        return 2
    print("\n" + "\n".join(grown or [f"no count of {len(cases)} decks has grown"]))
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(processes.run_script(main))
