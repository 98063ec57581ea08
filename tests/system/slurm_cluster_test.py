# SPDX-License-Identifier: Apache-2.0
"""Tests that a Slurm whose daemon cannot start is reported with the daemon's own words, at once.

Small programs stand in for Slurm's, so the test needs no Slurm and no root.
"""

import os
import pathlib
import shutil
import tempfile
import time
import unittest
from unittest import mock

import slurm_cluster

VERSION = '[ "${1-}" != -V ] || exec echo slurm %s\n'
SLEEPS = "#!/bin/sh\n" + VERSION % "22.05.8" + "exec sleep 600\n"
# munged is ready when its socket exists.
MUNGED = """#!/bin/sh
for word in "$@"; do case $word in --socket=*) : >"${word#--socket=}" ;; esac; done
exec sleep 600
"""
ENDS = "#!/bin/sh\n" + VERSION % "22.05.8" + "echo 'fatal: no cgroup plugin'\nexit 3\n"
# A node without slurmd keeps the state "idle" for minutes. The star says that it does not answer.
SINFO = '#!/bin/sh\ncase " $* " in *" %T "*) echo "idle*" ;; *) echo 1 ;; esac\n'


class Cluster(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="trireme_slurm_cluster_"))
        self.addCleanup(shutil.rmtree, self.folder)
        path = mock.patch.dict(os.environ, PATH="%s:%s" % (self.folder, os.environ["PATH"]))
        path.start()
        self.addCleanup(path.stop)
        for name, text in (("munged", MUNGED), ("slurmctld", SLEEPS), ("slurmd", SLEEPS)):
            self.program(name, text)
        self.program("sinfo", SINFO)

    def program(self, name, text):
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def refusal(self):
        """Returns the message of a cluster that cannot start, and the seconds that it took."""
        begin = time.monotonic()
        with self.assertRaises(RuntimeError) as caught:
            slurm_cluster.Cluster().stop()
        return str(caught.exception), time.monotonic() - begin

    def test_a_slurmd_that_cannot_start(self):
        self.program("slurmd", ENDS)
        message, seconds = self.refusal()
        self.assertIn("slurmd ended with code 3", message)
        self.assertIn("fatal: no cgroup plugin", message)
        self.assertLess(seconds, 100)  # the limit for a start that is only slow is 180 s

    def test_a_munged_that_cannot_start(self):
        self.program("munged", ENDS)
        message, seconds = self.refusal()
        self.assertIn("munged ended with code 3", message)
        self.assertLess(seconds, 100)

    def test_a_slurm_that_starts(self):
        """Slurm needs no cgroups from version 24.05 on; older ones do not know the setting."""
        self.program("sinfo", "#!/bin/sh\necho idle\n")
        for version, expected in (("22.05.8", False), ("24.05.2", True), ("25.11.1", True)):
            self.program("slurmd", "#!/bin/sh\n" + VERSION % version + "exec sleep 600\n")
            cluster = slurm_cluster.Cluster()
            self.assertTrue(os.path.exists(cluster.folder + "/slurm.conf"))
            self.assertEqual(os.path.exists(cluster.folder + "/cgroup.conf"), expected, version)
            cluster.stop()
            self.assertFalse(os.path.exists(cluster.folder))

    def test_a_daemon_that_ends_later(self):
        self.program("sinfo", "#!/bin/sh\necho idle\n")
        self.program("slurmd", "#!/bin/sh\n" + VERSION % "22.05.8" + "sleep 2\nexit 1\n")
        cluster = slurm_cluster.Cluster()
        self.addCleanup(cluster.stop)
        with self.assertRaisesRegex(RuntimeError, "slurmd ended with code 1"):
            cluster.wait(lambda: False, 100, "the jobs do not end")


if __name__ == "__main__":
    unittest.main()
