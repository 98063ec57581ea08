# SPDX-License-Identifier: Apache-2.0
"""The forms of the program that the acceptance runs beside each other: a table of names and sets.

The sections parity, gradients, networks, resnet50 and gpt2 run each model once with the `--set`
words of every row that has it, in this order. The first row is the form to which the others are
compared. To add a form, add a row.
"""

import collections

# models: beginnings of the names of models. gpu_only: left out if the acceptance is tried on a CPU.
Variant = collections.namedtuple("Variant", "name sets models gpu_only", defaults=(True,))
MODELS = ("resnet", "gpt")
VARIANTS = [
    Variant("", (), MODELS, False),
    Variant("fused softmax", ("debug.fused_softmax=true",), ("gpt",)),
    Variant("joined norms", ("debug.joined_norms=true",), ("resnet",)),
]


def of(model, device):
    """Yields name and sets of each form of a model on a device ("cuda" or "cpu")."""
    for variant in VARIANTS:
        if model.startswith(variant.models) and not (variant.gpu_only and device == "cpu"):
            yield variant.name, list(variant.sets)


def label(name, variant):
    """Returns the name of a run in a variant."""
    return "%s, %s" % (name, variant) if variant else name
