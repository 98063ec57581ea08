# SPDX-License-Identifier: Apache-2.0
"""Tests a CUDA build on a login node without GPU or driver.

Commands that need no device work. Commands that compute name the missing driver and exit with 1.
"""

import os
import re
import subprocess
import unittest

import harness


def driver_is_here():
    listed = subprocess.run(
        ["ldconfig", "-p"],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, PATH=os.environ["PATH"] + ":/sbin:/usr/sbin"),
    )
    return "libcuda.so.1" in listed.stdout


class CudaStart(harness.Case):
    def test_the_driver_library_is_not_linked(self):
        needed = subprocess.run(
            ["readelf", "-d", harness.PROGRAM], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        self.assertRegex(needed, r"NEEDED.*libcudart\.so", "this is no CUDA build")
        loaded = subprocess.run(
            ["ldd", harness.PROGRAM], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        self.assertNotRegex(needed + loaded, r"libcuda\.so")
        self.assertNotIn("not found", loaded)

    def test_help_of_every_command(self):
        text = self.works("--help")
        commands = re.findall(
            r"^  (train|check|evaluate|shard|inspect|verify|import|export)\b", text, re.MULTILINE
        )
        self.assertEqual(len(commands), 8, text)
        for command in commands:
            self.works(command, "--help")

    def test_what_needs_no_device_works(self):
        # The datasets themselves were made with `shard`.
        self.assertIn("nothing is wrong", self.works("check", "deck.toml"))
        self.assertIn("%d samples" % self.samples, self.works("inspect", "data/train"))
        self.assertIn("whole", self.works("verify", "data/train"))

    def test_wrong_input_is_still_wrong_input(self):
        self.write_deck(harness.DECK.replace("momentum", "momentun"))
        for command in ("check", "train"):
            result = harness.run(command, "deck.toml", cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn("momentun", result.text)

    def test_training_names_the_driver_and_leaves_nothing(self):
        if driver_is_here():
            self.skipTest("this machine has a driver")
        for device in ("auto", "cpu", "cuda"):
            for ranks in (1, 2):
                with self.subTest(device=device, ranks=ranks):
                    text = self.train("--set", "run.device=" + device, ranks=ranks, expect=1).text
                    self.assertRegex(text, r"no CUDA device: no NVIDIA driver .*preset release")
                    self.assertFalse(os.path.exists(self.path("run")))

    def works(self, *arguments):
        result = harness.run(*arguments, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return result.stdout


if __name__ == "__main__":
    unittest.main()
