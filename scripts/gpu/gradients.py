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

import parity
import runs

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

    def __init__(
        self, section, model, name, device, sets=(), environment=None, rate=RATE, like=None
    ):
        rows = runs.train(
            section.trireme,
            section.folder,
            name,
            DECK + "rate = %g\n" % rate + MODELS[model] % section.folder,
            device,
            section.left(),
            sets=sets,
            environment=dict(os.environ, **(environment or {})),
            like=like,
        )
        self.loss = runs.losses(rows)[0]
        run = os.path.join(section.folder, name)
        runs.call(
            [
                section.trireme,
                "export",
                os.path.join(run, "checkpoints", "step_000000001.h5"),
                "--out",
                run + ".safetensors",
                "--overwrite",
            ],
            section.left(),
        )
        self.weights = read_weights(run + ".safetensors")


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


def explain(model, failures):
    """Returns the differences of a model's runs, a line each. `failures`: lines by run."""
    lines = ["%s %s: %s" % (model, name, line) for name in failures for line in failures[name]]
    if failures.get(FUSED) and failures.get(PLAIN) == []:
        lines.insert(
            0,
            "%s: a fused operation, or a 1x1 convolution as a product, is wrong: without fusions "
            "all agrees" % model,
        )
    return lines


def run(section, device):
    """Compares all runs of MODELS on `device` with the CPU. Raises Failed with the tensors."""
    runs.make_color_images(section.trireme, section.folder + "/color", 32, 64, 10)
    runs.call(
        [
            section.trireme,
            "shard",
            "text",
            parity.TEXT,
            "--out",
            section.folder + "/text",
            "--overwrite",
        ],
        60,
    )
    compared, failed = [], []
    for model, settings in RUNS.items():
        start = Step(section, model, model + "-start", "cpu", rate=1e-30).weights
        reference = Step(section, model, model + "-cpu", "cpu")
        others = {
            "float32": Step(section, model, model + "-other", "cpu", environment=OTHER_SUMS),
            "bfloat16": Step(
                section, model, model + "-bfloat16", "cpu", ["precision.compute=bfloat16"]
            ),
        }
        failures = {}
        for number, (name, sets) in enumerate(settings.items()):
            if device == "cpu" and name == PLAIN:
                continue  # the CPU has no fused operations
            precision = name.split(",")[0]
            # The run without fusions needs no trials of what the run with them has chosen.
            like = "%s-%d" % (model, list(settings).index(FUSED)) if name == PLAIN else None
            found = Step(section, model, "%s-%d" % (model, number), device, sets, like=like)
            share, wrong = compare(start, reference, others[precision], found, precision)
            compared.append(
                {
                    "model": model,
                    "run": name,
                    "tensors": len(start),
                    "tensors_with_tolerance": count_different(others[precision], reference),
                    "loss": found.loss,
                    "loss_on_cpu": reference.loss,
                    "largest_share_of_bound": share,
                }
            )
            failures[name] = wrong
        failed += explain(model, failures)
    section.result["gradients"] = compared
    section.result["summary"] = "%d steps, largest difference %.2g of the tolerance" % (
        len(compared),
        max(step["largest_share_of_bound"] for step in compared),
    )
    if failed:
        raise runs.Failed(
            "%d of the compared values differ:\n%s" % (len(failed), "\n".join(failed[:20]))
        )
