# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme doctor` on machines with one defect each: no /dev/shm, one core, a folder that
cannot be written, few open files, ranks that MPI does not connect, file systems without locks.

Defects of mounts are made in a mount namespace of the test's own, as root.
"""

import json
import os
import re
import subprocess
import unittest

import harness

NAMESPACE = ["unshare", "--mount", "--propagation", "private"]
# A /dev without /dev/shm. The devices are those of the machine.
WITHOUT_SHARED_MEMORY = """
set -e
mkdir dev
for name in null zero random urandom tty; do
  touch "dev/$name"
  mount --bind "/dev/$name" "dev/$name"
done
mount --rbind dev /dev
"""
# flock() as on a file system without locks.
NO_LOCKS = """
#include <errno.h>
int flock(int descriptor, int operation) {
  (void)descriptor;
  (void)operation;
  errno = ENOLCK;
  return -1;
}
"""


class Doctor(harness.Case):
    @classmethod
    def setUpClass(cls):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")

    @classmethod
    def tearDownClass(cls):
        pass

    def setUp(self):
        self.folder = harness.tempfile.mkdtemp(prefix="trireme-test-")

    def shell(self, script, *arguments, namespace=False, env={}):
        """Runs `script`, then `trireme doctor` with the arguments, in one shell."""
        if namespace:
            probe = subprocess.run(
                NAMESPACE + ["mount", "-t", "tmpfs", "tmpfs", "/mnt"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if probe.returncode != 0:
                self.skipTest("no mount namespace: " + probe.stdout.strip())
        result = subprocess.run(
            (NAMESPACE if namespace else [])
            + ["sh", "-c", script + '\nexec "$@"', "sh", harness.TRIREME, "doctor"]
            + list(arguments),
            cwd=self.folder,
            env=harness.environment(**env),
            timeout=harness.PATIENCE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        result.text = result.stdout + result.stderr
        return result

    def line_of(self, result, status, subject):
        """Returns the line of this status about the subject, and checks that it is complete."""
        lines = re.findall("(?m)^%s +%s .*$" % (status, subject), result.stdout)
        self.assertEqual(len(lines), 1, result.text)
        self.assertRegex(lines[0], r"\. Hurts: .+\. Remedy: .+")
        return lines[0]

    def expect_problem(self, result, subject, *parts):
        line = self.line_of(result, "problem", subject)
        for part in parts:
            self.assertIn(part, line)
        self.assertEqual(result.returncode, 1, result.text)

    def without(self, result, subject):
        self.assertNotRegex(result.stdout, "(?m)^(problem|warning) +%s " % subject)

    def test_a_report_has_a_line_for_each_subject(self):
        result = self.shell("", "--bytes", "1MiB")
        self.assertIn(result.returncode, (0, 1), result.text)
        for subject in ("launcher", "cores", "GPUs", "shared memory", "open files", "HDF5", "time"):
            self.assertRegex(result.stdout, "(?m)^(problem|warning|ok) +%s " % subject)
        self.assertRegex(result.stdout, r"(?m)^ok +speed +writes \d+ MB/s, reads \d+ MB/s")
        # The most harmful first, and the exit code follows from the problems.
        order = [line.split()[0] for line in result.stdout.splitlines()[:-1]]
        self.assertEqual(order, sorted(order, key=["problem", "warning", "ok"].index))
        self.assertEqual(result.returncode, 1 if "problem" in order else 0)
        summary = r"doctor: %d problems?, %d warnings? on 1 node" % (
            order.count("problem"),
            order.count("warning"),
        )
        self.assertRegex(result.stdout.splitlines()[-1], summary)
        self.assertEqual(os.listdir(self.folder), [], "the files of the test are removed")

    def test_json_has_the_findings_and_the_facts(self):
        result = self.shell("", "--json", "--bytes", "0", "--folder", self.folder)
        report = json.loads(result.stdout)
        self.assertEqual(result.returncode, 1 if report["problems"] else 0)
        for finding in report["findings"]:
            self.assertEqual(finding["remedy"] is None, finding["status"] == "ok", finding)
        node = report["facts"]["nodes"][0]
        self.assertEqual(node["folder"]["path"], os.path.realpath(self.folder))
        self.assertIsNone(node["folder"]["write_seconds"])
        self.assertEqual(node["host"]["name"], os.uname().nodename)
        self.assertEqual(report["facts"]["ranks"][0]["cores"], sorted(os.sched_getaffinity(0)))

    def test_wrong_arguments(self):
        for arguments, part in (
            (("--folder", "none"), "--folder none: No such file or directory"),
            (("--folder", harness.TRIREME), "Not a directory"),
            (("--bytes", "65GiB"), "must be at most 64GiB"),
            (("here",), "one argument too many"),
            (("--deck", "x"), "unknown option"),
        ):
            result = self.shell("", *arguments)
            self.assertEqual(result.returncode, 2, result.text)
            if part != "Not a directory":
                self.assertIn(part, result.stderr)

    def test_without_shared_memory(self):
        result = self.shell(WITHOUT_SHARED_MEMORY, "--bytes", "0", namespace=True)
        self.expect_problem(
            result, "shared memory", "/dev/shm is missing", "mount -t tmpfs tmpfs /dev/shm"
        )

    def test_with_little_shared_memory(self):
        script = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
        result = self.shell(script, "--bytes", "0", namespace=True)
        self.expect_problem(result, "shared memory", "of 1.0 MiB", "--shm-size=8g")

    def test_a_folder_that_cannot_be_written(self):
        script = "mkdir ro && mount -t tmpfs -o ro tmpfs ro"
        result = self.shell(script, "--folder", "ro", namespace=True)
        self.expect_problem(result, "folder", "Read-only file system", "another folder")
        self.without(result, "file locks")

    def test_a_full_folder(self):
        script = "mkdir small && mount -t tmpfs -o size=4m tmpfs small"
        result = self.shell(script, "--folder", "small", namespace=True)
        self.expect_problem(result, "folder", "4.0 MiB free", "free some space")
        self.assertNotIn("writes", result.stdout)

    def test_a_rank_that_is_bound_to_one_core(self):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            self.skipTest("this machine has one core")
        harness_cores = "taskset -p -c %d $$ > /dev/null" % cores[-1]
        result = self.shell(harness_cores, "--bytes", "0")
        self.expect_problem(result, "cores", "core %d only" % cores[-1], "srun --cpus-per-task=")
        two = self.shell(harness_cores, "--bytes", "0", env={"OMP_NUM_THREADS": "2"})
        self.expect_problem(two, "cores", "has 2 threads on core", "export OMP_NUM_THREADS=1")
        self.without(self.shell("", "--bytes", "0"), "cores")

    def test_threads_that_openmp_binds(self):
        bound = {"OMP_PROC_BIND": "True", "OMP_NUM_THREADS": "2"}
        result = self.shell("", "--bytes", "0", env=bound)
        self.assertRegex(result.stdout, r"(?m)^ok +cores +not known: OMP_PROC_BIND")

    def test_a_wrong_number_of_threads(self):
        result = self.shell("", "--bytes", "0", env={"OMP_NUM_THREADS": "many"})
        self.expect_problem(result, "threads", 'OMP_NUM_THREADS = "many"', "OMP_NUM_THREADS=1")

    def test_ranks_that_are_bound_to_one_core(self):
        result = harness.run("doctor", "--bytes", "0", ranks=2, cwd=self.folder, threads=2)
        self.expect_problem(result, "cores", "ranks 0, 1 have 4 threads", "OMP_NUM_THREADS=")
        self.assertRegex(result.stdout, r"(?m)^ok +launcher +2 ranks on 1 node")
        self.assertEqual(result.stdout.count("doctor: "), 1, "rank 0 alone prints")

    def test_few_open_files(self):
        result = self.shell("ulimit -n 100", "--bytes", "0")
        self.expect_problem(result, "open files", "ulimit -n 100", "limits.conf")
        soft = self.shell("ulimit -S -n 100", "--bytes", "0")
        self.expect_problem(soft, "open files", "ulimit -n 100, at most", "Remedy: ulimit -n ")

    def test_a_file_system_without_locks(self):
        library = self.preloaded("locks", NO_LOCKS)
        os.remove(self.path("locks.c"))
        locking = {"LD_PRELOAD": library, "HDF5_USE_FILE_LOCKING": "TRUE"}
        result = self.shell("", "--bytes", "0", env=locking)
        self.expect_problem(
            result, "file locks", "No locks available", "export HDF5_USE_FILE_LOCKING=FALSE"
        )
        locking["HDF5_USE_FILE_LOCKING"] = "FALSE"
        self.without(self.shell("", "--bytes", "0", env=locking), "file locks")

    def test_ranks_that_mpi_does_not_connect(self):
        """The variables of srun --mpi=none, as in a job of four tasks."""
        step = {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_END_TIME": str(int(harness.time.time()) + 3600),
            "SLURM_STEP_ID": "0",
            "SLURM_NTASKS": "4",
            "SLURM_STEP_NUM_TASKS": "4",
        }
        result = self.shell("", "--bytes", "0", env=dict(step, SLURM_PROCID="0"))
        self.expect_problem(
            result,
            "launcher",
            "srun started 4 processes, but MPI sees a world of 1",
            "srun --mpi=pmix",
        )
        self.assertTrue(result.stdout.startswith("problem  launcher"), "the most harmful first")
        other = self.shell("", "--bytes", "0", env=dict(step, SLURM_PROCID="2"))
        self.assertEqual((other.returncode, other.text), (1, ""), "the first task prints")

    def test_a_job_that_ends_soon(self):
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(int(harness.time.time()) + 120)}
        result = self.shell("", "--bytes", "0", env=job)
        self.expect_problem(result, "time", "Slurm job 7", "run.walltime_margin", "--time=")


if __name__ == "__main__":
    unittest.main(verbosity=2)
