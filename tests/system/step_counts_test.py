# SPDX-License-Identifier: Apache-2.0
"""Compares exact counts of a training step with recorded ones, so that work does not grow unseen.

Counted are the calls of each op and their bytes, the launches and the allocations of a tiny ResNet
and a tiny GPT. The first two depend on shapes alone. Launches include those that bring operands
into the formats of oneDNN, so oneDNN is kept at SSE4.1, which every x86-64 machine has, and its
version is recorded, too. Widths that are not multiples of 32 keep Winograd's algorithm out.

  TRIREME=PROGRAM python3 tests/system/step_counts_test.py --record     records those of PROGRAM
"""

import contextlib
import io
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
from unittest import mock

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import compare_work  # noqa: E402

TABLE = ROOT / "tests/system/reference/step_counts.json"
ADVICE = """
If the change is meant, record the new counts with
  TRIREME=%s python3 tests/system/step_counts_test.py --record"""
MODELS = {
    "resnet": compare_work.images(
        compare_work.Images, "resnet", side=8, channels=1, micro=8, width=6
    ),
    "gpt": compare_work.tokens(
        "gpt", layers=1, heads=2, width=24, context=8, vocabulary=61, micro=4
    ),
}

# The program's step calls work() of a library, which calls step() back.
CALLGRIND = """events: Ir
ob=(1) %s
fl=(1) main.cpp
fn=(1) step
16 10
+2 1
cfn=(2) main
calls=1 20
* 4
* 5
cob=(2) /lib/library.so
cfn=(3) work
calls=2 0
* 5000

fn=(2)
20 4

ob=(2)
fn=(3)
0 4700
cob=(1)
cfn=(1)
calls=1 16
0 300
"""


def library_version():
    """Returns the version of oneDNN, and the processor for which it chooses formats."""
    with tempfile.TemporaryDirectory() as folder:
        facts = json.loads(harness.run("doctor", "--json", cwd=folder).stdout)["facts"]
    return "oneDNN %s, %s" % (facts["nodes"][0]["versions"]["onednn"], platform.machine())


def counts_of(name, folder, version):
    """Returns the counts of a step as the table has them."""
    program = compare_work.Program(harness.TRIREME, folder / name)
    case = compare_work.Case(MODELS[name], "float32")
    counter = os.environ.get("TRIREME_ALLOCATION_COUNT") or compare_work.build_library(
        "count_allocations.cpp", folder
    )
    ops, _ = program.check(case)
    return {
        "calls": {op: work[0] for op, work in sorted(ops.items())},
        "bytes": sum(work[1] for work in ops.values()),
        "allocations": program.allocations(case, counter),
        "launches": {version: program.launches(case, ONEDNN_MAX_CPU_ISA="SSE41")},
    }


def differences(name, counts, recorded):
    """Yields a sentence for each count that is not the recorded one."""

    def compare(what, now, then):
        if now != then:
            yield "a step of %s has %s %s, %s were recorded in %s" % (
                *(name, now, what, then),
                TABLE.relative_to(ROOT),
            )

    for op in sorted(counts["calls"] | recorded["calls"]):
        now, then = (table["calls"].get(op, 0) for table in (counts, recorded))
        yield from compare("calls of " + op, now, then)
    yield from compare("bytes of ops", counts["bytes"], recorded["bytes"])
    yield from compare("allocations", counts["allocations"], recorded["allocations"])
    for version, launches in counts["launches"].items():
        if version in recorded["launches"]:
            yield from compare("launches", launches, recorded["launches"][version])


class StepCounts(harness.unittest.TestCase):
    def expect_recorded(self, name):
        version = library_version()
        recorded = json.loads(TABLE.read_text())[name]
        with tempfile.TemporaryDirectory() as folder:
            counts = counts_of(name, pathlib.Path(folder), version)
        found = list(differences(name, counts, recorded))
        if found:
            self.fail("\n".join(found) + ADVICE % harness.TRIREME)
        if version not in recorded["launches"]:
            self.skipTest("launches are not recorded for " + version)

    def test_resnet(self):
        self.expect_recorded("resnet")

    def test_gpt(self):
        self.expect_recorded("gpt")


class StandIn:
    """Stands in for a program: its step has some calls of an op, and some instructions."""

    def __init__(self, calls, instructions):
        self.calls, self.by_function = calls, instructions

    def check(self, case):
        return {"relu_forward": [self.calls, 1000, 10]}, 4096

    def launches(self, case):
        return self.calls

    def allocations(self, case, counter):
        return 0

    def instructions(self, case, counter):
        return self.by_function


class Comparison(harness.unittest.TestCase):
    comparison = compare_work.Comparison("callgrind", 0.01, None)
    case = compare_work.CASES["mlp:float32"]

    def grown(self, before, after):
        with contextlib.redirect_stdout(io.StringIO()):
            return self.comparison.show(self.case, (before, after))

    def test_counts_that_grew_are_named_with_their_parts(self):
        before = StandIn(3, {"relu": 1000, "add": 500})
        self.assertEqual(self.grown(before, before), [])
        self.assertEqual(self.grown(before, StandIn(2, {"relu": 1015})), [])
        self.assertEqual(
            self.grown(before, StandIn(4, {"relu": 1016, "add": 500})),
            [
                "mlp:float32: instructions of own code: 1,500 -> 1,516",
                "    +16  relu",
                "mlp:float32: kernel launches: 3 -> 4",
                "mlp:float32: calls of ops: 3 -> 4",
                "    +1  relu_forward",
            ],
        )

    def test_instructions_are_read_from_outputs_of_perf(self):
        self.assertEqual(
            compare_work.perf_count("# started\n\n123,,instructions:u,9,100.00,,\n"), 123
        )
        kinds = "5,,cpu_core/instructions/u,9,1.00,,\n7,,cpu_atom/instructions/u,9,1.00,,\n"
        self.assertEqual(compare_work.perf_count(kinds), 12)
        self.assertIsNone(compare_work.perf_count("<not supported>,,instructions:u,0,100.00,,\n"))

    def test_callgrind_counts_the_functions_of_the_program_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder).resolve() / "program"
            output = pathlib.Path(folder) / "callgrind"
            output.write_text(CALLGRIND % program)
            counts = compare_work.callgrind_counts(output, program)
            self.assertEqual(counts, {"step": 16, "main": 4})
            with self.assertRaises(compare_work.CannotCount):
                compare_work.callgrind_counts(output, program / "other")


class Refusals(harness.unittest.TestCase):
    """What cannot be counted must not look like growth, for which the exit code is 1."""

    def compare(self, before, **variables):
        words = [sys.executable, ROOT / "scripts/compare_work.py", before, harness.TRIREME]
        return subprocess.run(
            [*words, "--instructions", "none", "--decks", "mlp:float32"],
            env=os.environ | variables,
            capture_output=True,
            text=True,
        )

    def test_exit_codes(self):
        for before, message, variables in (
            ("nothing", "nothing: not a program", {}),
            (harness.TRIREME, "nocompiler: No such file", {"CXX": "nocompiler -O2"}),
            (harness.TRIREME, "No closing quotation", {"CXX": "'c++"}),
            ("/bin/true", "`check --json` printed no JSON", {}),
        ):
            result = self.compare(before, **variables)
            self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
            self.assertIn(message, result.stderr)
            self.assertNotIn("Traceback", result.stderr)

    def test_programs_and_counters_without_counts(self):
        case = compare_work.CASES["mlp:float32"]
        with tempfile.TemporaryDirectory() as folder:
            program = compare_work.Program("/bin/true", pathlib.Path(folder, "true"))
            with mock.patch.object(compare_work, "call", lambda *words: '{"memory": {}}'):
                with self.assertRaisesRegex(compare_work.CannotCount, "has no 'ops'"):
                    program.check(case)
            (program.folder / "instructions").write_text("<not counted>,,instructions:u,0,0,,\n")
            with mock.patch.object(program, "train"):
                with self.assertRaisesRegex(compare_work.CannotCount, "<not counted>"):
                    program.instructions(case, "perf")

    def test_a_program_that_callgrind_executes_starts_itself(self):
        start = "import os; os.posix_spawn('/proc/self/exe', ['self', '-n', 'it'], os.environ)"
        with tempfile.TemporaryDirectory() as folder:
            library = compare_work.build_library("spawn_by_name.cpp", pathlib.Path(folder))
            text = compare_work.call(
                [sys.executable, "-c", start + "; os.wait()"],
                LD_PRELOAD=str(library),
                TRIREME_TEST_PROGRAM="/bin/echo",
            )
        self.assertEqual(text, "it")


def record():
    """Writes the table. Launches of other versions of oneDNN stay where the ops are the same."""
    version = library_version()
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            counts = counts_of(name, pathlib.Path(folder), version)
        before = table.get(name, {"calls": None})
        if before["calls"] == counts["calls"]:
            counts["launches"] = before["launches"] | counts["launches"]
        table[name] = counts
    TABLE.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    if not harness.TRIREME:
        harness.skip("TRIREME does not name the program")
    if sys.argv[1:] == ["--record"]:
        record()
    else:
        harness.main(at_once=1)
