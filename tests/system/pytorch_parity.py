#!/usr/bin/env python3
"""Trireme's first steps against PyTorch's, from the same weights on the same data: the losses agree to 2e-6.

  pytorch_parity.py --trireme build/release/bin/trireme          against the kept numbers (needs no PyTorch)
  pytorch_parity.py --trireme ... --torch                        against PyTorch run now
  pytorch_parity.py --make-reference tests/system/reference/parity.json   runs PyTorch in float32 and float64 and keeps the float64 losses

Weights and data come from Python's own generator (random.random, whose sequence is guaranteed from version to version), so every side
makes the same bits by itself. Exit status: 0 agrees, 1 differs, 77 what it needs is missing.
"""

import argparse
import array
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import zlib

SKIPPED = 77
GLOBAL, MICRO = 32, 16
SAMPLES, SIDE, CLASSES = 10 * GLOBAL, 28, 10
MEAN, STD = 0.5, 0.25
# PyTorch's float32 run is within 2e-7 of its float64 run over these steps (--make-reference prints it and refuses more than a fifth of the
# tolerance), Trireme's too; a forgotten weight decay shows with 4e-6.
TOLERANCE = 2e-6

MODELS = {"resnet8": {"depth": 8, "width": 16}, "resnet18": {"depth": 18, "width": 64}}
# Batch norm over small batches multiplies a rounding error by up to a hundred a step in the deep network: fewer and smaller steps there.
STEPS = {"resnet8": 10, "resnet18": 4}
RATE_FACTOR = {"resnet8": 1.0, "resnet18": 0.1}
OPTIMIZERS = {
    "sgd": {"rate": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
    "lars": {"rate": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "trust_coefficient": 0.001},
}


def rule_of(model, optimizer):
    return {**OPTIMIZERS[optimizer], "rate": OPTIMIZERS[optimizer]["rate"] * RATE_FACTOR[model]}


# --- what both sides start from -------------------------------------------------------------------------------------------------------------

def tensor_shapes(depth, width):
    """Names and shapes of the network's tensors, torchvision's order (docs/contract.md, sections 6 and 7)."""
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


def initial_tensor(name, shape):
    """float32 values, uniform around a centre, by the tensor's name."""
    if len(shape) == 4:
        centre, half_width = 0.0, math.sqrt(3 * 2 / (shape[0] * shape[2] * shape[3]))  # the deviation of Kaiming's normal, fan out
    elif name == "fc.weight":
        centre, half_width = 0.0, 1 / math.sqrt(shape[1])
    else:  # off the usual 0 and 1, so that a norm's parameters and statistics that are mixed up or not read show
        centre = 1.0 if name.endswith((".weight", ".running_var")) else 0.0
        half_width = 0.2
        if name.endswith("bn2.weight"):  # small residual branches: a better conditioned start
            centre, half_width = 0.3, 0.1
    draw = random.Random(zlib.crc32(name.encode())).random
    return array.array("f", [centre + half_width * (2 * draw() - 1) for _ in range(math.prod(shape))])


def dataset():
    """Images (bytes, samples x 28 x 28) and labels: noise on one pattern a class, so that there is something to learn."""
    draw = random.Random(20260301).random
    patterns = [[draw() for _ in range(SIDE * SIDE)] for _ in range(CLASSES)]
    labels = [int(CLASSES * draw()) for _ in range(SAMPLES)]
    images = bytearray()
    for label in labels:
        images += bytes(int(256 * (0.3 * value + 0.7 * draw())) for value in patterns[label])
    return bytes(images), labels


# --- Trireme's side -------------------------------------------------------------------------------------------------------------------------

def write_safetensors(path, tensors):
    """tensors: {name: (shape, array of float32)}. The format: length of the header, header in JSON, the bytes."""
    header, offset = {}, 0
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + 4 * len(values)]}
        offset += 4 * len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            file.write(values.tobytes())


def write_idx(folder):
    images, labels = dataset()
    with open(f"{folder}/images", "wb") as file:
        file.write(struct.pack(">IIII", 0x803, SAMPLES, SIDE, SIDE) + images)
    with open(f"{folder}/labels", "wb") as file:
        file.write(struct.pack(">II", 0x801, SAMPLES) + bytes(labels))


def deck(folder, model, optimizer):
    shape, rule, steps = MODELS[model], rule_of(model, optimizer), STEPS[model]
    keys = "\n".join(f"{key} = {value}" for key, value in rule.items() if key != "rate")
    return f"""
[run]
name = "{model}-{optimizer}"
folder = "{folder}/runs/{model}-{optimizer}"
device = "cpu"
stop = "{steps} steps"
[model]
kind = "resnet"
depth = {shape["depth"]}
width = {shape["width"]}
stem = "small"
[data]
train = "{folder}/data"
validation = "{folder}/data"
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
every = "{steps} steps"
[checkpoint]
every = "{steps} steps"
[monitor]
every = "1 step"
tensorboard = false
"""


def run_program(trireme, *arguments):
    result = subprocess.run([trireme, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        print(f"{trireme} {' '.join(arguments)}: exit status {result.returncode}\n{result.stdout}")
        sys.exit(1)


def train_trireme(trireme, folder, model, optimizer):
    """{"losses": by step, "evaluation": loss of the evaluation after the last}."""
    name = f"{folder}/{model}-{optimizer}"
    shapes = tensor_shapes(**MODELS[model])
    write_safetensors(f"{name}.safetensors", {tensor: (shape, initial_tensor(tensor, shape)) for tensor, shape in shapes.items()})
    with open(f"{name}.toml", "w") as file:
        file.write(deck(folder, model, optimizer))
    run_program(trireme, "import", f"{name}.safetensors", f"{name}.toml", "--out", f"{name}.h5")
    run_program(trireme, "train", f"{name}.toml", "--restart", f"{name}.h5")
    losses, evaluation = {}, None
    with open(f"{folder}/runs/{model}-{optimizer}/metrics.jsonl") as file:
        for row in map(json.loads, file):
            if row["kind"] == "train":
                losses[row["step"]] = row["loss"]
            elif row["kind"] == "evaluate" and row["step"] == STEPS[model] and row["split"] == "validation":
                evaluation = row["loss"]
    return {"losses": [losses.get(step) for step in range(1, STEPS[model] + 1)], "evaluation": evaluation}


# --- PyTorch's side -------------------------------------------------------------------------------------------------------------------------

def train_torch(model, optimizer, dtype_name="float32"):
    """The same in plain PyTorch, the rules written out as docs/contract.md (section 7) has them."""
    import torch
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
    from torch_resnet import ResNet

    dtype = getattr(torch, dtype_name)
    rule, steps = rule_of(model, optimizer), STEPS[model]
    network = ResNet(**MODELS[model], stem="small", channels=1, classes=CLASSES).to(dtype)
    shapes = tensor_shapes(**MODELS[model])
    state = {name: value for name, value in network.state_dict().items() if not name.endswith("num_batches_tracked")}
    assert {name: tuple(value.shape) for name, value in state.items()} == shapes
    for name, value in state.items():
        value.copy_(torch.frombuffer(bytearray(initial_tensor(name, shapes[name]).tobytes()), dtype=torch.float32).reshape(value.shape))

    images, labels = dataset()
    x = (torch.frombuffer(bytearray(images), dtype=torch.uint8).reshape(SAMPLES, 1, SIDE, SIDE).to(dtype) / 255 - MEAN) / STD
    y = torch.tensor(labels)
    norms = [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    running = [(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms]
    slots = {name: torch.zeros_like(value) for name, value in network.named_parameters()}

    losses = []
    for step in range(steps):
        network.zero_grad()
        loss_sum = 0.0
        statistics = [[torch.zeros_like(mean), torch.zeros_like(variance)] for mean, variance in running]
        for begin in range(step * GLOBAL, (step + 1) * GLOBAL, MICRO):
            for norm in norms:
                norm.momentum = 1.0  # leaves this micro-batch's own statistics (variance unbiased) in the running ones
            loss = torch.nn.functional.cross_entropy(network(x[begin:begin + MICRO]), y[begin:begin + MICRO], reduction="sum") / GLOBAL
            loss.backward()
            loss_sum += loss.item()
            for norm, sums in zip(norms, statistics):
                sums[0] += norm.running_mean * (MICRO / GLOBAL)
                sums[1] += norm.running_var * (MICRO / GLOBAL)
        losses.append(loss_sum)
        running = [(0.9 * mean + 0.1 * sums[0], 0.9 * variance + 0.1 * sums[1]) for (mean, variance), sums in zip(running, statistics)]
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
                    local = rule["trust_coefficient"] * weight.norm() / (gradient.norm() + decay * weight.norm())
                slot.mul_(rule["momentum"]).add_(rule["rate"] * local * (gradient + decay * weight))
                weight -= slot

    for norm, (mean, variance) in zip(norms, running):
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
    network.eval()
    with torch.no_grad():
        evaluation = sum(torch.nn.functional.cross_entropy(network(x[i:i + MICRO]), y[i:i + MICRO], reduction="sum").item() for i in range(0, SAMPLES, MICRO))
    return {"losses": losses, "evaluation": evaluation / SAMPLES}


# --- the comparison -------------------------------------------------------------------------------------------------------------------------

def largest_difference(a, b):
    pairs = list(zip(a["losses"] + [a["evaluation"]], b["losses"] + [b["evaluation"]]))
    return max(abs(p - q) / abs(q) if p is not None else math.inf for p, q in pairs)


def make_reference(path, cases):
    kept = {}
    if os.path.exists(path):
        with open(path) as file:
            kept = json.load(file)
    for model, optimizer in cases:
        single, double = (train_torch(model, optimizer, dtype) for dtype in ("float32", "float64"))
        difference = largest_difference(single, double)
        print(f"{model} {optimizer}: PyTorch float32 against float64: {difference:.1e} relative; loss {double['losses'][0]:.6f} -> {double['losses'][-1]:.6f}", flush=True)
        if difference > TOLERANCE / 5:
            print("float32 itself is too far off for this tolerance: fewer steps or a smaller rate")
            sys.exit(1)
        kept[f"{model}-{optimizer}"] = double
    with open(path, "w") as file:
        json.dump(kept, file, indent=1)
        file.write("\n")


def have_torch():
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trireme", default=os.environ.get("TRIREME", "build/release/bin/trireme"))
    parser.add_argument("--torch", action="store_true", help="compare with PyTorch run now")
    parser.add_argument("--reference", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference", "parity.json"))
    parser.add_argument("--make-reference", metavar="FILE")
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, action="append", help="default: all")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    arguments = parser.parse_args()
    cases = [(model, optimizer) for model in arguments.model or MODELS for optimizer in arguments.optimizer or OPTIMIZERS]

    if (arguments.torch or arguments.make_reference) and not have_torch():
        print("skipped: PyTorch is not installed for this Python (python3 -m venv V && V/bin/pip install torch numpy)")
        return SKIPPED
    if arguments.make_reference:
        make_reference(arguments.make_reference, cases)
        return 0
    if not os.access(arguments.trireme, os.X_OK):
        print(f"skipped: {arguments.trireme} is not built")
        return SKIPPED
    kept = {}
    if not arguments.torch:
        with open(arguments.reference) as file:
            kept = json.load(file)

    failed = False
    with tempfile.TemporaryDirectory() as folder:
        write_idx(folder)
        run_program(arguments.trireme, "shard", "idx", f"{folder}/images", f"{folder}/labels", "--out", f"{folder}/data")
        for model, optimizer in cases:
            if not arguments.torch and f"{model}-{optimizer}" not in kept:
                print(f"{model} {optimizer}: {arguments.reference} keeps no numbers of it (--make-reference makes them)")
                failed = True
                continue
            expected = train_torch(model, optimizer) if arguments.torch else kept[f"{model}-{optimizer}"]
            found = train_trireme(arguments.trireme, folder, model, optimizer)
            difference = largest_difference(found, expected)
            agrees = difference <= arguments.tolerance
            failed = failed or not agrees
            print(f"{model} {optimizer}: largest relative difference {difference:.1e} (allowed {arguments.tolerance:.0e}): {'agrees' if agrees else 'DIFFERS'}")
            if not agrees:
                for step, (a, b) in enumerate(zip(found["losses"], expected["losses"]), 1):
                    print(f"  step {step}: trireme {a} pytorch {b}")
                print(f"  evaluation: trireme {found['evaluation']} pytorch {expected['evaluation']}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
