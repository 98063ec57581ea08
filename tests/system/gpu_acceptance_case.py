# SPDX-License-Identifier: Apache-2.0
"""What the tests of the GPU acceptance share: calls of it without a GPU, and its results."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

import harness

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts")
GPU = os.path.join(SCRIPTS, "gpu")
sys.path.insert(0, GPU)


def command(*words):
    return [sys.executable, os.path.join(GPU, "acceptance.py"), *words]


def call(*words, cwd=None, **more):
    environment = dict(harness.environment(2), PYTHONDONTWRITEBYTECODE="1", **more)
    return subprocess.run(
        list(words),
        cwd=cwd,
        env=environment,
        text=True,
        timeout=harness.PATIENCE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def read_results(out):
    """Returns the files of results.tar.gz by name, JSON files as objects."""
    found = {}
    with tarfile.open(os.path.join(out, "results.tar.gz")) as packed:
        for entry in packed:
            text = packed.extractfile(entry).read().decode()
            name = entry.name
            found[name[:-5] if name.endswith(".json") else name] = (
                json.loads(text) if name.endswith(".json") else text
            )
    return found


class AcceptanceCase(unittest.TestCase):
    """`folder` has the files of the tests of a class, `reference` the CPU's losses."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.reference = cls.folder + "/reference"

    def path(self, name):
        return os.path.join(self.folder, name)

    def words(self, sections, bin_folder=None, reference=None, patience="10"):
        self.out = tempfile.mkdtemp(dir=self.folder)
        return command(
            *("--bin", bin_folder or os.path.dirname(harness.TRIREME)),
            *("--reference", reference or self.reference, "--out", self.out, "--device", "cpu"),
            *("--patience", patience, "--sections", sections),
        )

    def acceptance(self, sections, *more, **options):
        result = call(*self.words(sections, **options), *more)
        return result, read_results(self.out)

    def programs(self, **scripts):
        """Returns a folder of shell scripts by name."""
        folder = tempfile.mkdtemp(dir=self.folder)
        for name, text in scripts.items():
            with open(os.path.join(folder, name), "w") as file:
                file.write("#!/bin/sh\n%s\n" % text)
            os.chmod(os.path.join(folder, name), 0o755)
        return folder
