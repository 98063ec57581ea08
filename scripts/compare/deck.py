# SPDX-License-Identifier: Apache-2.0
"""Reads the values of a deck for torch_deck.py: the file, --set, and the defaults of the program.

Needs no PyTorch.
"""

import json
import math
import re
import tomllib

from compare.processes import Broken, call

# Supported values of keys that have other values too. Keys without an entry do not affect the
# result of training.
DONE = {
    "model.kind": ["gpt"],
    "model.dropout": [0],
    "model.drop_path": [0],
    "loss.label_smoothing": [0],
    "data.shuffle": ["full", "blocks"],
    "precision.compute": ["float32", "bfloat16"],
    "optimizer.kind": ["adamw"],
    "optimizer.decay_all": [False],
    "optimizer.clip_value": [0],
    "optimizer.ema": [0],
    "optimizer.groups": [[]],
    "schedule.kind": ["constant", "cosine"],
}


def value_of(text):
    """Returns the value of a key; words need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def kinds_of(row):
    """Returns the kinds of its table to which a key belongs, None if its condition is another one:
    {"resnet", "gpt"} for the owner `kind = "resnet" or "gpt"`."""
    listed = re.match(r'kind = ((?:"[^"]+"(?:, | or )?)+)', row["owner"] or "")
    return set(re.findall(r'"([^"]+)"', listed[1])) if listed else None


def defaults(rows, written):
    """Returns {"table.key": default} of the keys that belong to the kinds of a deck.

    `rows`: those of `trireme check --keys --json`. A key with several defaults, as model.norm, has
    a row for each kind. `written`: the values that the deck sets.
    """
    kinds = {row["table"]: value_of(row["default"]) for row in rows if row["key"] == "kind"}
    kinds |= {table: written.get(f"{table}.kind", kind) for table, kind in kinds.items()}
    return {
        f"{row['table']}.{row['key']}": value_of(row["default"]) if row["default"] else None
        for row in rows
        if kinds_of(row) is None or kinds.get(row["table"]) in kinds_of(row)
    }


def read_deck(given):
    """Returns {"table.key": value} with every default, None if it depends on other keys. Raises
    Broken if the program refuses the deck or its data, and for unsupported features."""
    program, settings = [given.trireme, "check"], [text.split("=", 1) for text in given.set]
    call([*program, given.deck, *(word for text in given.set for word in ("--set", text))])
    written = {}
    for table, keys in tomllib.loads(given.deck.read_text(encoding="utf-8")).items():
        written |= {f"{table}.{key}": value for key, value in keys.items()}
    written |= {key: value_of(text) for key, text in settings}
    deck = defaults(json.loads(call([*program, "--keys", "--json"])[0]), written)
    deck |= {"model.bias": None, "optimizer.groups": []}  # the default of a bias is the form's
    deck |= written
    for key, choices in DONE.items():
        if deck[key] not in choices:
            known = ", ".join(map(repr, choices))
            raise Broken(f"{key} = {deck[key]!r} is not done here; what is: {known}")
    if deck["data.validation"] is None:
        raise Broken("data.validation is missing")
    return deck


def steps_of(deck, key, samples_per_epoch):
    """Returns a duration in steps, rounded up, or None for "none"."""
    text = deck[key]
    if text == "none":
        return None
    match = re.fullmatch(
        r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([kMB]?)\s*(epoch|step|sample|token)s?\s*", text
    )
    if not match:
        raise Broken(f"{key} = {text!r}: must be counted in epochs, steps, samples or tokens")
    samples = {
        "epoch": samples_per_epoch,
        "step": deck["batch.global"],
        "sample": 1,
        "token": 1 / deck["model.context"],
    }[match[3]]
    count = float(match[1]) * {"": 1, "k": 1e3, "M": 1e6, "B": 1e9}[match[2]]
    steps = count * samples / deck["batch.global"]
    return math.ceil(steps - 1e-12 * steps)


def rate_of(deck, step, warmup, length):
    """Returns the learning rate of a step, counted from 1."""
    ratio = deck["batch.global"] / deck["schedule.base_batch"]
    scales = {"none": 1, "linear": ratio, "sqrt": math.sqrt(ratio)}
    peak = deck["schedule.rate"] * scales[deck["schedule.scaling"]]
    if step <= warmup:
        return peak * step / warmup
    if deck["schedule.kind"] == "constant":
        return peak
    part = min(1.0, (step - warmup - 1) / max(1, length - warmup))
    least = deck["schedule.min_ratio"]
    return peak * (least + (1 - least) * 0.5 * (1 + math.cos(math.pi * part)))
