# SPDX-License-Identifier: Apache-2.0
"""Tests test_systems.sh: what it runs in which userland, its table and its exit codes.

Stand-ins for debootstrap and unshare make the userlands and run the commands, so nothing is
installed.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Makes the folders that test_systems.sh writes to. Its last words are suite, target, mirror. The
# suite MISSING is out of reach.
DEBOOTSTRAP = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
if [ "$1" = "$MISSING" ]; then echo "E: Failed getting release file"; exit 1; fi
mkdir -p "$2/etc/apt/apt.conf.d"
echo "$1" >"$2/etc/suite"
"""
# unshare ... sh -ec SCRIPT sh USERLAND NAME=VALUE ... COMMAND
UNSHARE = """#!/bin/bash
userland=$9
case "$*" in
  *scripts/quickstart.sh)
    echo "$*" >>"$RECORD"
    cat "$userland/etc/suite" "$userland/trireme/committed"
    echo "test set: accuracy 90.00%"
    exit "$CODE"
    ;;
  *dumpfullversion*) echo "g++ 0.1" && echo "Python 0.2" ;;
esac
"""


class Systems(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="trireme_systems_")).resolve()
        self.addCleanup(shutil.rmtree, self.root)
        self.dir = self.root / "userlands"
        for name, text in (
            ("debootstrap", DEBOOTSTRAP),
            ("unshare", UNSHARE),
            ("apt-config", "#!/bin/sh\n"),
            ("id", "#!/bin/sh\necho 0\n"),
        ):
            self.write("bin/" + name, text)
        shutil.copytree(ROOT / "scripts", self.root / "tree/scripts")
        self.write("tree/committed", "a commit\n")
        for command in ("init", "add --all", "commit -m first"):
            identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
            subprocess.run(
                ["git", *identity, *command.split()],
                cwd=self.root / "tree",
                check=True,
                capture_output=True,
            )
        self.write("tree/committed", "a change\n")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run_script(self, *words, code=0, missing=""):
        """Runs the script; CODE is the exit code of the command."""
        return subprocess.run(
            [self.root / "tree/scripts/test_systems.sh", *words],
            env={
                **os.environ,
                "PATH": "%s:%s" % (self.root / "bin", os.environ["PATH"]),
                "RECORD": str(self.root / "record"),
                "CODE": str(code),
                "MISSING": missing,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )

    def quickstart(self, system, **more):
        return self.run_script("--system", system, "--command", "quickstart", self.dir, **more)

    def test_a_command_that_passes(self):
        result = self.quickstart("debian-13")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertRegex(
            result.stdout,
            r"\| Debian 13 \| quickstart.sh \| passed \| 0 min \d+ s "
            r"\| g\+\+ 0.1, Python 0.2 \| test set: accuracy 90.00% \|",
        )
        log = (self.dir / "debian-13.quickstart.log").read_text()
        self.assertIn("trixie\na commit\n", log)  # of the right system, and of HEAD
        self.assertTrue((self.dir / "debian-13.base").exists())
        self.assertFalse((self.dir / "debian-13.quickstart").exists())

    def test_a_command_that_fails(self):
        result = self.quickstart("debian-12", code=3)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("bookworm\na commit\n", result.stdout)
        self.assertIn("| Debian 12 | quickstart.sh | failed (3) |", result.stdout)
        self.assertTrue((self.dir / "debian-12.quickstart").exists())

    def test_a_stand_in_for_ubuntu(self):
        result = self.quickstart("ubuntu-24.04", missing="noble")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("| Ubuntu 24.04 (stand-in: Debian 13 with g++ 13) |", result.stdout)
        self.assertIn(" CC=gcc-13 CXX=g++-13 ", (self.root / "record").read_text())

    def test_a_system_that_cannot_be_made(self):
        result = self.quickstart("debian-13", missing="trixie")
        self.assertEqual(result.returncode, 77, result.stdout)
        self.assertIn("skipped: debootstrap failed", result.stdout)

    def test_wrong_words(self):
        for words, message in (
            (("--system", "debian-11"), "known: debian-12 debian-13 ubuntu-24.04"),
            (("--command", "tests"), "known: quickstart test test-all"),
            (("--sytem",), "known: --system, --command, --keep"),
        ):
            result = self.run_script(*words)
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn(message, result.stdout)


if __name__ == "__main__":
    unittest.main()
