#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Trireme's first ten steps with PyTorch's, from the same weights on the same data.

docs/correctness.md has the results and the reasons.

  pytorch_parity.py --trireme build/release/bin/trireme
      against the stored numbers (needs no PyTorch)
  pytorch_parity.py --trireme ... --torch
      against PyTorch, started now in float32
  pytorch_parity.py --make-reference tests/system/reference/parity.json
      runs PyTorch in float32 and float64 and stores the float64 losses

Decks with a wrong rule are also compared with ResNet-8's numbers. Each must differ by more than the
tighter bound that the right deck keeps.

Weights and data come from Python's own generator (random.random, whose sequence is guaranteed in
all versions), so every side makes the same numbers. Exit status: 0 equal, 1 different, 77 a package
is missing.
"""

import argparse
import array
import functools
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "scripts"))
from safetensors_file import write_safetensors  # noqa: E402

SKIPPED = 77
STEPS, GLOBAL, MICRO = 10, 128, 64
SIDE, CLASSES = 14, 10
TRAINED, EVALUATED = STEPS * GLOBAL, 256
MEAN, STD = 0.5, 0.25
# --make-reference refuses cases in which float32 differs from float64 by more than three quarters
# of this.
TOLERANCE = 1e-4
# ResNet-8 with lars keeps this bound (float32: 1e-7). Wrong rules change a loss by at least 3e-5.
TIGHT = 1e-5
WRONG_RULES = [
    ("resnet8", "lars", {"weight_decay": 0.0}),
    ("resnet8", "lars", {"momentum": 0.89}),
    ("resnet8", "sgd", {"momentum": 0.8}),
]

MODELS = {"resnet8": {"depth": 8, "width": 16}, "resnet18": {"depth": 18, "width": 64}}
# With gammas of 1 everywhere, ten steps on ResNet-18 multiply rounding errors: with sgd at 0.01
# about tenfold in each; with lars to 5e-5 or 1e-4, depending on oneDNN's version. Blocks that start
# as the identity, the usual zero_init_residual, do not. docs/correctness.md lists the conditions.
ZERO_INIT_RESIDUAL = {"resnet18"}
OPTIMIZERS = {
    "sgd": {"rate": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
    "lars": {"rate": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "trust_coefficient": 0.001},
}


# --- the initial state of both sides ------------------------------------------------------------


def tensor_shapes(depth, width):
    """Returns names and shapes of the tensors in torchvision's order
    (docs/reference/tensor_names.md)."""
    shapes = {}

    def convolution(name, outputs, inputs, kernel):
        shapes[f"{name}.weight"] = (outputs, inputs, kernel, kernel)

    def norm(name, channels):
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (channels,)

    counts = {18: [2, 2, 2, 2]}.get(depth, [(depth - 2) // 6] * 3)
    convolution("conv1", width, 1, 3)
    norm("bn1", width)
    inputs = width
    for stage, count in enumerate(counts):
        outputs = width << stage
        for index in range(count):
            block = f"layer{stage + 1}.{index}"
            convolution(f"{block}.conv1", outputs, inputs, 3)
            norm(f"{block}.bn1", outputs)
            convolution(f"{block}.conv2", outputs, outputs, 3)
            norm(f"{block}.bn2", outputs)
            if inputs != outputs:
                convolution(f"{block}.downsample.0", outputs, inputs, 1)
                norm(f"{block}.downsample.1", outputs)
            inputs = outputs
    shapes["fc.weight"] = (CLASSES, inputs)
    shapes["fc.bias"] = (CLASSES,)
    return shapes


@functools.cache
def initial_tensor(name, shape, zeros=False):
    """Returns float32 values by docs/reference/numerics.md.

    Kaiming's normal distribution by fan out, uniform for the linear layer, 0 and 1 for norms.
    """
    count, draw = math.prod(shape), random.Random(zlib.crc32(name.encode())).random
    if len(shape) == 4:
        deviation = math.sqrt(2 / (shape[0] * shape[2] * shape[3]))
        values = []
        while len(values) < count:  # pairs by Box and Muller
            radius, angle = deviation * math.sqrt(-2 * math.log(1 - draw())), 2 * math.pi * draw()
            values += (radius * math.cos(angle), radius * math.sin(angle))
        return array.array("f", values[:count])
    if name.startswith("fc."):
        bound = 1 / math.sqrt(shape[-1]) if len(shape) == 2 else 0.05
        return array.array("f", [bound * (2 * draw() - 1) for _ in range(count)])
    one = name.endswith((".weight", ".running_var")) and not zeros
    return array.array("f", [float(one)] * count)


def initial_tensors(model):
    """Returns {name: (shape, float32 values)}."""
    identity = model in ZERO_INIT_RESIDUAL
    return {
        name: (shape, initial_tensor(name, shape, identity and name.endswith("bn2.weight")))
        for name, shape in tensor_shapes(**MODELS[model]).items()
    }


def dataset():
    """Returns images (bytes, samples x 14 x 14) and labels.

    An image is noise on the pattern of its class, which can be learned. The last EVALUATED samples
    are for evaluation.
    """
    draw = random.Random(20260301).random
    patterns = [[draw() for _ in range(SIDE * SIDE)] for _ in range(CLASSES)]
    labels = [int(CLASSES * draw()) for _ in range(TRAINED + EVALUATED)]
    images = bytearray()
    for label in labels:
        images += bytes(int(256 * (0.3 * value + 0.7 * draw())) for value in patterns[label])
    return bytes(images), labels


# --- Trireme's side -----------------------------------------------------------------------------


def write_idx(folder):
    images, labels = dataset()
    with open(f"{folder}/images", "wb") as file:
        file.write(struct.pack(">IIII", 0x803, TRAINED + EVALUATED, SIDE, SIDE) + images)
    with open(f"{folder}/labels", "wb") as file:
        file.write(struct.pack(">II", 0x801, TRAINED + EVALUATED) + bytes(labels))


def deck(folder, name, model, optimizer, changes):
    shape, rule = MODELS[model], {**OPTIMIZERS[optimizer], **changes}
    keys = "\n".join(f"{key} = {value}" for key, value in rule.items() if key != "rate")
    return f"""
[run]
name = "{name}"
folder = "{folder}/runs/{name}"
device = "cpu"
stop = "{STEPS} steps"
[model]
kind = "resnet"
depth = {shape["depth"]}
width = {shape["width"]}
stem = "small"
[data]
train = "{folder}/train"
validation = "{folder}/validation"
shuffle = "none"
[data.augment]
normalize = {{ mean = [{MEAN}], std = [{STD}] }}
[batch]
global = {GLOBAL}
micro = {MICRO}
[optimizer]
kind = "{optimizer}"
{keys}
[schedule]
kind = "constant"
rate = {rule["rate"]}
[evaluate]
every = "{STEPS} steps"
[checkpoint]
every = "{STEPS} steps"
[monitor]
every = "1 step"
tensorboard = false
"""


def run_program(trireme, *arguments):
    result = subprocess.run(
        [trireme, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if result.returncode != 0:
        print(f"{trireme} {' '.join(arguments)}: exit status {result.returncode}\n{result.stdout}")
        sys.exit(1)


def make_shards(trireme, folder):
    write_idx(folder)
    for part, samples in (
        ("train", f"0:{TRAINED}"),
        ("validation", f"{TRAINED}:{TRAINED + EVALUATED}"),
    ):
        run_program(
            trireme,
            "shard",
            "idx",
            f"{folder}/images",
            f"{folder}/labels",
            "--range",
            samples,
            "--out",
            f"{folder}/{part}",
        )


def train_trireme(trireme, folder, model, optimizer, changes={}):
    """Returns {"losses": by step, "evaluation": loss of the evaluation after the last step}.

    `changes`: keys of the deck that make a rule wrong.
    """
    name = "-".join([model, optimizer, *changes])
    write_safetensors(f"{folder}/{name}.safetensors", initial_tensors(model))
    with open(f"{folder}/{name}.toml", "w") as file:
        file.write(deck(folder, name, model, optimizer, changes))
    run_program(
        trireme,
        "import",
        f"{folder}/{name}.safetensors",
        f"{folder}/{name}.toml",
        "--out",
        f"{folder}/{name}.h5",
    )
    run_program(trireme, "train", f"{folder}/{name}.toml", "--restart", f"{folder}/{name}.h5")
    losses, evaluation = {}, None
    with open(f"{folder}/runs/{name}/metrics.jsonl") as file:
        for row in map(json.loads, file):
            if row["kind"] == "train":
                losses[row["step"]] = row["loss"]
            elif (
                row["kind"] == "evaluate" and row["step"] == STEPS and row["split"] == "validation"
            ):
                evaluation = row["loss"]
    return {"losses": [losses.get(step) for step in range(1, STEPS + 1)], "evaluation": evaluation}


# --- PyTorch's side -----------------------------------------------------------------------------


def train_torch(model, optimizer, dtype_name="float32"):
    """Trains the same network in plain PyTorch, with the rules of docs/reference/numerics.md
    written out."""
    import torch

    from compare.torch_resnet import ResNet

    dtype = getattr(torch, dtype_name)
    rule, initial = OPTIMIZERS[optimizer], initial_tensors(model)
    network = ResNet(**MODELS[model], stem="small", channels=1, classes=CLASSES).to(dtype)
    state = {
        name: value
        for name, value in network.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        name: shape for name, (shape, _) in initial.items()
    }
    for name, value in state.items():
        value.copy_(
            torch.frombuffer(bytearray(initial[name][1].tobytes()), dtype=torch.float32).reshape(
                value.shape
            )
        )

    images, labels = dataset()
    x = (
        torch.frombuffer(bytearray(images), dtype=torch.uint8).reshape(-1, 1, SIDE, SIDE).to(dtype)
        / 255
        - MEAN
    ) / STD
    y = torch.tensor(labels)
    norms = [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    running = [(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms]
    slots = {name: torch.zeros_like(value) for name, value in network.named_parameters()}

    losses = []
    for step in range(STEPS):
        network.zero_grad()
        loss_sum = 0.0
        statistics = [
            [torch.zeros_like(mean), torch.zeros_like(variance)] for mean, variance in running
        ]
        for begin in range(step * GLOBAL, (step + 1) * GLOBAL, MICRO):
            for norm in norms:
                # The running statistics become those of this micro-batch (unbiased variance).
                norm.momentum = 1.0
            loss = (
                torch.nn.functional.cross_entropy(
                    network(x[begin : begin + MICRO]), y[begin : begin + MICRO], reduction="sum"
                )
                / GLOBAL
            )
            loss.backward()
            loss_sum += loss.item()
            for norm, sums in zip(norms, statistics):
                sums[0] += norm.running_mean * (MICRO / GLOBAL)
                sums[1] += norm.running_var * (MICRO / GLOBAL)
        losses.append(loss_sum)
        running = [
            (0.9 * mean + 0.1 * sums[0], 0.9 * variance + 0.1 * sums[1])
            for (mean, variance), sums in zip(running, statistics)
        ]
        with torch.no_grad():
            for name, weight in network.named_parameters():
                gradient, slot = weight.grad, slots[name]
                decay = rule["weight_decay"] if weight.dim() > 1 else 0.0
                if optimizer == "sgd":
                    slot.mul_(rule["momentum"]).add_(gradient + decay * weight)
                    weight -= rule["rate"] * slot
                    continue
                local = 1.0
                if weight.dim() > 1 and weight.norm() > 0 and gradient.norm() > 0:
                    local = (
                        rule["trust_coefficient"]
                        * weight.norm()
                        / (gradient.norm() + decay * weight.norm())
                    )
                slot.mul_(rule["momentum"]).add_(rule["rate"] * local * (gradient + decay * weight))
                weight -= slot

    for norm, (mean, variance) in zip(norms, running):
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
    network.eval()
    with torch.no_grad():
        evaluation = sum(
            torch.nn.functional.cross_entropy(
                network(x[i : i + MICRO]), y[i : i + MICRO], reduction="sum"
            ).item()
            for i in range(TRAINED, TRAINED + EVALUATED, MICRO)
        )
    return {"losses": losses, "evaluation": evaluation / EVALUATED}


# --- the comparison -----------------------------------------------------------------------------


def largest_difference(a, b):
    pairs = list(zip(a["losses"] + [a["evaluation"]], b["losses"] + [b["evaluation"]]))
    return max(abs(p - q) / abs(q) if p is not None else math.inf for p, q in pairs)


def make_reference(path, cases, train_torch, largest_difference, limit):
    """Runs PyTorch in two precisions and stores the float64 numbers of the cases. Ends the script
    if the precisions differ by more than `limit`."""
    kept = {}
    if os.path.exists(path):
        with open(path) as file:
            kept = json.load(file)
    for case in cases:
        single, double = (train_torch(*case, dtype) for dtype in ("float32", "float64"))
        difference = largest_difference(single, double)
        print(
            f"{' '.join(case)}: PyTorch float32 against float64: {difference:.1e} relative; "
            f"loss {double['losses'][0]:.6f} -> {double['losses'][-1]:.6f}",
            flush=True,
        )
        if difference > limit:
            print("float32 itself is too far off for this tolerance: fewer steps or a smaller rate")
            sys.exit(1)
        kept["-".join(case)] = double
        with open(path, "w") as file:
            json.dump(kept, file, indent=1)
            file.write("\n")


def have_torch():
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def make_parser(description, reference):
    """Returns a parser of the options of both scripts. `reference`: the file of stored numbers."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trireme", default=os.environ.get("TRIREME", "build/release/bin/trireme"))
    parser.add_argument("--torch", action="store_true", help="compare with PyTorch run now")
    parser.add_argument("--reference", default=os.path.join(HERE, "reference", reference))
    parser.add_argument("--make-reference", metavar="FILE")
    return parser


def run(arguments, make_reference, compare):
    """Makes the reference, or compares with it in a temporary folder. Returns the exit status.

    `compare(kept, folder)` returns whether all cases agree; `kept` is empty with --torch.
    """
    if (arguments.torch or arguments.make_reference) and not have_torch():
        print(
            "skipped: PyTorch is not installed for this Python (python3 -m venv V && V/bin/pip "
            "install torch numpy)"
        )
        return SKIPPED
    if arguments.make_reference:
        make_reference(arguments.make_reference)
        return 0
    if not os.access(arguments.trireme, os.X_OK):
        print(f"skipped: {arguments.trireme} is not built")
        return SKIPPED
    kept = {}
    if not arguments.torch:
        with open(arguments.reference) as file:
            kept = json.load(file)
    with tempfile.TemporaryDirectory() as folder:
        return 0 if compare(kept, folder) else 1


def report(case, difference, tolerance):
    """Prints whether a case agrees, and returns it."""
    agrees = difference <= tolerance
    print(
        f"{' '.join(case)}: largest relative difference {difference:.1e} (allowed "
        f"{tolerance:.0e}): {'agrees' if agrees else 'DIFFERS'}",
        flush=True,
    )
    return agrees


def compare(arguments, cases, kept, folder):
    """Compares the cases, and ResNet-8's numbers with those of wrong rules. Returns whether the
    first agree and the second do not."""
    failed = False
    make_shards(arguments.trireme, folder)
    for model, optimizer in cases:
        if not arguments.torch and f"{model}-{optimizer}" not in kept:
            print(
                f"{model} {optimizer}: {arguments.reference} keeps no numbers of it "
                "(--make-reference makes them)"
            )
            failed = True
            continue
        expected = (
            train_torch(model, optimizer) if arguments.torch else kept[f"{model}-{optimizer}"]
        )
        found = train_trireme(arguments.trireme, folder, model, optimizer)
        difference = largest_difference(found, expected)
        tolerance = (
            min(arguments.tolerance, TIGHT)
            if (model, optimizer) == ("resnet8", "lars")
            else arguments.tolerance
        )
        if not report((model, optimizer), difference, tolerance):
            failed = True
            for step, (a, b) in enumerate(zip(found["losses"], expected["losses"]), 1):
                print(f"  step {step}: trireme {a} pytorch {b}")
            print(f"  evaluation: trireme {found['evaluation']} pytorch {expected['evaluation']}")
    for model, optimizer, changes in WRONG_RULES:
        if (model, optimizer) in cases and f"{model}-{optimizer}" in kept:
            difference = largest_difference(
                train_trireme(arguments.trireme, folder, model, optimizer, changes),
                kept[f"{model}-{optimizer}"],
            )
            seen = difference > (TIGHT if optimizer == "lars" else TOLERANCE)
            failed = failed or not seen
            print(
                f"{model} {optimizer} with {changes}: largest relative difference "
                f"{difference:.1e}: {'seen' if seen else 'NOT SEEN'}"
            )
    return not failed


def main():
    parser = make_parser(__doc__, "parity.json")
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, action="append", help="default: all")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    arguments = parser.parse_args()
    cases = [
        (model, optimizer)
        for model in arguments.model or MODELS
        for optimizer in arguments.optimizer or OPTIMIZERS
    ]
    return run(
        arguments,
        lambda path: make_reference(path, cases, train_torch, largest_difference, 0.75 * TOLERANCE),
        lambda kept, folder: compare(arguments, cases, kept, folder),
    )


if __name__ == "__main__":
    sys.exit(main())
