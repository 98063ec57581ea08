# SPDX-License-Identifier: Apache-2.0
"""Tests the versions of the program and its libraries: one block, wherever it is shown."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
LABELS = {  # by key of the JSON
    "source_revision": "source revision",
    "compiler": "compiler",
    "flags": "flags",
    "build_type": "build type",
    "instruction_set": "CPU kernels",
    "mpi": "MPI",
    "hdf5": "HDF5",
    "kokkos": "Kokkos",
    "onednn": "oneDNN",
    "onednn_instruction_set": "oneDNN uses",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
}


class Versions(harness.Case):
    samples = 64

    def succeed(self, *arguments, ranks=1):
        result = harness.run(*arguments, ranks=ranks, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return result.stdout

    def block(self):
        return self.succeed("--version").splitlines()

    def test_the_block_and_its_json_agree(self):
        first, *lines = self.block()
        self.assertRegex(first, r"^trireme \d+\.\d+\.\d+$")
        values = json.loads(self.succeed("--version", "--json"))
        self.assertEqual(values, json.loads(self.succeed("--json", "--version")))
        self.assertEqual("trireme " + values.pop("version"), first)
        self.assertEqual(list(values), list(LABELS))
        self.assertEqual(lines, ["%s: %s" % (LABELS[k], v or "none") for k, v in values.items()])
        for library in ("hdf5", "kokkos", "onednn"):
            self.assertRegex(values[library], r"^\d+\.\d+\.\d+$")
        self.assertRegex(values["mpi"], r"\d+\.\d+")
        self.assertRegex(values["instruction_set"], r"\((-march=.+|compiler's default)\)$")
        self.assertEqual(self.block(), self.succeed("--version", ranks=2).splitlines())

    def test_json_alone_is_refused(self):
        for words in (("--json",), ("--json", "doctor"), ("--json", "--nonsense")):
            result = harness.run(*words, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn("--json without --version; write it behind the command", result.stderr)

    def test_other_words_and_values_of_flags_are_refused(self):
        alone = "%s: %s takes no value; write %s alone, or leave it out"
        for words, reason in {
            "--version --nope": "unknown option --nope; options are --help, --version, --json",
            "--nope --version": "unknown option --nope; options are --help, --version, --json",
            "--version --jsn": "unknown option --jsn, did you mean --json?",
            "--version nope": 'unknown command "nope"; commands are train, ',
            "--nope train deck.toml": "unknown option --nope; options are --help, ",
            "--version --json=maybe": alone % ("--json=maybe", "--json", "--json"),
            "--version=3": alone % ("--version=3", "--version", "--version"),
            "doctor --json=no": alone % ("--json=no", "--json", "--json"),
            "train --help=set": alone % ("--help=set", "--help", "--help"),
            "check --keys=false": alone % ("--keys=false", "--keys", "--keys"),
        }.items():
            result = harness.run(*words.split(), cwd=self.folder)
            self.assertEqual((result.returncode, result.stdout), (2, ""), words)
            self.assertTrue(result.stderr.startswith("trireme: error: " + reason), result.stderr)

    def test_log_records_and_checkpoints_of_a_run_have_the_block(self):
        self.train("--set", "run.stop=2 steps", "--set", "schedule.warmup=1 step")
        block = self.block()
        log = pathlib.Path(self.path("run/log.txt")).read_text()
        for line in block:
            self.assertRegex(log, r"(?m)\s%s$" % re.escape(line))
        values = json.loads(self.succeed("--version", "--json"))
        with open(self.path("run/environment.json")) as file:
            (start,) = json.load(file)
        for key, value in values.items():
            self.assertEqual(start.get(key), value, key)
        checkpoint = "run/checkpoints/step_000000002.h5"
        self.succeed("export", checkpoint, "--out", "w.safetensors")
        self.succeed("import", "w.safetensors", "deck.toml", "--out", "w.h5")
        for path in (checkpoint, "w.h5"):
            found = json.loads(self.succeed("inspect", path, "--json"))["written_by"]
            self.assertEqual(found, "; ".join(block))
            self.assertIn("\n  written by %s\n" % found, self.succeed("inspect", path))

    def test_doctor_prints_the_block(self):
        text = harness.run("doctor", "--bytes", "0", cwd=self.folder).stdout
        self.assertRegex(text, "(?m)^ok +software +%s$" % re.escape("; ".join(self.block())))
        report = harness.run("doctor", "--bytes", "0", "--json", cwd=self.folder)
        report = json.loads(report.stdout)
        (found,) = [each for each in report["findings"] if each["subject"] == "software"]
        self.assertEqual(found["found"], "; ".join(self.block()))
        values = json.loads(self.succeed("--version", "--json"))
        facts = report["facts"]["nodes"][0]["versions"]
        self.assertEqual(facts, {key: value or "" for key, value in values.items()})


class Revision(unittest.TestCase):
    """The header that cmake/write_revision.cmake writes at each build."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.sources = pathlib.Path(scratch.name, "sources")
        self.header = pathlib.Path(scratch.name, "revision.hpp")
        self.sources.mkdir()

    def git(self, *words):
        identity = ("-c", "user.name=A", "-c", "user.email=a@b.example")
        command = ["git", *identity, *words]
        done = subprocess.run(command, cwd=self.sources, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def write(self):
        """Runs the script, and returns the revision and whether the header was written."""
        before = self.header.stat().st_mtime_ns if self.header.exists() else None
        values = {"GIT": "git", "SOURCES": self.sources, "HEADER": self.header}
        command = ["cmake", *("-D%s=%s" % item for item in values.items())]
        script = ROOT / "cmake/write_revision.cmake"
        done = subprocess.run([*command, "-P", script], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        (revision,) = re.findall(r'#define TRIREME_REVISION "(.*)"', self.header.read_text())
        return revision, self.header.stat().st_mtime_ns != before

    def test_the_header_changes_with_the_revision_alone(self):
        self.assertEqual(self.write(), ("unknown", True))
        self.git("init", "-q")
        (self.sources / "file").write_text("1")
        self.git("add", "file")
        self.git("commit", "-q", "-m", "1")
        first = self.git("rev-parse", "--short", "HEAD")
        self.assertEqual(self.write(), (first, True))
        self.assertEqual(self.write(), (first, False))
        (self.sources / "file").write_text("22")
        self.assertEqual(self.write(), (first + "-dirty", True))
        self.git("commit", "-q", "-a", "-m", "2")
        self.assertEqual(self.write(), (self.git("rev-parse", "--short", "HEAD"), True))

    def test_sources_inside_another_repository_have_no_revision(self):
        self.git("init", "-q", "..")
        self.git("commit", "-q", "--allow-empty", "-m", "other")
        self.assertEqual(self.write(), ("unknown", True))

    def test_one_source_knows_the_revision(self):
        sources = [
            path for top in ("src", "include", "kernels") for path in (ROOT / top).rglob("*")
        ]
        users = [p.name for p in sources if p.is_file() and b'"revision.hpp"' in p.read_bytes()]
        self.assertEqual(
            [name for name in users if name != "CMakeLists.txt"], ["software_versions.cpp"]
        )
        ninja = pathlib.Path(harness.TRIREME).parents[1] / "build.ninja"
        if not ninja.exists():
            self.skipTest("not built with Ninja here")
        command = ["ninja", "-C", os.fspath(ninja.parent), "-t", "deps"]
        deps = subprocess.run(command, capture_output=True, text=True).stdout
        objects = [part for part in deps.split("\n\n") if "/revision.hpp" in part]
        self.assertEqual(len(objects), 1, objects)


if __name__ == "__main__":
    harness.main(at_once=1)
