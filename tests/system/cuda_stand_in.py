# SPDX-License-Identifier: Apache-2.0
"""Training with the stand-in for CUDA (tests/support/stand_in_cuda), and its report."""

import glob
import os
import re
import shutil

import harness

FOUR = ("--set", "run.stop=4 steps")
BFLOAT16, FLOAT16, FLOAT8 = (
    ("--set", "precision.compute=" + name) for name in ("bfloat16", "float16", "float8")
)
RESNET = (
    harness.DECK.replace('"5 steps"', '"9 steps"')
    .replace('warmup = "9 steps"', 'warmup = "1 step"')
    .replace("deterministic = true", "")
)
# Shapes for which cuDNN has attention.
GPT = (
    harness.GPT_DECK.replace("width = 16", "width = 128")
    .replace("context = 16", "context = 64")
    .replace("layers = 3", "layers = 2")
    .replace('every = "2 steps"', 'every = "9 steps"')
    .replace('every = "3 steps"', 'every = "9 steps"')
    .replace('"text/', '"data/text/')
)
MICRO_BATCHES = 4  # of one step of both decks on one rank
# Of a run that tries all algorithms by itself.
ALONE = {"TRIREME_ALGORITHMS": ""}
# In the log of a start that had no time left for some trials, as on a busy machine.
UNTRIED = "the next start chooses"
# Calls that a step may not make after the first one has set up everything.
ONCE = (
    "allocations",
    "releases",
    "pinned_allocations",
    "pinned_releases",
    "streams",
    "blocking_copies",
    "device_waits",
    "launches_on_default_stream",
)


def read_report(path):
    """Returns the counts of each step, all lines that report errors, and the kernels.

    The kernels are those of the last step: mangled name -> launches, if STAND_IN_CUDA_KERNELS is
    set.
    """
    steps, faults, kernels = [], [], {}
    with open(path) as file:
        for line in file:
            if line.startswith("step "):
                steps.append(
                    {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", line)}
                )
            elif line.startswith("fault "):
                faults.append(line.strip())
            elif line.startswith("kernel "):
                _, launches, name = line.split()
                kernels[name] = int(launches)
    return steps, faults, kernels


class StandInCase(harness.Case):
    """Training with the stand-in, which STAND_IN_CUDA names. Without it the tests are skipped."""

    samples = 320

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not os.environ.get("STAND_IN_CUDA"):
            harness.skip("STAND_IN_CUDA does not name the stand-in")
        harness.make_text(cls.shared + "/text")

    def train_on_stand_in(self, *arguments, ranks=1, devices=1, **environment):
        """Trains deck.toml with `devices` devices in all, and returns the result."""
        library = os.environ["STAND_IN_CUDA"]
        return harness.run(
            "train",
            "deck.toml",
            "--set",
            "run.device=cuda",
            *arguments,
            ranks=ranks,
            cwd=self.folder,
            env=dict(
                environment,
                LD_PRELOAD=library,
                NVTX_INJECTION64_PATH=library,
                STAND_IN_CUDA_REPORT=self.path("report"),
                STAND_IN_CUDA_DEVICES=str(devices),
            ),
        )

    def trained(self, deck, *arguments, ranks=1, devices=1, length=4, **environment):
        """Returns the counts of each step, for each rank. Keeps the kernels of each rank.

        Runs share the algorithms that they find, since trials take longer than the run. A run that
        had no time for all of them starts anew and knows more.
        """
        self.write_deck(deck)
        shared = self.shared + "/algorithms.txt"
        environment = {"TRIREME_ALGORITHMS": shared, **environment}
        for _ in range(4):
            result = self.train_on_stand_in(*arguments, ranks=ranks, devices=devices, **environment)
            if environment["TRIREME_ALGORITHMS"] != shared or UNTRIED not in result.text:
                break
            (folder,) = re.findall(r"run\.folder=(\S+)", " ".join(arguments)) or ["run"]
            shutil.rmtree(self.path(folder))
            for path in glob.glob(self.path("report.*")):
                os.remove(path)
        self.assertEqual(result.returncode, 0, result.text)
        self.assertIn("NVIDIA H200", result.text)
        paths = glob.glob(self.path("report.*"))
        reports = [read_report(path) for path in paths]
        for path in paths:
            os.remove(path)
        self.assertEqual(len(reports), ranks, result.text)
        for steps, faults, _ in reports:
            self.assertEqual(faults, [])
            self.assertEqual(len(steps), length)
        self.kernels = [kernels for _, _, kernels in reports]
        return [steps for steps, _, _ in reports]

    def try_the_rest(self, folder, step, train):
        """Trains on from `step` until every problem was tried. `train` trains up to a step."""
        while UNTRIED in self.log(folder).rsplit("were chosen in")[-1]:
            self.assertLess(step, 10, self.log(folder))
            step += 2
            train(step)

    def log(self, folder):
        with open(self.path(folder, "log.txt")) as file:
            return file.read()

    def expect_steady(self, steps, micro_batches, overlap=True):
        """Checks the waits of steady steps.

        The host waits once in each micro-batch, whose memory the loader refills. In each step it
        also waits for the status and the update of the previous step, while the device runs the
        next one. If steps do not overlap, it waits for those of the same step.
        """
        # The Kokkos of scripts/deps/kokkos.sh sets none.
        if os.path.exists(os.path.join(os.path.dirname(__file__), "../../.deps/kokkos-cuda")):
            self.assertEqual([step for step in steps if "cache_preferences" in step], [])
        for step in steps[1:]:
            self.assertEqual({name: step[name] for name in ONCE if name in step}, {})
            self.assertGreater(step["launches"], 0)
            self.assertEqual(step["launches"], steps[1]["launches"])
            self.assertNotIn("stream_waits", step)
        self.assertEqual(steps[1]["event_waits"], micro_batches + (0 if overlap else 2))
        for step in steps[2:]:
            self.assertEqual(
                (step["event_waits"], step.get("late_event_waits", 0)),
                (micro_batches + 2, 2 if overlap else 0),
            )
