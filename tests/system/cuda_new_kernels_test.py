"""Tests the launches of kernels that keys of [debug] turn on, with the stand-in for CUDA."""

import os

import cuda_stand_in_test as stand_in
import harness


class NewKernels(harness.Case):
    samples = 320
    trained = stand_in.CudaStandIn.trained
    expect_steady = stand_in.CudaStandIn.expect_steady

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not os.environ.get("STAND_IN_CUDA"):
            harness.skip("STAND_IN_CUDA does not name the stand-in")
        harness.make_text(cls.shared + "/text")

    def launches(self, deck, key, *more):
        """Returns the launches of a steady step without and with the key."""
        counts = []
        for value in ("false", "true"):
            (steps,) = self.trained(
                deck,
                *stand_in.FOUR,
                *stand_in.BFLOAT16,
                *more,
                "--set",
                "%s=%s" % (key, value),
                "--set",
                "run.folder=" + "-".join((key, value, *more[1:])),
                STAND_IN_CUDA_KERNELS="1",
            )
            self.expect_steady(steps, stand_in.MICRO_BATCHES)
            counts.append(steps[1]["launches"])
        return counts

    def test_a_fused_softmax_is_one_launch(self):
        """Tests rows in shared memory, those of GPT-2's vocabulary in more than 48 KiB of it.

        The stand-in reports a launch with more memory than the kernel has asked for.
        """
        for vocabulary, less in ((256, 1), (50304, 1), (120000, 0)):
            with self.subTest(vocabulary):
                plain, fused = self.launches(
                    stand_in.GPT, "debug.fused_softmax", "--set", "model.vocabulary=%d" % vocabulary
                )
                self.assertEqual(plain - fused, less * stand_in.MICRO_BATCHES)
                blocks = [n for kernel, n in self.kernels[0].items() if "run_blocks" in kernel]
                self.assertEqual(sum(blocks), less * stand_in.MICRO_BATCHES)

    def test_joined_norms_are_three_launches_less(self):
        """Tests the launches of a block with a shortcut.

        A norm has one launch in forward and four in backward, two joined norms have one and six.
        """
        shortcuts = 2
        plain, joined = self.launches(stand_in.RESNET, "debug.joined_norms")
        self.assertEqual(plain - joined, 3 * shortcuts * stand_in.MICRO_BATCHES)


if __name__ == "__main__":
    harness.main()
