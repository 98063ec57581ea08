# SPDX-License-Identifier: Apache-2.0
"""Checks containers/trireme.def without Apptainer: its sections, its shell, and what it names."""

import json
import pathlib
import re
import shutil
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = (ROOT / "containers/trireme.def").read_text()


def sections():
    """Returns the text of each section by name, and the header as ""."""
    parts = re.split(r"(?m)^%(\w+)\n", TEXT)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2]))}


class Container(unittest.TestCase):
    def setUp(self):
        self.sections = sections()
        lines = self.sections["arguments"].split()
        self.arguments = dict(line.split("=", 1) for line in lines)

    def filled(self, name):
        """Returns a section with the values of the arguments."""
        return re.sub(r"\{\{ (\w+) \}\}", lambda at: self.arguments[at[1]], self.sections[name])

    def test_it_has_its_sections_once(self):
        names = "arguments files post environment runscript test labels help".split()
        self.assertEqual(re.findall(r"(?m)^%(.*)$", TEXT), names)
        header = [line for line in self.filled("").splitlines() if not line.startswith("#")]
        self.assertEqual(header[:2], ["Bootstrap: docker", "From: debian:12"])

    def test_every_argument_is_used_and_given(self):
        used = set(re.findall(r"\{\{ (\w+) \}\}", TEXT))
        self.assertEqual(used, set(self.arguments))
        self.assertEqual(set(re.findall(r"#   (\w+)=\S+ (\w+)=", TEXT)), {("BASE", "PRESET")})

    def test_its_scripts_are_shell(self):
        for name in ("post", "environment", "runscript", "test"):
            script = "#!/bin/sh\n" + self.filled(name)
            checks = [["sh", "-n"]]
            if shutil.which("shellcheck"):
                # SC2194: a case on the constant that the argument becomes.
                checks.append(["shellcheck", "-s", "sh", "-e", "SC2194", "-"])
            for command in checks:
                done = subprocess.run(command, input=script, capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_what_it_names_exists(self):
        presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
        known = {preset["name"] for preset in presets}
        self.assertLessEqual({*re.findall(r"PRESET=(\S+)", TEXT)}, known)
        options = (ROOT / "CMakeLists.txt").read_text()
        for name in re.findall(r"-D(TRIREME_\w+)=", TEXT):
            self.assertRegex(options, r"(option|set)\(%s\b" % name)
        (script,) = set(re.findall(r"\./(scripts/\S+)", TEXT))
        self.assertTrue((ROOT / script).is_file())
        source = self.sections["files"].split()[0]
        self.assertIn('git clone --depth 1 "file://$PWD" %s\n' % source, TEXT)
        self.assertIn("cd %s\n" % self.sections["files"].split()[1], self.sections["post"])


if __name__ == "__main__":
    unittest.main()
