# SPDX-License-Identifier: Apache-2.0
"""Rehearses the GPU acceptance: in a network namespace whose `lo` is down, without a driver.

Every section ends where only the driver is missing, with the right message. With the stand-in for
CUDA as the driver, the sections go on as far as it can do the work: it runs no kernels, so numbers
are wrong. STAND_IN_CUDA names it. The programs are those of the build, in the folders of a stage.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

import harness

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
NO_DRIVER = "no CUDA device: no NVIDIA driver"
STEPS = "3"
FORMS = 2  # of each network (scripts/gpu/variants.py)
PARITY = 4 * FORMS  # two networks in two precisions


def has_driver():
    code = "import ctypes, sys; sys.exit(ctypes.CDLL('libcuda.so.1').cuInit(0) != 0)"
    return subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE).returncode == 0


class GpuRehearsal(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        stand_in = os.environ.get("STAND_IN_CUDA", "")
        if not os.path.exists(stand_in) or has_driver():
            harness.skip("STAND_IN_CUDA names no stand-in, or this machine has a driver")
        if subprocess.run(["unshare", "--net", "true"], stderr=subprocess.PIPE).returncode != 0:
            harness.skip("this user may not make a network namespace")
        cls.folder = tempfile.mkdtemp(prefix="trireme-rehearsal-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.stage = cls.folder + "/stage"
        shutil.copytree(ROOT + "/scripts/gpu", cls.stage + "/scripts/gpu")
        shutil.copy(ROOT + "/scripts/gpu_session.sh", cls.stage + "/scripts")
        os.makedirs(cls.stage + "/tests/data")
        shutil.copy(ROOT + "/tests/data/text.txt", cls.stage + "/tests/data")
        os.makedirs(cls.stage + "/bin")
        built = os.path.dirname(harness.TRIREME)
        for name in ("trireme", "test_ops_row_norm", "test_ops_linear"):
            os.symlink(os.path.join(built, name), "%s/bin/%s" % (cls.stage, name))
        launcher = os.path.dirname(shutil.which(harness.MPIEXEC))
        with open(cls.stage + "/stage.sh", "w") as file:
            file.write("export PATH=%s:$PATH\n" % launcher)
        recorded = subprocess.run(
            [sys.executable, cls.stage + "/scripts/gpu/parity.py", cls.stage + "/reference"]
            + ["--trireme", harness.TRIREME, "--steps", STEPS],
            env=harness.environment(LD_PRELOAD=stand_in, PYTHONDONTWRITEBYTECODE="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if recorded.returncode != 0:
            raise RuntimeError(recorded.stdout)

    def session(self, *words, **more):
        """Runs a session where `lo` is down. Returns its output, its results and the summary."""
        out = tempfile.mkdtemp(dir=self.folder)
        # The stand-in is only for the programs, not for the shell and Python.
        result = subprocess.run(
            ["unshare", "--net", "bash", self.stage + "/scripts/gpu_session.sh", *words]
            + ["--patience", "10"],
            env=harness.environment(OUT=out, GPU_PYTHON=sys.executable, **more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=harness.PATIENCE,
        )
        found = {}
        with tarfile.open(out + "/results.tar.gz") as packed:
            for name in packed.getnames():
                if name.endswith(".json"):
                    found[name[:-5]] = json.load(packed.extractfile(name))
        with open(out + "/summary.md") as file:
            summary = file.read()
        self.assertIn("network device lo: was down, brought up", summary)
        return result, found, summary

    def assert_all_fail(self, result, runs, message):
        self.assertFalse(result["passed"], result)
        self.assertEqual(len(result["failed"]), runs, result["failed"])
        for run, text in result["failed"].items():
            self.assertIn(message, text, run)

    def test_without_a_driver_every_section_says_so(self):
        names = "libraries,parity,gradients,networks,tests,kernels,resnet50,gpt2,layouts,again"
        result, found, _ = self.session("sections", names, "--rehearse", "--batch", "2")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertEqual(sorted(found), sorted(names.split(",")), result.stdout)
        (missing,) = found["libraries"]["failed"].values()
        self.assertIn("libcuda.so.1 (everything: the driver is missing)", missing)
        self.assertEqual(missing.count("\n"), 1, missing)  # nothing else is missing
        counts = {
            "parity": PARITY,
            "gradients": 2,
            "networks": 2 * FORMS,
            "tests": 3,
            "kernels": 4,
            "resnet50": 2 * FORMS,
            "gpt2": 2 * FORMS,
            "layouts": 2,
        }
        for name, count in counts.items():
            self.assert_all_fail(found[name], count, NO_DRIVER)
        runs = [run for those in found["again"]["again"].values() for run in those.values()]
        self.assertEqual(len(runs), sum(counts.values()))
        self.assertTrue(all(NO_DRIVER in run["verdict"] for run in runs), runs)

    def test_a_missing_driver_ends_a_part_at_once(self):
        result, found, _ = self.session("1")
        self.assertEqual(result.returncode, 1)
        self.assertFalse(found["libraries"]["passed"])
        for name in ("parity", "gradients", "networks", "tests"):
            self.assertEqual(found[name]["summary"], "not run: libraries are missing")

    def test_with_the_stand_in_as_the_driver(self):
        result, found, _ = self.session(
            *("sections", "libraries,parity"), LD_PRELOAD=os.environ["STAND_IN_CUDA"]
        )
        self.assertTrue(found["libraries"]["passed"], result.stdout)
        # Runs start on the device; without kernels their losses are wrong.
        self.assertEqual(len(found["parity"]["failed"]), PARITY)
        for run, text in found["parity"]["failed"].items():
            self.assertRegex(text, r"step \d+ has loss|a loss is not finite", run)


if __name__ == "__main__":
    unittest.main()
