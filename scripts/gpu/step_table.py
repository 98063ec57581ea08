#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the ops of one training step with the least time that they need on a GPU.

  step_table.py TRIREME [--by op|call] [--only WORD] [--set KEY=VALUE ...]

The work is counted by the program itself (`trireme check --json`, `ops`), in bfloat16 on one GPU.
The decks are ResNet-50 on 224 x 224 images with a batch of 256, and GPT-2 124M with 32 sequences of
1024 tokens. An op needs at least max(FLOP / peak, bytes / bandwidth); bytes count each
operand once. Kernels that an op launches beside its main one, and launches themselves, are not
counted.

Peaks are those of NVIDIA's data sheets for the SXM modules: dense bfloat16 and memory bandwidth.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import networks  # noqa: E402

DEVICES = {"H100": (989e12, 3.35e12), "H200": (989e12, 4.8e12)}  # FLOP/s, bytes/s
SHORT = 1e-3  # of the step: ops that have no row of their own
STEPS = {
    "ResNet-50, batch 256": (networks.RESNET50, 256, "images:1281167,224x224x3,1000", "images"),
    "GPT-2 124M, batch 32 x 1024": (networks.GPT2, 32, "tokens:10000000,50304", "tokens"),
}


def count(trireme, deck, batch, form, settings=()):
    """Returns the ops of one step: objects with op, calls, flops and bytes.

    `settings`: changes of the deck, as in "debug.fused_softmax=true".
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "deck.toml")
        with open(path, "w") as file:
            file.write('[run]\nname = "step"\ndevice = "cuda"\n')
            file.write(networks.DECK % (1, deck % {"data": folder, "batch": batch}, 1))
        result = subprocess.run(
            [trireme, "check", path, "--json", "--assume", form]
            + [word for setting in settings for word in ("--set", setting)],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    if result.returncode != 0:
        sys.exit("step_table: " + result.stderr)
    return json.loads(result.stdout)["ops"]


def rows_of(ops, by):
    """Returns (name, calls, FLOP, bytes, seconds by device) of each row, the slowest first."""
    rows = collections.OrderedDict()
    for op in ops:
        name = op["op"]
        if by == "call":
            name += " %.3g GFLOP %.3g MB" % (op["flops"] / 1e9, op["bytes"] / 1e6)
        row = rows.setdefault(name, [0, 0.0, 0.0, [0.0] * len(DEVICES)])
        row[0] += op["calls"]
        row[1] += op["calls"] * op["flops"]
        row[2] += op["calls"] * op["bytes"]
        for i, (peak, bandwidth) in enumerate(DEVICES.values()):
            row[3][i] += op["calls"] * max(op["flops"] / peak, op["bytes"] / bandwidth)
    return sorted(((name, *row) for name, row in rows.items()), key=lambda row: -row[4][0])


def print_table(title, rows, samples):
    print("%s:\n" % title)
    names = "".join(" ms at least, %s |" % device for device in DEVICES)
    print("| op | calls | TFLOP | GB |%s confirmed on a device |" % names)
    print("|---|---:|---:|---:|%s---|" % ("---:|" * len(DEVICES)))
    total = [sum(row[4][i] for row in rows) for i in range(len(DEVICES))]
    for name, calls, flops, moved, seconds in rows:
        if seconds[0] < SHORT * total[0]:
            continue
        times = "".join(" %.2f |" % (1e3 * second) for second in seconds)
        print(
            "| `%s` | %d | %.2f | %.2f |%s no |" % (name, calls, flops / 1e12, moved / 1e9, times)
        )
    print(
        "| all, also %d short ones | %d | %.2f | %.2f |%s no |\n"
        % (
            sum(row[4][0] < SHORT * total[0] for row in rows),
            sum(row[1] for row in rows),
            sum(row[2] for row in rows) / 1e12,
            sum(row[3] for row in rows) / 1e9,
            "".join(" %.2f |" % (1e3 * seconds) for seconds in total),
        )
    )
    for device, seconds in zip(DEVICES, total):
        print("- %s: at most %.0f %s/s" % (device, samples[0] / seconds, samples[1]))
    print()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trireme", help="the program of any preset")
    parser.add_argument(
        "--by", choices=["op", "call"], default="op", help="one row an op, or one for each size"
    )
    parser.add_argument("--only", default="", help="the steps whose title has this word")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="changes the decks"
    )
    arguments = parser.parse_args()
    for title, (deck, batch, form, unit) in STEPS.items():
        if arguments.only not in title:
            continue
        ops = count(arguments.trireme, deck, batch, form, arguments.set)
        samples = batch * (1024 if unit == "tokens" else 1)
        print_table(title, rows_of(ops, arguments.by), (samples, unit))
    return 0


if __name__ == "__main__":
    sys.exit(main())
