#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renames the weights of a built-in model to those of its chain in inputs/examples.

chain_names.py IN.safetensors OUT.safetensors

IN: a file of `trireme export` of kind = "resnet" in the CIFAR form, or of kind = "vit" with pool =
"mean", without layer_scale. OUT: for `trireme import` with the deck of the chain. Needs no
packages.
"""

import argparse
import json
import re
import sys


def resnet_name(name, blocks):
    """`blocks`: residual blocks of a stage."""
    if name.startswith(("conv1.", "bn1.")):
        return ("blocks.0." if name[0] == "c" else "blocks.1.") + name.split(".", 1)[1]
    last = 3 + 2 * 3 * blocks + 1
    if name.startswith("fc."):
        return "blocks.%d.%s" % (last, name[3:])
    stage, block, part, rest = re.fullmatch(
        r"layer(\d)\.(\d+)\.(conv1|bn1|conv2|bn2|downsample\.[01])\.(.*)", name
    ).groups()
    inner = {"conv1": "body.0", "bn1": "body.1", "conv2": "body.3", "bn2": "body.4"}.get(
        part, part.replace("downsample", "projection")
    )
    number = 3 + 2 * (blocks * (int(stage) - 1) + int(block))
    return "blocks.%d.%s.%s" % (number, inner, rest)


def vit_name(name, layers):
    """`layers`: blocks of attention and mlp."""
    ends = {
        "patch_embed.proj.": "blocks.0.",
        "fc_norm.": "blocks.%d." % (2 * layers + 3),
        "head.": "blocks.%d." % (2 * layers + 4),
    }
    if name == "pos_embed":
        return "blocks.1.weight"
    for begin, chain in ends.items():
        if name.startswith(begin):
            return chain + name[len(begin) :]
    layer, part, rest = re.fullmatch(
        r"blocks\.(\d+)\.(norm1|attn\.qkv|attn\.proj|norm2|mlp\.fc1|mlp\.fc2)\.(.*)", name
    ).groups()
    block, inner = {
        "norm1": (0, "body.0"),
        "attn.qkv": (0, "body.1.qkv"),
        "attn.proj": (0, "body.1.proj"),
        "norm2": (1, "body.0"),
        "mlp.fc1": (1, "body.1"),
        "mlp.fc2": (1, "body.3"),
    }[part]
    return "blocks.%d.%s.%s" % (2 + 2 * int(layer) + block, inner, rest)


def renamed(names):
    """Returns {name: name of the chain's tensor}."""
    if "fc.weight" in names:
        blocks = 1 + max(int(name.split(".")[1]) for name in names if name.startswith("layer1."))
        return {name: resnet_name(name, blocks) for name in names}
    layers = 1 + max(int(name.split(".")[1]) for name in names if name.startswith("blocks."))
    return {name: vit_name(name, layers) for name in names}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("weights")
    parser.add_argument("out")
    arguments = parser.parse_args()
    with open(arguments.weights, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    try:
        names = renamed([name for name in header if name != "__metadata__"])
    except (AttributeError, ValueError):
        print("%s: has tensors that no chain of the examples has" % arguments.weights)
        return 2
    text = json.dumps({names[name]: header[name] for name in names}).encode()
    text += b" " * (-len(text) % 8)
    with open(arguments.out, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
