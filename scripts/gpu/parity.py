#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares losses of 50 steps of a small ResNet and a small GPT on a GPU with those of the CPU.

  parity.py FOLDER --trireme PROGRAM

makes datasets and records the CPU's losses in FOLDER, with the program of the preset release (half
a minute). The section `parity` of acceptance.py compares with them.

The tolerance is measured. The run is recorded twice on the CPU: with oneDNN's kernels for this
processor, and with those for an old one (ONEDNN_MAX_CPU_ISA), which sum in another order. The GPU
may differ by 20 times the difference of these runs up to a step: its sums differ in all kernels,
not only in products. In bfloat16 the tolerance is twice the CPU's own difference between bfloat16
and float32: both programs round equally, but other sums.
"""

import argparse
import json
import os
import sys

import runs
import variants

STEPS = 50
COMMON = """stop = "%d steps"
[checkpoint]
every = "1000000 steps"
[monitor]
every = "1 step"
tensorboard = false
"""
MODELS = {
    "resnet": """[model]
kind = "resnet"
depth = 8
width = 16
stem = "small"
[data]
train = "%(data)s/images"
workers = 1
[data.augment]
flip = true
random_crop = 2
[batch]
global = 32
micro = 16
[optimizer]
kind = "sgd"
momentum = 0.9
weight_decay = 5e-4
[schedule]
kind = "constant"
rate = 0.02
""",
    "gpt": """[model]
kind = "gpt"
layers = 3
heads = 4
width = 64
context = 64
dropout = 0.1
[data]
train = "%(data)s/text"
workers = 1
[batch]
global = 16
micro = 8
[optimizer]
kind = "adamw"
weight_decay = 0.1
clip_norm = 1.0
[schedule]
kind = "constant"
rate = 3e-3
""",
}
SETS = {"float32": (), "bfloat16": ("precision.compute=bfloat16",)}
OTHER_SUMS = "SSE41"
FACTOR = {"float32": 20, "bfloat16": 2}
# Minimum tolerance of a loss: a few roundings, for steps where both CPU runs agree by chance.
FLOOR = {"float32": 4e-6, "bfloat16": 4e-3}


def deck_of(model, folder, steps):
    """Returns the deck for runs.train, without the head of [run]. `folder` has the datasets."""
    return COMMON % steps + MODELS[model] % {"data": os.path.abspath(folder)}


def losses_of(runner, model, precision, device, name, steps, sets=(), environment=()):
    """Trains a model and returns its losses. The runner's folder has the datasets."""
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    rows = runner.train(
        name,
        deck_of(model, runner.data, steps),
        device,
        sets=[*SETS[precision], *sets],
        environment={**threads, **dict(environment)},
    )
    return runs.losses(rows)


# 60 kB from the King James Bible; the same path in the source tree and in a stage.
TEXT = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "data", "text.txt"
)


def record(folder, trireme, steps, seconds):
    """Makes the datasets and FOLDER/losses.json."""
    runner = runs.Runner(trireme, os.path.join(folder, "work"), seconds)
    runner.data = folder
    images = os.path.join(folder, "images")
    runs.make_gray_images(trireme, images, samples=1024, size=16, classes=8)
    words = ["shard", "text", TEXT, "--out", os.path.join(folder, "text"), "--overwrite"]
    runs.call([trireme, *words], 60)
    recorded = {}
    for model in MODELS:
        recorded[model] = {
            precision: losses_of(
                runner, model, precision, "cpu", "%s-%s" % (model, precision), steps
            )
            for precision in SETS
        }
        recorded[model]["other sums"] = losses_of(
            runner,
            model,
            "float32",
            "cpu",
            model + "-other",
            steps,
            environment={"ONEDNN_MAX_CPU_ISA": OTHER_SUMS},
        )
        known = recorded[model]["float32"]
        print("%s: %d losses, %.6f to %.6f" % (model, steps, known[0], known[-1]))
    with open(os.path.join(folder, "losses.json"), "w") as file:
        json.dump(recorded, file, indent=1)


def bounds(recorded, precision):
    """Returns the tolerance of each step, relative to recorded[precision]."""
    other = recorded["other sums"] if precision == "float32" else recorded["float32"]
    result, widest = [], 0.0
    for one, two in zip(recorded[precision], other):
        widest = max(widest, abs(one - two))
        result.append(FACTOR[precision] * widest + FLOOR[precision] * abs(one))
    return result


def compare(section, device):
    """Compares every model, precision and variant. A run that fails does not end the others."""
    with open(os.path.join(section.data, "losses.json")) as file:
        recorded = json.load(file)
    section.result["runs"] = compared = []

    def compare_one(model, precision, name, sets):
        expected, bound = recorded[model][precision], bounds(recorded[model], precision)
        found = losses_of(section, model, precision, device, name, len(expected), sets)
        if len(found) != len(expected):
            raise runs.Failed("%d losses, %d were recorded" % (len(found), len(expected)))
        share = [abs(a - b) / c for a, b, c in zip(found, expected, bound)]
        worst = max(range(len(share)), key=share.__getitem__)
        compared.append(
            {
                "model": model,
                "precision": precision,
                "sets": list(sets),
                "steps": len(found),
                "last_loss": found[-1],
                "last_expected": expected[-1],
                "largest_difference": max(abs(a - b) for a, b in zip(found, expected)),
                "largest_share_of_bound": share[worst],
            }
        )
        if not share[worst] <= 1:
            raise runs.Failed(
                "step %d has loss %.8g, the CPU's is %.8g, %.2g may be between them"
                % (worst + 1, found[worst], expected[worst], bound[worst])
            )

    for model in MODELS:
        for precision in SETS:
            for variant, sets in variants.of(model, device):
                name = variants.label("%s %s" % (model, precision), variant)
                section.attempt(name, lambda: compare_one(model, precision, name, sets))
    section.result["summary"] = "%d runs, largest difference %.2g of the tolerance" % (
        len(compared),
        max((run["largest_share_of_bound"] for run in compared), default=float("nan")),
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--trireme", required=True)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seconds", type=float, default=600, help="limit of all runs together")
    arguments = parser.parse_args()
    try:
        record(arguments.folder, arguments.trireme, arguments.steps, arguments.seconds)
    except runs.Failed as failure:
        print("parity: " + str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
