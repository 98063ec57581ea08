#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the model of a deck (model.kind = "gpt") in PyTorch, to compare with Trireme's results.

  V/bin/python scripts/torch_train_gpt.py inputs/examples/bible_gpt.toml [--set key=value]...

It reads the same shards and prints validation loss and perplexity of a token. The Python that runs
it needs PyTorch and h5py:

  python3 -m venv V && V/bin/pip install torch numpy h5py

One process on the CPU, threads by OMP_NUM_THREADS, bfloat16 by autocast. Model, samples, schedule,
clipping and AdamW follow docs/reference/deck.md and docs/reference/numerics.md. Initial weights and
the order of samples are drawn here from run.seed: runs agree in distribution, not step by step. The
whole validation set is evaluated every evaluate.every and at the end. Other features of a deck are
refused (exit status 2).
"""

import argparse
import contextlib
import math
import os
import pathlib
import re
import sys
import time
import tomllib

INSTALL = (
    "python3 -m venv V && V/bin/pip install torch numpy h5py, then V/bin/python " + sys.argv[0]
)
DEFAULTS = {  # defaults of docs/reference/deck.md; None: depends on other keys, or is required
    "run.seed": 1,
    "run.stop": "10 epochs",
    "model.kind": "resnet",
    "model.layers": 12,
    "model.heads": 12,
    "model.kv_heads": None,
    "model.width": 768,
    "model.mlp_width": None,
    "model.context": 1024,
    "model.vocabulary": None,
    "model.mlp": "gelu",
    "model.norm": "layer",
    "model.positions": "learned",
    "model.bias": None,
    "model.rope_base": 10000,
    "model.norm_epsilon": 1e-5,
    "model.tie_embeddings": True,
    "model.dropout": 0,
    "model.drop_path": 0,
    "data.train": None,
    "data.validation": None,
    "data.shuffle": "full",
    "data.drop_last": True,
    "loss.label_smoothing": 0,
    "batch.global": 256,
    "batch.micro": 64,
    "precision.compute": "float32",
    "optimizer.kind": "sgd",
    "optimizer.weight_decay": 0,
    "optimizer.decay_all": False,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.999,
    "optimizer.epsilon": 1e-8,
    "optimizer.clip_value": 0,
    "optimizer.clip_norm": 0,
    "optimizer.ema": 0,
    "optimizer.groups": [],
    "schedule.kind": "cosine",
    "schedule.rate": 0.1,
    "schedule.base_batch": 256,
    "schedule.scaling": "none",
    "schedule.warmup": "none",
    "schedule.length": "none",
    "schedule.min_ratio": 0,
    "evaluate.every": "1 epoch",
}
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
# By positions: the form in torch_gpt.py, and the keys of [model] that it requires.
FORMS = {
    "learned": ("gpt2", {"norm": "layer", "mlp": "gelu", "bias": True}),
    "rope": ("llama", {"norm": "rms", "mlp": "swiglu", "bias": False}),
}


def refuse(message):
    print(f"{sys.argv[0]}: {message}", file=sys.stderr)
    sys.exit(2)


# --- the deck -----------------------------------------------------------------------------------


def read_deck(path, overrides):
    """Returns {"table.key": value} with every default. Refuses unsupported features."""
    try:
        with open(path, "rb") as file:
            tables = tomllib.load(file)
    except (OSError, ValueError) as error:  # wrong TOML, or no UTF-8
        refuse(f"{path}: {error}")
    for table, keys in tables.items():
        if not isinstance(keys, dict):
            refuse(f"{path}: {table} must be a table, as [run]")
    deck = DEFAULTS | {
        f"{table}.{key}": value for table, keys in tables.items() for key, value in keys.items()
    }
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            refuse(f"--set {override}: must be key=value, as in --set optimizer.beta2=0.95")
        try:
            deck[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            deck[key] = text
    for key, choices in DONE.items():
        if deck[key] not in choices:
            refuse(
                f"{path}: {key} = {deck[key]!r} is not done here; what is: "
                f"{', '.join(map(repr, choices))}"
            )
    for key in ("data.train", "data.validation"):
        if deck[key] is None:
            refuse(f"{path}: {key} is missing")
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
        refuse(f"{key} = {text!r}: must be counted in epochs, steps, samples or tokens")
    samples = {
        "epoch": samples_per_epoch,
        "step": deck["batch.global"],
        "sample": 1,
        "token": 1 / deck["model.context"],
    }[match[3]]
    steps = (
        float(match[1])
        * {"": 1, "k": 1e3, "M": 1e6, "B": 1e9}[match[2]]
        * samples
        / deck["batch.global"]
    )
    return math.ceil(steps - 1e-12 * steps)


def rate_of(deck, step, warmup, length):
    """Returns the learning rate of a step, counted from 1."""
    ratio = deck["batch.global"] / deck["schedule.base_batch"]
    peak = (
        deck["schedule.rate"]
        * {"none": 1, "linear": ratio, "sqrt": math.sqrt(ratio)}[deck["schedule.scaling"]]
    )
    if step <= warmup:
        return peak * step / warmup
    if deck["schedule.kind"] == "constant":
        return peak
    part = min(1.0, (step - warmup - 1) / max(1, length - warmup))
    least = deck["schedule.min_ratio"]
    return peak * (least + (1 - least) * 0.5 * (1 + math.cos(math.pi * part)))


# --- the data -----------------------------------------------------------------------------------


class Samples:
    """The samples of a folder of token shards.

    Sample i of a shard has its tokens [i * context, i * context + context].
    """

    def __init__(self, folder, context):
        import h5py
        import numpy
        import torch

        parts, self.vocabulary = [], 0
        for path in sorted(pathlib.Path(folder).glob("*.h5")):
            with h5py.File(path) as file:
                tokens = file["tokens"][...].astype(numpy.int32)
                holder = file if "vocabulary" in file.attrs else file["tokens"]
                self.vocabulary = max(self.vocabulary, int(holder.attrs["vocabulary"]))
            count = (len(tokens) - 1) // context
            if count > 0:
                rows = numpy.lib.stride_tricks.sliding_window_view(tokens, context + 1)[::context][
                    :count
                ]
                parts.append(torch.from_numpy(rows.copy()))
        if not parts:
            refuse(f"{folder}: no shard of more than {context} tokens")
        self.rows = torch.cat(parts)

    def __len__(self):
        return len(self.rows)

    def batch(self, indices):
        """Returns inputs and targets, int64 [B, context]."""
        rows = self.rows[indices].long()
        return rows[:, :-1], rows[:, 1:]


def training_order(count, global_batch, drop_last, seed):
    """Yields the samples of each step, in a random order for each epoch."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    taken = count // global_batch * global_batch if drop_last else count
    waiting = torch.empty(0, dtype=torch.int64)
    while True:
        while len(waiting) < global_batch:
            waiting = torch.cat([waiting, torch.randperm(count, generator=generator)[:taken]])
        yield waiting[:global_batch]
        waiting = waiting[global_batch:]


# --- the training -------------------------------------------------------------------------------


def make_network(deck, vocabulary):
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import torch_gpt

    form, wanted = FORMS[deck["model.positions"]]
    chosen = {
        key: deck[f"model.{key}"] if deck[f"model.{key}"] is not None else value
        for key, value in wanted.items()
    }
    kv_heads = deck["model.kv_heads"] or deck["model.heads"]
    if chosen != wanted or (form == "gpt2" and kv_heads != deck["model.heads"]):
        refuse(
            f"[model] {chosen | {'kv_heads': kv_heads}} with these positions is neither GPT-2's "
            "form nor Llama's, the two that are done here"
        )
    network = torch_gpt.FORMS[form](
        deck["model.layers"],
        deck["model.heads"],
        deck["model.width"],
        deck["model.context"],
        deck["model.vocabulary"] or vocabulary,
        deck["model.mlp_width"],
        kv_heads,
        deck["model.tie_embeddings"],
    )
    torch_gpt.set_numbers(network, deck["model.norm_epsilon"], deck["model.rope_base"])
    return network


def make_optimizer(deck, network):
    import torch

    decay = deck["optimizer.weight_decay"]
    matrices = [weight for weight in network.parameters() if weight.dim() > 1]
    vectors = [weight for weight in network.parameters() if weight.dim() <= 1]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0}],
        betas=(deck["optimizer.beta1"], deck["optimizer.beta2"]),
        eps=deck["optimizer.epsilon"],
        foreach=True,
    )


def loss_sum(network, inputs, targets, autocast):
    """Returns the cross-entropy in nats, summed over all tokens."""
    import torch

    with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext():
        logits = network(inputs)
    return torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), reduction="sum"
    )


def evaluate(network, samples, micro, autocast):
    """Returns the mean cross-entropy of a token over the whole set."""
    import torch

    total, network = 0.0, network.eval()
    with torch.no_grad():
        for begin in range(0, len(samples), micro):
            total += loss_sum(network, *samples.batch(slice(begin, begin + micro)), autocast).item()
    network.train()
    return total / (len(samples) * (samples.rows.shape[1] - 1))


def train(deck):
    import torch

    torch.manual_seed(deck["run.seed"])
    context, global_batch, micro = deck["model.context"], deck["batch.global"], deck["batch.micro"]
    autocast = deck["precision.compute"] == "bfloat16"
    samples = Samples(deck["data.train"], context)
    validation = Samples(deck["data.validation"], context)
    drop_last = deck["data.drop_last"]
    samples_per_epoch = len(samples) // global_batch * global_batch if drop_last else len(samples)
    if samples_per_epoch == 0:
        refuse(
            f"batch.global = {global_batch} is more than the {len(samples)} samples of "
            f"{deck['data.train']}"
        )
    stop = steps_of(deck, "run.stop", samples_per_epoch)
    length = steps_of(deck, "schedule.length", samples_per_epoch) or stop
    warmup = steps_of(deck, "schedule.warmup", samples_per_epoch) or 0
    look = steps_of(deck, "evaluate.every", samples_per_epoch)
    network = make_network(deck, samples.vocabulary)
    optimizer = make_optimizer(deck, network)
    clip_norm = deck["optimizer.clip_norm"]
    order = training_order(len(samples), global_batch, drop_last, deck["run.seed"])
    print(
        f"{sum(weight.numel() for weight in network.parameters())} weights, {len(samples)} "
        f"samples, {len(validation)} for validation, {stop} steps",
        flush=True,
    )
    start = time.perf_counter()
    for step in range(1, stop + 1):
        optimizer.zero_grad()
        chosen, loss = next(order), 0.0
        for part in chosen.split(micro):
            mean = loss_sum(network, *samples.batch(part), autocast) / (global_batch * context)
            mean.backward()
            loss += mean.item()
        if clip_norm > 0:
            torch.nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = rate_of(deck, step, warmup, length)
        optimizer.step()
        if step % look == 0 or step == stop:
            found = evaluate(network, validation, micro, autocast)
            print(
                f"step {step}: training loss {loss:.4f}, validation loss {found:.4f}, perplexity "
                f"{math.exp(found):.4f}, {time.perf_counter() - start:.0f} s",
                flush=True,
            )
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("deck", metavar="DECK")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as of trireme train"
    )
    arguments = parser.parse_args()
    deck = read_deck(arguments.deck, arguments.set)
    try:
        import h5py  # noqa: F401
        import torch
    except ImportError as error:
        print(f"skipped: this Python has no {error.name}; {INSTALL}")
        return 0
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    loss = train(deck)
    print(f"validation loss {loss:.6f}, perplexity {math.exp(loss):.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
