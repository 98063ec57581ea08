# SPDX-License-Identifier: Apache-2.0
"""Starts every program of a stage (scripts/stage_gpu.sh) where the sources do not exist.

GPU_STAGE names the stage; build/gpu-stage by default. In a mount namespace of its own the test sees
the stage at another place, and an empty folder in place of the sources; this needs root. Without a
driver, programs that need a device say so: kernel tests exit with 77, training exits with 1.
STAND_IN_CUDA names the stand-in for CUDA, with which kernels run on the CPU.
"""

import os
import shutil
import subprocess
import tempfile
import unittest

import harness

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
STAGE = os.path.realpath(os.environ.get("GPU_STAGE") or os.path.join(ROOT, "build", "gpu-stage"))
CUDA = os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/lib64"
# $1 becomes $2, the sources $3 and the packages $4 are hidden; the rest is the command.
HIDE = """set -e
mount --make-rprivate /
mount --bind "$1" "$2"
place=$2
for folder in "$3" "$4"; do
  [ ! -d "$folder" ] || mount -t tmpfs none "$folder"
done
shift 4
cd "$place"
. ./stage.sh
exec "$@"
"""
NO_DRIVER = "no CUDA device: no NVIDIA driver"


def has_driver():
    code = "import ctypes, sys; sys.exit(ctypes.CDLL('libcuda.so.1').cuInit(0) != 0)"
    return subprocess.run(["python3", "-c", code], stderr=subprocess.DEVNULL).returncode == 0


class GpuStage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.path.exists(STAGE + "/stage.sh"):
            harness.skip("no stage in %s; scripts/stage_gpu.sh makes one" % STAGE)
        if subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.PIPE).returncode != 0:
            harness.skip("this user may not make a mount namespace")
        cls.folder = tempfile.mkdtemp(prefix="trireme-stage-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.place = cls.folder + "/elsewhere"
        os.mkdir(cls.place)
        names = sorted(os.listdir(STAGE + "/libexec"))
        cls.tests = [name for name in names if name.startswith("test_")]
        cls.driver = has_driver()

    def run_hidden(self, *command, **more):
        deps = os.path.realpath(os.path.join(ROOT, ".deps"))
        words = ["unshare", "--mount", "bash", "-c", HIDE, "hide", STAGE, self.place, ROOT, deps]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LD_LIBRARY_PATH": CUDA}
        return subprocess.run(
            [*words, *command],
            env={**environment, "OMP_NUM_THREADS": "2", **more},
            text=True,
            timeout=harness.PATIENCE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def works(self, *command, **more):
        result = self.run_hidden(*command, **more)
        self.assertEqual(result.returncode, 0, "%s\n%s" % (command, result.stdout))
        return result.stdout

    def test_the_sources_are_hidden(self):
        result = self.run_hidden("ls", ROOT)
        self.assertEqual((result.returncode, result.stdout), (0, ""))

    def test_our_libraries_are_those_of_the_stage(self):
        for name in ["trireme", *self.tests]:
            path = "%s/lib:%s" % (self.place, CUDA)
            linked = self.works("ldd", "libexec/" + name, LD_LIBRARY_PATH=path)
            self.assertNotIn("not found", linked.replace("libcuda.so.1 => not found", ""), name)
            kernels = [line for line in linked.splitlines() if "libtrireme_kernels" in line]
            self.assertEqual(len(kernels), 1, linked)
            self.assertIn("=> %s/" % self.place, kernels[0])

    def test_every_program_starts(self):
        self.assertGreater(len(self.tests), 20)
        self.assertIn("trireme", self.works("trireme", "--version"))
        self.assertIn("whole", self.works("trireme", "verify", "reference/images"))
        two = self.works("mpirun", "-n", "2", "trireme", "--version")
        self.assertIn("trireme", two)
        for name in self.tests:
            with self.subTest(name):
                self.assertIn("  ", self.works(name, "--gtest_list_tests"))

    def test_without_a_driver_programs_say_so(self):
        if self.driver:
            self.skipTest("this machine has a driver")
        for name in self.tests:
            with self.subTest(name):
                result = self.run_hidden(name, TRIREME_TEST_DEVICE="cuda")
                self.assertEqual(result.returncode, 77, result.stdout)
                self.assertIn("skipped: " + NO_DRIVER, result.stdout)
        result = self.run_hidden("trireme", "bench", "ops", "--sizes", "64x64")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn(NO_DRIVER, result.stdout)
        deck = self.folder + "/deck.toml"
        with open(deck, "w") as file:
            file.write('[run]\nname = "stage"\nfolder = "%s/run"\nstop = "1 step"\n' % self.folder)
            file.write('[model]\nkind = "mlp"\nwidths = [8]\n[data]\ntrain = "%s/' % self.place)
            file.write('reference/images"\n[batch]\nglobal = 8\nmicro = 4\n')
        for ranks in ("1", "2"):
            result = self.run_hidden("mpirun", "-n", ranks, "trireme", "train", deck)
            self.assertEqual(result.returncode, 1, result.stdout)
            self.assertIn(NO_DRIVER, result.stdout)

    def test_kernels_run_on_the_cpu_with_a_stand_in(self):
        if self.driver or not os.path.exists(os.environ.get("STAND_IN_CUDA", "")):
            self.skipTest("STAND_IN_CUDA names no stand-in, or this machine has a driver")
        stand_in = shutil.copy(os.environ["STAND_IN_CUDA"], self.folder)
        # mix_test.cpp reads a file that is staged beside the program.
        for name in ("test_ops_mix", "test_ops_row_norm"):
            text = self.works(name, LD_PRELOAD=stand_in, TRIREME_TEST_DEVICE="cpu")
            self.assertIn("[  PASSED  ]", text)
        # Kernels do nothing here. The number of our allocations is that of a device.
        for name in ("test_ops_steady", "test_ops_allocation"):
            text = self.works(name, LD_PRELOAD=stand_in, TRIREME_TEST_DEVICE="cuda")
            self.assertIn("[  PASSED  ]", text)


if __name__ == "__main__":
    unittest.main()
