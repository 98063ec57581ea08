# SPDX-License-Identifier: Apache-2.0
"""Tests the host side of CUDA training with a stand-in for CUDA (tests/support/stand_in_cuda).

The stand-in has no GPU: kernels are counted and do nothing, so the numbers of these runs are
meaningless. Tests check that no rule of CUDA is broken, all memory is freed, and that a steady step
allocates nothing and waits where it must.
"""

import json
import os
import pathlib
import re
import shutil

import harness
from cuda_stand_in import (
    ALONE,
    BFLOAT16,
    FLOAT8,
    FLOAT16,
    FOUR,
    GPT,
    MICRO_BATCHES,
    ONCE,
    RESNET,
    StandInCase,
)

NARROW = ("--set", "precision.reduce=bfloat16")
# Kernel launches and library calls of a step in bfloat16, with fused operations and without. A
# change of these numbers is a change of the work of a GPU.
CALLS = {
    "images": (
        {"launches": 265, "products": 12, "graphs": 104},
        {"launches": 406, "products": 12, "graphs": 104},
    ),
    "text": (
        {"launches": 158, "products": 108, "graphs": 16},
        {"launches": 326, "products": 108, "graphs": 0},
    ),
}


class CudaStandIn(StandInCase):
    def algorithms_with_sums(self, folder):
        with open(self.path(folder + "/algorithms.txt")) as file:
            return re.findall(r"convolution_statistics_forward \w+ \S+\t(.*)", file.read())

    def forms_of_products(self, folder):
        """Returns the chosen forms of products with an epilogue."""
        with open(self.path(folder + "/algorithms.txt")) as file:
            return set(re.findall(r" linear_\w+ [^\t]*\t(fused|one by one)$", file.read(), re.M))

    def float8_marks(self, folder):
        """Returns the profile marks of the products of layers."""
        with open(self.path(folder + "/algorithms.txt")) as file:
            return re.findall(r" linear_\w+ [^\t]*x(\d+)x\d+\t", file.read())

    def test_images(self):
        graphs = {}
        # Deterministic runs do not use this file, so a damaged one is no cause for a warning.
        damaged = pathlib.Path(self.path("deterministic/algorithms.txt"))
        damaged.parent.mkdir()
        damaged.write_text("damaged")
        for name, more in (
            ("float32", ()),
            ("bfloat16", BFLOAT16),
            ("float16", FLOAT16),
            ("deterministic", ("--set", "run.deterministic=true")),
            ("lars", ("--set", "optimizer.kind=lars")),
        ):
            with self.subTest(name):
                alone = ALONE if name in ("float32", "bfloat16") else {}
                (steps,) = self.trained(
                    RESNET, *FOUR, *more, "--set", "run.folder=" + name, **alone
                )
                self.expect_steady(steps, MICRO_BATCHES, overlap=name != "float16")
                graphs[name] = steps[1]["graphs"]
                self.assertGreater(graphs[name], 0)  # convolutions
        self.assertEqual(len(set(graphs.values())), 1, graphs)
        self.assertEqual(damaged.read_text(), "damaged")
        self.assertNotIn("algorithms.txt", self.log("deterministic"))
        self.try_the_rest(
            "bfloat16",
            4,
            lambda step: self.trained(
                RESNET,
                *("--set", "run.stop=%d steps" % step, *BFLOAT16, "--set", "run.folder=bfloat16"),
                length=2,
                **ALONE,
            ),
        )
        with self.subTest("convolutions that add up their results"):
            # All algorithms are equally fast here. Those with channel sums are tried first and win
            # if cuDNN supports them.
            # Shapes of this network. The stem, whose channel is padded to 8, has that of a block.
            self.assertEqual(
                [algorithm.split()[0] for algorithm in self.algorithms_with_sums("bfloat16")],
                ["engine"] * 7,
            )
            self.assertEqual(self.algorithms_with_sums("float32"), [])
        with self.subTest("known at the next start"):
            os.mkdir(self.path("known"))
            shutil.copy(self.path("bfloat16/algorithms.txt"), self.path("known"))
            (steps,) = self.trained(RESNET, *FOUR, *BFLOAT16, "--set", "run.folder=known", **ALONE)
            self.assertEqual(steps[0]["graphs"], graphs["bfloat16"])
            self.expect_steady(steps, MICRO_BATCHES)
        with self.subTest("known, and cannot be run"):
            os.mkdir(self.path("again"))
            shutil.copy(self.path("bfloat16/algorithms.txt"), self.path("again"))
            (steps,) = self.trained(
                RESNET,
                *(*FOUR, *BFLOAT16, "--set", "run.folder=again"),
                STAND_IN_CUDA_PLAIN="1",
                **ALONE,
            )
            self.expect_steady(steps, MICRO_BATCHES)
            self.assertEqual(steps[0]["graphs"], graphs["bfloat16"])  # no trial
        with self.subTest("not known, and cannot be run"):
            (steps,) = self.trained(
                RESNET,
                *(*FOUR, *BFLOAT16, "--set", "run.folder=plain"),
                STAND_IN_CUDA_PLAIN="1",
                **ALONE,
            )
            self.expect_steady(steps, MICRO_BATCHES)
            self.assertEqual(self.algorithms_with_sums("plain"), ["one by one"] * 7)

    def test_a_benchmark_of_data_pins_memory(self):
        library = os.environ["STAND_IN_CUDA"]
        result = harness.run(
            *("bench", "data", "--folder", "data/train", "--batch", "32", "--seconds", "0.1"),
            "--json",
            cwd=self.folder,
            env={"LD_PRELOAD": library, "STAND_IN_CUDA_REPORT": self.path("report")},
        )
        self.assertEqual(result.returncode, 0, result.text)
        rows = json.loads(result.stdout)["rows"]
        pinned = [row for row in rows if row["stage"] == "read, pinned"]
        self.assertEqual(
            [(row["workers"], row["prefetch"]) for row in pinned], [(1, 4), (2, 4), (4, 4)]
        )
        self.assertTrue(all(row["samples_per_s"] > 0 for row in pinned), pinned)

    def test_fused_operations_are_fewer_launches(self):
        for name, deck in (("images", RESNET), ("text", GPT)):
            for fusions, expected in zip((True, False), CALLS[name]):
                with self.subTest(name, fusions=fusions):
                    (steps,) = self.trained(
                        deck,
                        *FOUR,
                        *BFLOAT16,
                        "--set",
                        "debug.fusions=%s" % str(fusions).lower(),
                        "--set",
                        "run.folder=%s-%s" % (name, fusions),
                    )
                    self.expect_steady(steps, MICRO_BATCHES)
                    found = {kind: steps[1].get(kind, 0) for kind in expected}
                    self.assertEqual(found, expected)

    def test_gradients_in_16_bits_are_cast_once_a_bucket(self):
        """Tests the number of casts in a step.

        cuDNN writes the gradients of nine convolutions in 16 bits. Without fused operations each
        has a cast in each micro-batch, as has the bias of the classifier.
        """
        all_blocks, each_block = "25", "1e-6"  # MiB of a bucket
        for name, bucket, fusions, together, alone in (
            ("one", all_blocks, "true", MICRO_BATCHES, 0),
            # four blocks with convolutions
            ("four", each_block, "true", 4 * MICRO_BATCHES, 0),
            ("plain", all_blocks, "false", 0, (1 + 9) * MICRO_BATCHES),
        ):
            with self.subTest(name):
                self.trained(
                    RESNET,
                    *FOUR,
                    *BFLOAT16,
                    "--set",
                    "run.graphs=false",
                    "--set",
                    "parallel.bucket_mb=" + bucket,
                    "--set",
                    "debug.fusions=" + fusions,
                    "--set",
                    "run.folder=casts-" + name,
                    STAND_IN_CUDA_KERNELS="1",
                )
                self.assertEqual(self.launches_of("11CastTensors"), together)
                self.assertEqual(self.launches_of("4SameE"), alone)
        with self.subTest("working weights of a bucket"):
            # Two buffers hold the last two of five blocks. A rank has two micro-batches. Forward
            # loads five blocks after an update and three later; backward loads three, and casts
            # the gradients of four.
            self.trained(
                RESNET,
                *FOUR,
                *BFLOAT16,
                "--set",
                "run.graphs=false",
                "--set",
                'parallel.shard="parameters"',
                "--set",
                "run.folder=casts-weights",
                ranks=2,
                devices=2,
                STAND_IN_CUDA_KERNELS="1",
            )
            self.assertEqual(self.launches_of("11CastTensors"), (5 + 3 + 4) + (3 + 3 + 4))

    def launches_of(self, kernel):
        """Returns the launches, in the last step of rank 0, of kernels that have this name."""
        return sum(times for name, times in self.kernels[0].items() if kernel in name)

    def test_a_language_model(self):
        products = {}
        for name, more in (
            ("float32", ()),
            ("bfloat16", BFLOAT16),
            ("float16", FLOAT16),
            ("float8", FLOAT8),
            ("offload", ("--set", 'parallel.offload=["optimizer"]')),
        ):
            with self.subTest(name):
                (steps,) = self.trained(GPT, *FOUR, *more, "--set", "run.folder=" + name, **ALONE)
                self.expect_steady(steps, MICRO_BATCHES, overlap=name != "float16")
                products[name] = steps[1]["products"]
                self.assertGreater(steps[0]["products"], products[name])  # trials of algorithms
                # cuDNN has attention in 16 bits: forward and backward.
                self.assertEqual(
                    steps[1].get("graphs", 0),
                    2 * 2 * MICRO_BATCHES if name in ("bfloat16", "float16", "float8") else 0,
                )
        with self.subTest("as many products in float8, of which the blocks' have the mark of it"):
            self.assertEqual(products["float8"], products["bfloat16"])
            self.assertEqual(
                {mark for name in ("bfloat16", "float16") for mark in self.float8_marks(name)},
                {"0"},
            )
            self.assertEqual(set(self.float8_marks("float8")), {"0", "1"})
        with self.subTest("the algorithms are known at the next start"):
            (steps,) = self.trained(
                GPT,
                *("--set", "run.stop=8 steps", *BFLOAT16, "--set", "run.folder=bfloat16"),
                **ALONE,
            )
            self.assertEqual(steps[0]["products"], products["bfloat16"])
            self.expect_steady(steps, MICRO_BATCHES)
        with self.subTest("the faster form of a product with an epilogue"):
            # Gradients of biases, GELU and its derivative. Of equal times the first form counts.
            self.assertEqual(self.forms_of_products("bfloat16"), {"fused"})
            self.assertEqual(self.forms_of_products("float16"), {"fused"})
            slow = {"STAND_IN_CUDA_SLOW_EPILOGUES": "1", **ALONE}
            for length in (4, 8):  # tried, and known at the next start
                (steps,) = self.trained(
                    GPT,
                    "--set",
                    "run.stop=%d steps" % length,
                    *BFLOAT16,
                    "--set",
                    "run.folder=slow",
                    **slow,
                )
                self.assertEqual(self.forms_of_products("slow"), {"one by one"})
                self.assertEqual(steps[1]["products"], products["bfloat16"])
                self.expect_steady(steps, MICRO_BATCHES)
            self.assertEqual(steps[0]["products"], products["bfloat16"])
        for name, more in (("bfloat16", BFLOAT16), ("float8", FLOAT8)):
            with self.subTest("a library without epilogues", precision=name):
                (steps,) = self.trained(
                    GPT,
                    *(*FOUR, *more, "--set", "run.folder=plain-" + name),
                    STAND_IN_CUDA_PLAIN="1",
                    **ALONE,
                )
                self.expect_steady(steps, MICRO_BATCHES)
                self.assertEqual(steps[1]["products"], products[name])

    def test_what_steps_repeat_goes_as_cuda_graphs(self):
        """Tests that repeated kernel launches are replayed as CUDA graphs.

        Each step compares its launches with those of the step before the last. Equal ones are
        captured from the third step on, or from the fifth if the first step tried algorithms. Two
        kinds of launches stay outside: those with numbers of this step alone (rate, limit, stop
        requests), and parts between two exchanges that are too small.
        """

        def work(step):
            return sum(step.get(name, 0) for name in ("launches", "products", "graphs"))

        for name, deck, share, most, more, ranks in (
            ("images", RESNET, 0.97, 2 * MICRO_BATCHES + 1, (), 1),
            ("text", GPT, 0.95, 2 * MICRO_BATCHES + 1, (), 1),
            ("data", GPT, 0.9, 2 * 2 + 1, (), 2),
            ("pipeline", GPT, 0.9, 2 * MICRO_BATCHES + 1, ("--set", "parallel.pipeline=2"), 2),
            (
                "tensor",
                GPT,
                0.3,
                60,
                ("--set", "parallel.tensor=2", "--set", "parallel.sequence=true"),
                2,
            ),
            ("gradients", GPT, 0.9, 2 * 2 + 1, ("--set", 'parallel.shard="gradients"'), 2),
        ):
            with self.subTest(name):
                for steps in self.trained(
                    deck,
                    "--set",
                    "run.stop=9 steps",
                    *BFLOAT16,
                    *more,
                    "--set",
                    "run.folder=graphs-" + name,
                    ranks=ranks,
                    devices=ranks,
                    length=9,
                ):
                    self.expect_steady(
                        steps,
                        MICRO_BATCHES if name in ("images", "text") else steps[1]["event_waits"],
                    )
                    for step in steps[5:]:
                        self.assertNotIn("captures", step)
                        self.assertLessEqual(step["cuda_graphs"], most)
                        self.assertGreaterEqual(step["by_cuda_graph"], share * work(step))
                        self.assertEqual(work(step), work(steps[1]))
                self.assertRegex(
                    self.log("graphs-" + name),
                    r"\d+ of \d+ kernel launches replayed \(\d+ graphs\)",
                )
        for name, arguments, environment in (
            ("off", ("--set", "run.graphs=false"), {}),
            ("refused", (), {"STAND_IN_CUDA_NO_GRAPHS": "1"}),
        ):
            with self.subTest(name):
                (steps,) = self.trained(
                    GPT,
                    "--set",
                    "run.stop=9 steps",
                    *BFLOAT16,
                    *arguments,
                    "--set",
                    "run.folder=graphs-" + name,
                    length=9,
                    **environment,
                )
                self.expect_steady(steps, MICRO_BATCHES)
                for step in steps:
                    self.assertNotIn("cuda_graphs", step)
                self.assertEqual(
                    "the device refused a CUDA graph" in self.log("graphs-" + name),
                    name == "refused",
                )

    def test_evaluations_and_checkpoints_between_steps(self):
        """Tests that evaluations and checkpoints between steps allocate nothing.

        The third row of the report covers the time between the second and the third step. It has
        the ends of two steps, an evaluation, whose sums are waited for once, and a checkpoint,
        whose thread waits for its copies, then or later. Replicas are not compared, since that
        would copy them to the host once more.
        """
        both = ("--set", "checkpoint.every=2 steps", "--set", "evaluate.every=2 steps")
        for name, deck, ranks, more in (
            ("images", RESNET, 1, ()),
            ("text", GPT, 1, ()),
            ("averages", RESNET, 1, ("--set", "optimizer.ema=0.9")),
            ("shards", GPT, 2, ("--set", 'parallel.shard="parameters"')),
            (
                "delayed",
                GPT,
                2,
                ("--set", 'parallel.sync="delayed"', "--set", "health.compare_replicas=none"),
            ),
        ):
            with self.subTest(name):
                reports = self.trained(
                    deck,
                    *FOUR,
                    *more,
                    *both,
                    "--set",
                    "run.folder=" + name,
                    ranks=ranks,
                    devices=ranks,
                )
                # 90 images in batches of 16; 820 bytes of text in twelve sequences of 64, in pairs
                rounds = 6 // ranks
                for _, _, third, fourth in reports:
                    for step in (third, fourth):
                        self.assertEqual({key: step[key] for key in ONCE if key in step}, {})
                    self.assertEqual((third["stream_waits"], third["pageable_copies"]), (1, 1))
                    self.assertNotIn("stream_waits", fourth)
                    of_steps = 2 * (MICRO_BATCHES // ranks + 2)
                    self.assertIn(
                        third["event_waits"] + fourth["event_waits"] - of_steps - (rounds - 1),
                        (0, 1),
                    )
        with self.subTest("a checkpoint alone"):
            ((_, _, third, _),) = self.trained(
                RESNET, *FOUR, *both[:2], "--set", "run.folder=alone"
            )
            self.assertNotIn("stream_waits", third)
            self.assertNotIn("pageable_copies", third)
        with self.subTest("not beside the steps"):
            ((_, _, third, _),) = self.trained(
                RESNET,
                *FOUR,
                *both[:2],
                "--set",
                "checkpoint.async=false",
                "--set",
                "run.folder=at-once",
            )
            self.assertGreater(third["stream_waits"], 1)

    def test_ranks_with_a_device_each(self):
        """Tests ranks with one device each. NCCL does nothing either.

        The stand-in checks that NCCL uses only memory that was registered at the start, and that no
        registration is left when the memory is freed.
        """
        for name, micro_batches, more in (
            ("data", 2, ()),
            ("tensor", 4, ("--set", "parallel.tensor=2", "--set", "parallel.sequence=true")),
            ("parameters", 2, ("--set", 'parallel.shard="parameters"')),
            ("narrow", 2, NARROW),
            ("narrow-parameters", 2, (*NARROW, "--set", 'parallel.shard="parameters"')),
        ):
            with self.subTest(name):
                for steps in self.trained(
                    GPT, *FOUR, *BFLOAT16, *more, "--set", "run.folder=" + name, ranks=2, devices=2
                ):
                    self.expect_steady(steps, micro_batches)
                    for step in steps[1:]:
                        self.assertGreater(step["exchanges"], 0)
                        self.assertEqual(step["exchanges_in_place"], step["exchanges"])
                        self.assertNotIn("events", step)
                        self.assertNotIn("registrations", step)

    def test_layers_in_chunks(self):
        """Tests the number of exchanges of layers that are split into chunks.

        4096 rows of 1024 are two chunks, 2048 rows are one. Each of the 14 exchanges of a
        micro-batch then takes one more message. Forward: embedding, two products in, two out, the
        input of the head. Backward: the head, one gather for each product, one sum for some of
        them, the embedding.
        """
        harness.make_text(self.path("long"), words=20000)
        deck = (
            GPT.replace("width = 128", "width = 1024")
            .replace("context = 64", "context = 2048")
            .replace("layers = 2", "layers = 1")
            .replace("data/text/", "long/")
        )
        exchanges = []
        for micro in (1, 2):
            for steps in self.trained(
                deck,
                *FOUR,
                *BFLOAT16,
                "--set",
                "parallel.tensor=2",
                "--set",
                "parallel.sequence=true",
                "--set",
                "batch.micro=%d" % micro,
                "--set",
                "batch.global=%d" % (2 * micro),
                "--set",
                "run.folder=chunks-%d" % micro,
                ranks=2,
                devices=2,
            ):
                self.expect_steady(steps, 2)
                for step in steps[1:]:
                    self.assertEqual(step["exchanges_in_place"], step["exchanges"])
                    self.assertNotIn("events", step)
            exchanges.append(steps[1]["exchanges"])
        self.assertEqual(exchanges[1] - exchanges[0], 2 * 14)

    def test_a_rank_whose_memory_nccl_does_not_take(self):
        """Tests that the run continues without registered memory."""
        for steps in self.trained(
            GPT, *FOUR, *BFLOAT16, ranks=2, devices=2, STAND_IN_CUDA_UNREGISTERED="1"
        ):
            self.expect_steady(steps, 2)
            for step in steps[1:]:
                self.assertGreater(step["exchanges"], 0)
                self.assertNotIn("exchanges_in_place", step)
        with open(self.path("run/log.txt")) as log:
            self.assertEqual(log.read().count("device memory is sent by NCCL, unregistered: "), 1)

    def test_stages_with_a_device_each(self):
        """Tests messages too: the buffers that are sent and received."""
        for steps in self.trained(
            GPT, *FOUR, *BFLOAT16, "--set", "parallel.pipeline=2", ranks=2, devices=2
        ):
            for step in steps[1:]:
                self.assertGreater(step["exchanges"], 0)
                self.assertEqual(step["exchanges_in_place"], step["exchanges"])

    def test_ranks_that_share_a_device(self):
        """Tests exchanges through host memory."""
        for steps in self.trained(GPT, *FOUR, *BFLOAT16, "--set", "parallel.pipeline=2", ranks=2):
            for step in steps[1:]:
                self.assertEqual({name: step[name] for name in ONCE if name in step}, {})
                self.assertNotIn("exchanges", step)


if __name__ == "__main__":
    harness.main(at_once=2)
