# SPDX-License-Identifier: Apache-2.0
"""Tests that a failed build ends with its first error, in quickstart.sh, test.sh and kokkos.sh.

The scripts run in a small project whose only source has one error and then a hundred warnings. So
the error is not among the last lines of the build itself.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import first_error  # noqa: E402

CMAKE = "cmake_minimum_required(VERSION 3.25)\nproject(example LANGUAGES CXX)\n"
PROGRAM = CMAKE + (
    "add_executable(trireme main.cpp)\ninstall(TARGETS trireme)\nadd_custom_target(tests_short)\n"
)
PRESETS = """{ "version": 6,
  "configurePresets": [ { "name": "release", "generator": "Ninja",
                          "binaryDir": "${sourceDir}/build/${presetName}" } ],
  "buildPresets": [ { "name": "release", "configurePreset": "release" } ],
  "testPresets": [ { "name": "release", "configurePreset": "release" } ] }
"""
SOURCE = "#error the cause\n" + "#warning no cause\n" * 100 + "int main() {}\n"
# Answers `python3 -m pip download`; anything else goes to the true interpreter.
PYTHON = """#!/usr/bin/env bash
if [ "${2-}" != pip ]; then exec %s "$@"; fi
while [ "$1" != -d ]; do shift; done
tar -czf "$2/pykokkos-base-0.0.7.tar.gz" -C "%s" pykokkos-base-0.0.7
"""
LAST = 25  # lines of a terminal that a user sees at least


class BuildErrors(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="trireme_build_errors_")).resolve()
        self.addCleanup(shutil.rmtree, self.root)
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        self.write("scripts/install_deps.sh", "#!/bin/sh\n")
        self.write("CMakeLists.txt", PROGRAM)
        self.write("CMakePresets.json", PRESETS)
        self.write("main.cpp", SOURCE)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def last_lines(self, *command, **environment):
        """Runs a command, which must fail, and returns the last lines of its output."""
        result = subprocess.run(
            [str(word) for word in command],
            cwd=self.root,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        self.assertNotEqual(result.returncode, 0, result.stdout)
        return "\n".join(result.stdout.splitlines()[-LAST:])

    def test_a_build_of_quickstart(self):
        text = self.last_lines("scripts/quickstart.sh")
        self.assertIn("main.cpp:1:2: error: #error the cause", text)
        self.assertIn("build/release.build.log", text)
        self.assertIn("no cause", (self.root / "build/release.build.log").read_text())

    def test_a_configuration_of_quickstart(self):
        self.write("CMakeLists.txt", CMAKE + 'message(FATAL_ERROR "no library")\n')
        text = self.last_lines("scripts/quickstart.sh")
        self.assertIn("CMake Error at CMakeLists.txt:3 (message):\n  no library", text)

    def test_the_tests_end_with_the_error_of_the_build(self):
        for options in ([], ["--all", "--no-cuda", "--no-asan"]):
            text = self.last_lines("scripts/test.sh", *options)
            self.assertIn("main.cpp:1:2: error: #error the cause", text)
            self.assertIn("test.sh: failed: release: build", text)

    def test_the_tests_end_with_the_test_that_failed(self):
        self.write("main.cpp", "int main() {}\n")
        failing = "enable_testing()\nadd_test(NAME wrong_sum COMMAND cmake -E false)\n"
        self.write("CMakeLists.txt", PROGRAM + failing)
        for options in ([], ["--all", "--no-cuda", "--no-asan"]):
            text = self.last_lines("scripts/test.sh", *options)
            self.assertRegex(text, r"-- wrong_sum: failed after \d+ s")
            self.assertIn("test.sh: failed: release: tests", text)

    def test_options_of_the_tests(self):
        for options, right in (
            (["--no-cuda"], "test.sh --all --no-cuda\n"),
            (["--no-cuda", "--no-asan"], "test.sh --all --no-cuda --no-asan\n"),
            (["--quick"], "--all, --no-cuda"),
        ):
            result = subprocess.run(
                [self.root / "scripts/test.sh", *options], capture_output=True, text=True
            )
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(right, result.stderr)

    def test_the_kokkos_of_install_deps(self):
        kokkos = "kokkos/pykokkos-base-0.0.7/external/kokkos/"
        self.write(kokkos + "CMakeLists.txt", PROGRAM)
        self.write(kokkos + "main.cpp", SOURCE)
        self.write("bin/python3", PYTHON % (sys.executable, self.root / "kokkos"))
        # The archive is not Kokkos. The stand-in reads its input: else the writer could fail.
        self.write("bin/sha256sum", "#!/bin/sh\ncat >/dev/null\n")
        text = self.last_lines(
            "bash",
            "scripts/deps/kokkos.sh",
            self.root / "prefix",
            PATH="%s:%s" % (self.root / "bin", os.environ["PATH"]),
        )
        self.assertIn("main.cpp:1:2: error: #error the cause", text)
        self.assertNotIn("no cause", text.split("#error the cause")[0])
        self.assertFalse((self.root / "prefix").exists())

    def test_a_command_that_succeeds(self):
        result = subprocess.run(
            [self.root / "scripts/run_logged.sh", self.root / "log", "echo", "done"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual((result.returncode, result.stdout), (0, "done\n"))


class FirstError(unittest.TestCase):
    def test_the_failed_step_and_the_lines_before_the_error(self):
        lines = ["[1/3] Building a.o", "a.cpp:1:1: warning: x", "[2/3] Building b.o"]
        failed = ["FAILED: b.o ", "c++ -c b.cpp", "b.cpp: In function 'f':", "b.cpp:2:1: error: y"]
        after = ["   2 | y", "[3/3] Building c.o", "c.cpp:1:1: error: z"]
        self.assertEqual(
            first_error.first_error(lines + failed + after), [failed[0]] + failed[2:] + after[:1]
        )

    def test_the_linker(self):
        lines = ["FAILED: t ", "c++ t.o -o t", "/usr/bin/ld: t.o: undefined reference to `f'"]
        noise = ["[2/2] Building c.o"] + ["c.cpp:1:1: warning: x"] * 50
        self.assertEqual(first_error.first_error(lines + noise), [lines[0], lines[2]])

    def test_a_step_without_a_message(self):
        lines = ["[1/2] Making a", "FAILED: a ", "false", "[2/2] Making b", "made b"]
        self.assertEqual(first_error.first_error(lines), lines[1:3])

    def test_an_output_without_errors(self):
        lines = ["line %d" % i for i in range(100)]
        self.assertEqual(first_error.first_error(lines), lines[-first_error.LAST :])


if __name__ == "__main__":
    unittest.main()
