#!/usr/bin/env python3
"""Compares losses of 50 steps of a small ResNet and a small GPT on a GPU with those of the CPU.

  parity.py record FOLDER --trireme PROGRAM
      makes datasets and records the CPU's losses in FOLDER, with the program of the preset release
      (half a minute)
  parity.py compare FOLDER --trireme PROGRAM --device cuda --work FOLDER

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


def run(arguments, work, model, precision, device, name, steps, environment=None):
    environment = dict(
        os.environ, OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "2"), **(environment or {})
    )
    rows = runs.train(
        arguments.trireme,
        work,
        name,
        deck_of(model, arguments.folder, steps),
        device,
        arguments.seconds,
        sets=SETS[precision],
        environment=environment,
    )
    return runs.losses(rows)


# 60 kB from the King James Bible; the same path in the source tree and in a stage.
TEXT = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "data", "text.txt"
)


def record(arguments):
    folder = arguments.folder
    work = os.path.join(folder, "work")
    os.makedirs(work, exist_ok=True)
    runs.make_gray_images(
        arguments.trireme, os.path.join(folder, "images"), samples=1024, size=16, classes=8
    )
    runs.call(
        [
            arguments.trireme,
            "shard",
            "text",
            TEXT,
            "--out",
            os.path.join(folder, "text"),
            "--overwrite",
        ],
        60,
    )
    recorded = {}
    for model in MODELS:
        recorded[model] = {
            precision: run(
                arguments,
                work,
                model,
                precision,
                "cpu",
                "%s-%s" % (model, precision),
                arguments.steps,
            )
            for precision in SETS
        }
        recorded[model]["other sums"] = run(
            arguments,
            work,
            model,
            "float32",
            "cpu",
            model + "-other",
            arguments.steps,
            {"ONEDNN_MAX_CPU_ISA": OTHER_SUMS},
        )
        print(
            "%s: %d losses, %.6f to %.6f"
            % (
                model,
                arguments.steps,
                recorded[model]["float32"][0],
                recorded[model]["float32"][-1],
            )
        )
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


def compare(arguments):
    """Returns one object for each run. Raises Failed, which names every run outside the
    tolerance."""
    with open(os.path.join(arguments.folder, "losses.json")) as file:
        recorded = json.load(file)
    results, wrong = [], []
    for model in MODELS:
        for precision in SETS:
            expected, bound = recorded[model][precision], bounds(recorded[model], precision)
            found = run(
                arguments,
                arguments.work,
                model,
                precision,
                arguments.device,
                "parity-%s-%s" % (model, precision),
                len(expected),
            )
            if len(found) != len(expected):
                raise runs.Failed(
                    "%s %s: %d losses, %d were recorded"
                    % (model, precision, len(found), len(expected))
                )
            share = [abs(a - b) / c for a, b, c in zip(found, expected, bound)]
            worst = max(range(len(share)), key=share.__getitem__)
            results.append(
                {
                    "model": model,
                    "precision": precision,
                    "steps": len(found),
                    "last_loss": found[-1],
                    "last_expected": expected[-1],
                    "largest_difference": max(abs(a - b) for a, b in zip(found, expected)),
                    "largest_share_of_bound": share[worst],
                }
            )
            if not share[worst] <= 1:
                wrong.append(
                    "%s %s: step %d has loss %.8g, the CPU's is %.8g, %.2g may be between them"
                    % (model, precision, worst + 1, found[worst], expected[worst], bound[worst])
                )
    for result in results:
        print(json.dumps(result))
    if wrong:
        raise runs.Failed("\n".join(wrong))
    return results


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("folder")
    parser.add_argument("--trireme", required=True)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--steps", type=int, default=STEPS, help="to record")
    parser.add_argument("--work", help="folder of the runs that are compared")
    parser.add_argument("--seconds", type=float, default=120, help="limit of one run")
    arguments = parser.parse_args()
    try:
        if arguments.action == "record":
            record(arguments)
        else:
            arguments.work = arguments.work or os.path.join(arguments.folder, "work")
            os.makedirs(arguments.work, exist_ok=True)
            compare(arguments)
    except runs.Failed as failure:
        print("parity: " + str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
