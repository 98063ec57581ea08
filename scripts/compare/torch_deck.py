# SPDX-License-Identifier: Apache-2.0
"""Trains the model of a deck in PyTorch, as the help of `compare.py training` describes.

It reads the same shards as the program, which checks the deck and knows the defaults of its keys.
"""

import math
import pathlib
import time

import h5py
import numpy
import torch

from compare import torch_gpt
from compare.deck import rate_of, read_deck, steps_of
from compare.models import decay_groups
from compare.processes import Broken

# By positions: the form in torch_gpt.py, and the keys of [model] that it requires.
FORMS = {
    "learned": ("gpt2", {"norm": "layer", "mlp": "gelu", "bias": True}),
    "rope": ("llama", {"norm": "rms", "mlp": "swiglu", "bias": False}),
}


# --- the data -----------------------------------------------------------------------------------


def read_samples(folder, context):
    """Returns the samples of a folder of token shards, int32 [n, context + 1], and the vocabulary.

    Sample i of a shard has its tokens [i * context, i * context + context].
    """
    parts, vocabulary = [], 0
    for path in sorted(pathlib.Path(folder).glob("*.h5")):
        with h5py.File(path) as file:
            tokens = file["tokens"][...].astype(numpy.int32)
            holder = file if "vocabulary" in file.attrs else file["tokens"]
            vocabulary = max(vocabulary, int(holder.attrs["vocabulary"]))
        if len(tokens) > context:
            windows = numpy.lib.stride_tricks.sliding_window_view(tokens, context + 1)
            parts.append(torch.from_numpy(windows[::context].copy()))
    if not parts:
        raise Broken(f"{folder}: no shard of more than {context} tokens")
    return torch.cat(parts), vocabulary


def training_order(count, global_batch, drop_last, seed):
    """Yields the samples of each step, in a random order for each epoch."""
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
    form, wanted = FORMS[deck["model.positions"]]
    chosen = {
        key: deck[f"model.{key}"] if deck[f"model.{key}"] is not None else value
        for key, value in wanted.items()
    }
    kv_heads = deck["model.kv_heads"] or deck["model.heads"]
    if chosen != wanted or (form == "gpt2" and kv_heads != deck["model.heads"]):
        raise Broken(
            f"[model] {chosen | {'kv_heads': kv_heads}} with these positions is neither GPT-2's "
            "form nor Llama's, the two that are done here"
        )
    sizes = [deck[f"model.{name}"] for name in ("layers", "heads", "width", "context")]
    sizes += [deck["model.vocabulary"] or vocabulary, deck["model.mlp_width"], kv_heads]
    network = torch_gpt.FORMS[form](*sizes, deck["model.tie_embeddings"])
    torch_gpt.set_numbers(network, deck["model.norm_epsilon"], deck["model.rope_base"])
    return network


def make_optimizer(deck, network):
    return torch.optim.AdamW(
        decay_groups(network.parameters(), deck["optimizer.weight_decay"]),
        betas=(deck["optimizer.beta1"], deck["optimizer.beta2"]),
        eps=deck["optimizer.epsilon"],
        foreach=True,
    )


def loss_sum(network, samples, autocast):
    """Returns the cross-entropy in nats, summed over all tokens."""
    tokens = samples.long()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        logits = network(tokens[:, :-1]).float()
    targets = tokens[:, 1:].flatten()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum")


def evaluate(network, samples, micro, autocast):
    """Returns the mean cross-entropy of a token over the whole set."""
    total, network = 0.0, network.eval()
    with torch.no_grad():
        for part in samples.split(micro):
            total += loss_sum(network, part, autocast).item()
    network.train()
    return total / samples[:, 1:].numel()


def train(deck):
    torch.manual_seed(deck["run.seed"])
    context, global_batch, micro = deck["model.context"], deck["batch.global"], deck["batch.micro"]
    autocast = deck["precision.compute"] == "bfloat16"
    samples, vocabulary = read_samples(deck["data.train"], context)
    validation, _ = read_samples(deck["data.validation"], context)
    drop_last = deck["data.drop_last"]
    samples_per_epoch = len(samples) // global_batch * global_batch if drop_last else len(samples)
    stop = steps_of(deck, "run.stop", samples_per_epoch)
    length = steps_of(deck, "schedule.length", samples_per_epoch) or stop
    warmup = steps_of(deck, "schedule.warmup", samples_per_epoch) or 0
    look = steps_of(deck, "evaluate.every", samples_per_epoch)
    network = make_network(deck, vocabulary)
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
            mean = loss_sum(network, samples[part], autocast) / (global_batch * context)
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


def run(given):
    deck = read_deck(given)
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    loss = train(deck)
    print(f"validation loss {loss:.6f}, perplexity {math.exp(loss):.6f}")
    return 0
