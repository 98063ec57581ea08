# SPDX-License-Identifier: Apache-2.0
"""Compares the loss and the gradient of every tensor, after one step, on a GPU and on the CPU.

The networks take the paths that the losses of parity.py do not: ResNet-50 with the stem of ImageNet
on color images, and a GPT without dropout in heads of 64, whose attention is cuDNN's.

A step of plain SGD subtracts the gradient times the rate from the weights. So the gradient is the
difference of two exported checkpoints over the rate: one after a step with a large rate, against
which the rounding of the weights is small, and one after a step with a rate near 0.

The tolerance is measured. The distance of two gradients of a tensor is |a - b| / |b| (Euclidean
norms). A second run on the CPU adds in another order (ONEDNN_MAX_CPU_ISA), a third one computes in
bfloat16. The GPU in float32 may have 20 times the distance of the second run, the GPU in bfloat16
three times the distance of the third one, both plus a few roundings. All run on this machine.

In bfloat16 the GPU runs twice: with the fused operations of its libraries, and without them
(debug.fusions = false). If only the first run differs, one of them is wrong. Differences are listed
block by block in the order of backward, so the first line names the block where they begin.
"""

import json
import math
import os
import re
import shutil

import parity
import runs
import variants

DECK = """stop = "1 step"
seed = 5
[checkpoint]
best = "none"
[monitor]
every = "1 step"
tensorboard = false
[optimizer]
kind = "sgd"
momentum = 0.0
weight_decay = 0.0
[schedule]
kind = "constant"
"""
MODELS = {
    "resnet50": """[model]
kind = "resnet"
depth = 50
stem = "imagenet"
[data]
train = "%s/color"
workers = 1
[batch]
global = 16
micro = 16
""",
    "gpt": """[model]
kind = "gpt"
layers = 2
heads = 2
width = 128
context = 128
[data]
train = "%s/text"
workers = 1
[batch]
global = 8
micro = 8
""",
}
# Name and settings of the runs on the GPU.
BFLOAT16 = "precision.compute=bfloat16"
FUSED, PLAIN = "bfloat16", "bfloat16, without fusions"
RUNS = {
    "resnet50": {"float32": (), FUSED: (BFLOAT16,), PLAIN: (BFLOAT16, "debug.fusions=false")},
    "gpt": {
        "float32": (),
        FUSED: (BFLOAT16,),
        PLAIN: (BFLOAT16, "debug.fusions=false"),
        "bfloat16, deterministic": (BFLOAT16, "run.deterministic=true"),
    },
}
OTHER_SUMS = {"ONEDNN_MAX_CPU_ISA": "SSE41"}
FACTOR = {"float32": 20, "bfloat16": 3}
FLOOR = {"float32": 1e-5, "bfloat16": 0.02}
RATE = 1024.0
FLOOR_OF_LOSS = {"float32": 4e-6, "bfloat16": 4e-3}


def read_weights(path):
    """Returns the bytes of every float32 weight of a safetensors file, by name."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        data = file.read()
    weights = {}
    for name, entry in header.items():
        if name == "__metadata__" or "running_" in name or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        weights[name] = data[begin:end]
    return weights


def block_of(name):
    """Returns the place of a tensor's block in forward, as a key to sort by.

    An embedding that is also the output layer gets the last part of its gradient as an embedding.
    """
    last = name.startswith(("fc.", "ln_f."))
    first = not last and not name.startswith(("layer", "h."))
    numbers = [int(number) for number in re.findall(r"\d+", name)]
    depth = {"l": 2, "h": 1}.get(name[0], 0)  # layer1.0.conv1.weight, h.3.attn.c_attn.weight
    return (0,) if first else (2,) if last else (1, *numbers[:depth])


def distance(a, b, start):
    """Returns |a - b| and |start - b| of three tensors, given as float32 bytes."""
    try:
        import numpy

        x, y, z = (
            numpy.frombuffer(data, numpy.float32).astype(numpy.float64) for data in (a, b, start)
        )
        return float(numpy.linalg.norm(x - y)), float(numpy.linalg.norm(z - y))
    except ImportError:
        pass
    try:
        import torch
    except ImportError as missing:
        raise runs.Failed("gradients are compared with numpy or PyTorch: %s" % missing) from None
    x, y, z = (
        torch.frombuffer(bytearray(data), dtype=torch.float32).double() for data in (a, b, start)
    )
    return (x - y).norm().item(), (z - y).norm().item()


class Step:
    """The result of one step: the loss, and the weights after it by name."""

    def __init__(self, section, model, name, device, sets=(), environment=(), rate=RATE):
        rows = section.train(
            name,
            DECK + "rate = %g\n" % rate + MODELS[model] % section.folder,
            device,
            sets=sets,
            environment=environment,
        )
        self.loss = runs.losses(rows)[0]
        run = section.run_folder(name)
        checkpoint = os.path.join(run, "checkpoints", "step_000000001.h5")
        words = ["export", checkpoint, "--out", run + ".safetensors", "--overwrite"]
        section.call(name + " export", [section.trireme, *words])
        self.weights = read_weights(run + ".safetensors")
        shutil.rmtree(run)
        os.remove(run + ".safetensors")


def compare(start, reference, other, found, precision):
    """Returns the largest share of the tolerance that `found` takes, and a line for the loss and
    each tensor outside of it, in the order of backward.

    `start`: the weights before the step. `reference` and `other`: steps whose distance gives the
    tolerance.
    """
    bound = FACTOR[precision] * abs(other.loss - reference.loss) + FLOOR_OF_LOSS[precision] * abs(
        reference.loss
    )
    share, wrong = abs(found.loss - reference.loss) / bound, []
    if not share <= 1:
        wrong.append("the loss is %.8g, the CPU's %.8g" % (found.loss, reference.loss))
    if set(found.weights) != set(reference.weights):
        raise runs.Failed("the checkpoints hold other tensors")
    for name in sorted(reference.weights, key=block_of, reverse=True):
        expected = reference.weights[name]
        apart, size = distance(found.weights[name], expected, start[name])
        measured, _ = distance(other.weights[name], expected, start[name])
        tolerance = FACTOR[precision] * measured + FLOOR[precision] * size
        if not math.isfinite(apart) or apart > tolerance:
            wrong.append(
                "%s: the gradient differs from the CPU's by %.2g of its norm, %.2g is allowed"
                % (name, apart / max(size, 1e-30), tolerance / max(size, 1e-30))
            )
        share = max(share, apart / max(tolerance, 1e-30))
    return share, wrong


def count_different(one, two):
    """Returns the number of tensors whose bits differ."""
    return sum(one.weights[name] != data for name, data in two.weights.items())


def explain(model, variant, failures):
    """Returns a line if only the fused run of a model is wrong.

    `failures`: lines by model and run.
    """
    fused, plain = ((model, variants.label(name, variant)) for name in (FUSED, PLAIN))
    if failures.get(fused) and failures.get(plain) == []:
        return (
            "%s: a fused operation, or a 1x1 convolution as a product, is wrong: without fusions "
            "all agrees" % variants.label(model, variant)
        )
    return None


class Model:
    """The steps on the CPU that a model's steps on the device are compared with."""

    def __init__(self, section, model):
        self.start = Step(section, model, model + "-start", "cpu", rate=1e-30).weights
        self.reference = Step(section, model, model + "-cpu", "cpu")
        self.others = {
            "float32": Step(section, model, model + "-other", "cpu", environment=OTHER_SUMS),
            "bfloat16": Step(section, model, model + "-bfloat16", "cpu", [BFLOAT16]),
        }


def forms_of(model, device):
    """Yields variant, run and settings of each comparison of a model, in the order of the runs."""
    for variant, more in variants.of(model, device):
        for name, sets in RUNS[model].items():
            if device != "cpu" or name != PLAIN:  # the CPU has no fused operations
                yield variant, name, [*sets, *more]


def run(section, device):
    """Compares all runs of MODELS on `device` with the CPU, each by itself."""
    runs.make_color_images(section.trireme, section.folder + "/color", 32, 64, 10)
    words = ["shard", "text", parity.TEXT, "--out", section.folder + "/text", "--overwrite"]
    section.call("text", [section.trireme, *words])
    section.result["gradients"] = compared = []

    def compare_one(model, cpu, name, precision, sets):
        found = Step(section, model, "%s %s" % (model, name), device, sets)
        share, wrong = compare(cpu.start, cpu.reference, cpu.others[precision], found, precision)
        compared.append(
            {
                "model": model,
                "run": name,
                "tensors": len(cpu.start),
                "tensors_with_tolerance": count_different(cpu.others[precision], cpu.reference),
                "loss": found.loss,
                "loss_on_cpu": cpu.reference.loss,
                "largest_share_of_bound": share,
            }
        )
        failures[model, name] = wrong
        if wrong:
            lines = wrong[:20] + ["... %d in all" % len(wrong)] * (len(wrong) > 20)
            raise runs.Failed("\n".join(lines))

    failures = {}  # lines by model and run
    for model in RUNS:
        forms = [
            (variants.label(name, variant), name.split(",")[0], sets)
            for variant, name, sets in forms_of(model, device)
        ]
        needed = any(section.wanted("%s %s" % (model, form[0])) for form in forms)
        cpu = section.attempt(model + " on the CPU", lambda: Model(section, model), needed)
        if cpu is None:
            continue
        for form in forms:
            name = "%s %s" % (model, form[0])
            section.attempt(name, lambda: compare_one(model, cpu, *form))
        for variant, _ in variants.of(model, device):
            if blamed := explain(model, variant, failures):
                section.result.setdefault("notes", []).append(blamed)
    section.result["summary"] = "%d steps, largest difference %.2g of the tolerance" % (
        len(compared),
        max((step["largest_share_of_bound"] for step in compared), default=float("nan")),
    )
