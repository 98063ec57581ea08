#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Trireme's vision transformers with PyTorch's.

Losses and gradient norms of twenty steps, from the same weights on the same images:

  pytorch_vit_parity.py --trireme build/release/bin/trireme
      against the stored numbers (needs no PyTorch)
  pytorch_vit_parity.py --trireme ... --torch
      against PyTorch, started now in float32
  pytorch_vit_parity.py --make-reference tests/system/reference/vit_parity.json
      runs PyTorch in float32 and float64 and stores the float64 numbers

Weights and images come from Python's own generator, so every side makes the same numbers (as in
pytorch_parity.py). Exit status: 0 equal, 1 different, 77 a package is missing.
"""

import array
import math
import random
import sys
import zlib

import pytorch_gpt_parity
from pytorch_gpt_parity import CLIP, OPTIMIZERS, largest_difference
from pytorch_parity import (
    CLASSES,
    MEAN,
    SIDE,
    STD,
    dataset,
    make_parser,
    make_reference,
    make_shards,
    run,
)

STEPS, GLOBAL, MICRO = 20, 32, 16
LAYERS, HEADS, WIDTH, PATCH, RATIO = 3, 4, 64, 2, 2.5
# --make-reference refuses cases in which float32 differs from float64 by more than half of this.
TOLERANCE = 2e-4
# The start value of LayerScale by the pool: the mean of patches is compared with it.
LAYER_SCALE = {"token": 0, "mean": 0.5}
CASES = [("token", optimizer) for optimizer in OPTIMIZERS] + [("mean", "adamw")]
INNER, PATCHES = int(RATIO * WIDTH), (SIDE // PATCH) ** 2


def tensor_shapes(pool):
    shapes = {"cls_token": (1, 1, WIDTH)} if pool == "token" else {}
    shapes["pos_embed"] = (1, PATCHES + len(shapes), WIDTH)

    def layer(name, outputs, *inputs):
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, *inputs), (outputs,)

    layer("patch_embed.proj", WIDTH, 1, PATCH, PATCH)
    for i in range(LAYERS):
        layer(f"blocks.{i}.norm1", WIDTH)
        layer(f"blocks.{i}.attn.qkv", 3 * WIDTH, WIDTH)
        layer(f"blocks.{i}.attn.proj", WIDTH, WIDTH)
        layer(f"blocks.{i}.norm2", WIDTH)
        layer(f"blocks.{i}.mlp.fc1", INNER, WIDTH)
        layer(f"blocks.{i}.mlp.fc2", WIDTH, INNER)
        if LAYER_SCALE[pool]:
            shapes[f"blocks.{i}.ls1.gamma"] = shapes[f"blocks.{i}.ls2.gamma"] = (WIDTH,)
    layer("norm" if pool == "token" else "fc_norm", WIDTH)
    layer("head", CLASSES, WIDTH)
    return shapes


def initial_tensors(pool):
    """Returns {name: (shape, float32 values)}: uniform, norms near 1, so that every tensor
    contributes."""
    tensors = {}
    for name, shape in tensor_shapes(pool).items():
        draw = random.Random(zlib.crc32(name.encode())).random
        norm = len(shape) == 1 and not name.endswith("bias")
        scale = 0.05 * math.sqrt(3) if len(shape) > 1 else 0.02
        tensors[name] = (
            shape,
            array.array(
                "f", [float(norm) + scale * (2 * draw() - 1) for _ in range(math.prod(shape))]
            ),
        )
    return tensors


def deck(folder, name, pool, optimizer):
    rule = OPTIMIZERS[optimizer]
    keys = "\n".join(f"{key} = {value}" for key, value in rule.items() if key != "rate")
    return f"""
[run]
name = "{name}"
folder = "{folder}/runs/{name}"
device = "cpu"
stop = "{STEPS} steps"
[model]
kind = "vit"
patch = {PATCH}
layers = {LAYERS}
heads = {HEADS}
width = {WIDTH}
mlp_ratio = {RATIO}
pool = "{pool}"
layer_scale = {LAYER_SCALE[pool]}
[data]
train = "{folder}/train"
shuffle = "none"
[data.augment]
normalize = {{ mean = [{MEAN}], std = [{STD}] }}
[batch]
global = {GLOBAL}
micro = {MICRO}
[optimizer]
kind = "{optimizer}"
clip_norm = {CLIP}
{keys}
[schedule]
kind = "constant"
rate = {rule["rate"]}
[monitor]
every = "1 step"
tensorboard = false
"""


def train_torch(pool, optimizer, dtype_name="float32"):
    import torch

    from compare.torch_vit import VisionTransformer

    dtype, rule, initial = getattr(torch, dtype_name), OPTIMIZERS[optimizer], initial_tensors(pool)
    network = VisionTransformer(
        (SIDE, SIDE),
        1,
        CLASSES,
        PATCH,
        LAYERS,
        HEADS,
        WIDTH,
        RATIO,
        pool,
        layer_scale=LAYER_SCALE[pool],
    ).to(dtype)
    assert {name: tuple(value.shape) for name, value in network.state_dict().items()} == {
        name: shape for name, (shape, _) in initial.items()
    }
    for name, value in network.state_dict().items():
        value.copy_(
            torch.frombuffer(bytearray(initial[name][1].tobytes()), dtype=torch.float32).reshape(
                value.shape
            )
        )
    images, labels = dataset()
    pixels = torch.frombuffer(bytearray(images), dtype=torch.uint8).reshape(-1, 1, SIDE, SIDE)
    x, y = (pixels.to(dtype) / 255 - MEAN) / STD, torch.tensor(labels)
    slots = {
        name: [torch.zeros_like(weight), torch.zeros_like(weight)]
        for name, weight in network.named_parameters()
    }
    muon = None
    if optimizer == "muon":
        muon = pytorch_gpt_parity.TorchMuon(
            torch,
            network,
            rule,
            pytorch_gpt_parity.newton_schulz_in(torch, dtype_name),
            lambda name, w: w.dim() == 2 and name.startswith("blocks."),
            lambda name, w: w.dim() > 1 and name not in ("cls_token", "pos_embed"),
        )
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        network.zero_grad()
        total = 0.0
        for begin in range((step - 1) * GLOBAL, step * GLOBAL, MICRO):
            loss = (
                torch.nn.functional.cross_entropy(
                    network(x[begin : begin + MICRO]), y[begin : begin + MICRO], reduction="sum"
                )
                / GLOBAL
            )
            loss.backward()
            total += loss.item()
        losses.append(total)
        with torch.no_grad():
            norm = math.sqrt(
                sum(float(weight.grad.double().square().sum()) for weight in network.parameters())
            )
            norms.append(norm)
            factor = min(1.0, CLIP / (norm + 1e-6))
            if muon:
                muon.step(factor)
                continue
            for name, weight in network.named_parameters():
                matrix = weight.dim() > 1 and name not in ("cls_token", "pos_embed")
                gradient = factor * weight.grad
                pytorch_gpt_parity.update(
                    torch, optimizer, rule, step, weight, gradient, slots[name], matrix
                )
    return {"losses": losses, "norms": norms}


def compare(arguments, kept, folder):
    """Returns whether all cases agree."""
    agree = True
    make_shards(arguments.trireme, folder)
    for pool, optimizer in CASES:
        expected = train_torch(pool, optimizer) if arguments.torch else kept[f"{pool}-{optimizer}"]
        name = f"{pool}-{optimizer}"
        found = pytorch_gpt_parity.train_deck(
            arguments.trireme,
            folder,
            name,
            initial_tensors(pool),
            deck(folder, name, pool, optimizer),
        )
        agree &= pytorch_gpt_parity.agrees((pool, optimizer), found, expected, TOLERANCE)
    return agree


def main():
    arguments = make_parser(__doc__, "vit_parity.json").parse_args()
    return run(
        arguments,
        lambda path: make_reference(path, CASES, train_torch, largest_difference, TOLERANCE / 2),
        lambda kept, folder: compare(arguments, kept, folder),
    )


if __name__ == "__main__":
    sys.exit(main())
