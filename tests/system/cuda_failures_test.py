# SPDX-License-Identifier: Apache-2.0
"""Tests failures of a GPU with a stand-in for CUDA (tests/support/stand_in_cuda).

A kernel that the device refuses, or one that accesses wrong memory, ends the run with exit code 1
and a message. No checkpoint is written from its numbers.
"""

import glob
import json
import os
import shutil
import time

import harness
from cuda_stand_in import BFLOAT16, GPT, RESNET, StandInCase, read_report

# Seconds in which a run with a failed device ends; without a failure it takes about ten.
MAX_SECONDS = 120
KERNEL = r"trireme/kernels/\w+"


class CudaFailures(StandInCase):
    def train(self, folder, *arguments, ranks=1, **environment):
        """Trains with a device for each rank, and returns the result, with its seconds."""
        for path in glob.glob(self.path("report.*")):
            os.remove(path)
        start = time.monotonic()
        result = self.train_on_stand_in(
            "--set",
            "run.folder=" + folder,
            *BFLOAT16,
            *arguments,
            ranks=ranks,
            devices=ranks,
            **environment,
        )
        result.seconds = time.monotonic() - start
        return result

    def expect_failure(self, folder, result, message):
        self.assertEqual(result.returncode, 1, result.text)
        self.assertRegex(result.text, message)
        self.assertLess(result.seconds, MAX_SECONDS)
        with open(self.path(folder, "exit.json")) as file:
            record = json.load(file)
        self.assertEqual(record["code"], 1)
        self.assertRegex(record["reason"], message)

    def test_a_refused_launch_ends_the_run(self):
        """Tests refused kernels, products of cuBLASLt, and plans of cuDNN.

        The run resumes at step 2. If it went on it would write checkpoints 4, 6 and 8.
        """
        every = ("--set", "checkpoint.every=2 steps")
        for deck, cases in (
            (RESNET, (("kernel 300+", "true", KERNEL), ("kernel 300+", "false", KERNEL))),
            (
                GPT,
                (
                    ("product 150+", "true", r"of cuBLASLt for linear_\w+ bfloat16 .*"),
                    ("plan 20+", "false", r"of cuDNN for attention_\w+ bfloat16 .*"),
                ),
            ),
        ):
            self.write_deck(deck)
            name = "images" if deck is RESNET else "text"
            result = self.train(name, *every, "--set", "run.stop=2 steps")
            self.assertEqual(result.returncode, 0, result.text)
            before = sorted(os.listdir(self.path(name, "checkpoints")))
            for refused, graphs, label in cases:
                with self.subTest(refused, graphs=graphs):
                    folder = "%s-%s-%s" % (name, refused.split()[0], graphs)
                    shutil.copytree(self.path(name), self.path(folder))
                    result = self.train(
                        folder,
                        *every,
                        "--set",
                        "run.stop=9 steps",
                        "--set",
                        "run.graphs=" + graphs,
                        STAND_IN_CUDA_REFUSE=refused,
                    )
                    self.expect_failure(
                        folder, result, r"kernel %s could not be launched: .* \(\d+\)" % label
                    )
                    self.assertEqual(sorted(os.listdir(self.path(folder, "checkpoints"))), before)

    def test_a_refused_plan_is_not_chosen_by_a_trial(self):
        """Tests that a trial drops a plan whose refusal the library does not report, and that
        nothing else is blamed for it."""
        self.write_deck(RESNET)
        for refused in ("plan 3", "plan 8"):
            with self.subTest(refused):
                result = self.train(refused.replace(" ", "-"), STAND_IN_CUDA_REFUSE=refused)
                self.assertEqual(result.returncode, 0, result.text)

    def test_a_launch_that_is_refused_in_a_capture_only(self):
        """Tests that the launches of a refused graph are submitted one by one, and nothing else is
        blamed for its error."""
        self.write_deck(GPT)
        self.assertEqual(self.train("first", "--set", "run.stop=2 steps").returncode, 0)

        def second(folder, **environment):
            os.mkdir(self.path(folder))
            shutil.copy(self.path("first/algorithms.txt"), self.path(folder))
            result = self.train(folder, **environment)
            self.assertEqual(result.returncode, 0, result.text)
            ((steps, faults, _),) = map(read_report, glob.glob(self.path("report.*")))
            self.assertEqual(faults, [])
            return steps, result.text

        steps, text = second("clean")
        self.assertNotIn("refused a CUDA graph", text)
        # In the third step, whose launches are captured.
        number = sum(step["launches"] for step in steps[:2]) + steps[2]["launches"] // 2
        self.assertIn("captures", steps[2])
        others, text = second("refused", STAND_IN_CUDA_REFUSE="kernel %d" % number)
        self.assertRegex(
            text, "the device refused a CUDA graph, .*: kernel %s could not be launched" % KERNEL
        )
        self.assertEqual(len(others), len(steps))

    def test_a_device_that_fails_ends_the_run(self):
        """Tests an access out of bounds, after which every call fails, at 1 and 2 ranks."""
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.write_deck(GPT)
                folder = "run-%d" % ranks
                result = self.train(folder, ranks=ranks, STAND_IN_CUDA_BREAK="900")
                self.expect_failure(folder, result, r"CUDA: .*|could not be launched: ")
                # The first message only, and no crash of a library that cleans up.
                self.assertNotRegex(result.text, "terminate called|Kokkos(?!: [0-9])|signal 6")


if __name__ == "__main__":
    harness.main(at_once=2)
