# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme doctor` on two hosts (tests/system/hosts.py).

The hosts differ in a limit, or do not share the folder.
"""

import os
import tempfile
import unittest

import harness
import hosts

LOW_LIMIT = 'if [ "$(hostname)" = beta ]; then ulimit -n 5000; else ulimit -n 6000; fi'
# A folder of its own on the second host, at the same path.
OWN_FOLDER = """
if [ "$(hostname)" = beta ] && [ -z "$INSIDE" ]; then
  INSIDE=yes exec unshare --mount --propagation private "$0" "$@"
fi
if [ -n "$INSIDE" ]; then mount -t tmpfs tmpfs "$FOLDER" && cd "$FOLDER"; fi
"""


class DoctorOnHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        cls.shared = tempfile.TemporaryDirectory(prefix="trireme-test-")
        cls.hosts = hosts.Hosts(["alpha", "beta"], cls.shared.name + "/hosts")

    @classmethod
    def tearDownClass(cls):
        cls.hosts.close()
        cls.shared.cleanup()

    def doctor(self, script, *arguments):
        """Starts two ranks on each host by a script that runs `script` first. Returns exit code and
        output."""
        folder = tempfile.mkdtemp(dir=self.shared.name)
        program = os.path.join(folder, "program")
        with open(program, "w") as file:
            file.write(
                "#!/bin/sh\nFOLDER=%s\n%s\nexec %s \"$@\"\n" % (folder, script, harness.TRIREME)
            )
        os.chmod(program, 0o755)
        process = self.hosts.start(
            ("alpha", "beta"),
            "doctor",
            "--bytes",
            "1MiB",
            *arguments,
            ranks_per_host=2,
            cwd=folder,
            program=program
        )
        text, _ = process.communicate(timeout=harness.PATIENCE)
        self.assertEqual(os.listdir(folder), ["program"], text)
        return process.returncode, text

    def test_a_limit_that_differs_names_the_host(self):
        _, text = self.doctor(LOW_LIMIT)
        self.assertRegex(text, r"(?m)^ok +launcher +4 ranks on 2 nodes")
        self.assertRegex(
            text, r"(?m)^warning +differences +ulimit -n: 6000 on alpha; 5000 on beta\. Hurts: "
        )
        self.assertRegex(text, r"(?m)^ok +speed .*the slowest node.* \((alpha|beta)\)$")
        self.assertRegex(text, r"(?m)^doctor: .* on 2 nodes$")
        self.assertNotRegex(text, r"(?m)^(problem|warning) +folder")

    def test_a_folder_that_is_not_shared(self):
        code, text = self.doctor(OWN_FOLDER)
        self.assertRegex(
            text,
            r"(?m)^problem +folder .* which is not the folder that rank 0 sees \(beta\)\. Hurts: ",
        )
        self.assertRegex(text, r"(?m)^problem +differences +file systems: .*; tmpfs on beta\.")
        self.assertEqual(code, 1, text)

    def test_a_folder_that_no_host_has(self):
        code, text = self.doctor("", "--folder", "none")
        self.assertEqual(code, 2, text)
        self.assertEqual(text.count("--folder none: No such file or directory"), 1, text)


if __name__ == "__main__":
    hosts.enter()
    unittest.main()
