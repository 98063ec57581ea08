# SPDX-License-Identifier: Apache-2.0
"""Tests the launches of kernels that keys of [debug] turn on, with the stand-in for CUDA."""

import harness
from cuda_stand_in import BFLOAT16, FOUR, GPT, MICRO_BATCHES, RESNET, StandInCase


class NewKernels(StandInCase):
    def launches(self, deck, key, *more):
        """Returns the launches of a steady step without and with the key."""
        counts = []
        for value in ("false", "true"):
            (steps,) = self.trained(
                deck,
                *FOUR,
                *BFLOAT16,
                *more,
                "--set",
                "%s=%s" % (key, value),
                "--set",
                "run.folder=" + "-".join((key, value, *more[1:])),
                STAND_IN_CUDA_KERNELS="1",
            )
            self.expect_steady(steps, MICRO_BATCHES)
            counts.append(steps[1]["launches"])
        return counts

    def test_a_fused_softmax_is_one_launch(self):
        """Tests rows in shared memory, those of GPT-2's vocabulary in more than 48 KiB of it.

        The stand-in reports a launch with more memory than the kernel has asked for.
        """
        for vocabulary, less in ((256, 1), (50304, 1), (120000, 0)):
            with self.subTest(vocabulary):
                plain, fused = self.launches(
                    GPT, "debug.fused_softmax", "--set", "model.vocabulary=%d" % vocabulary
                )
                self.assertEqual(plain - fused, less * MICRO_BATCHES)
                blocks = [n for kernel, n in self.kernels[0].items() if "run_blocks" in kernel]
                self.assertEqual(sum(blocks), less * MICRO_BATCHES)

    def test_joined_norms_are_three_launches_less(self):
        """Tests the launches of a block with a shortcut.

        A norm has one launch in forward and four in backward, two joined norms have one and six.
        """
        shortcuts = 2
        plain, joined = self.launches(RESNET, "debug.joined_norms")
        self.assertEqual(plain - joined, 3 * shortcuts * MICRO_BATCHES)


if __name__ == "__main__":
    harness.main(at_once=2)
