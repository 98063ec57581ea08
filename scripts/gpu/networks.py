# SPDX-License-Identifier: Apache-2.0
"""The full-size networks of the acceptance, their decks and data, and the speed of training them.

  networks  starts each network for a few steps: the first sign of life, the choice of algorithms
  resnet50  Trireme and PyTorch in turns
  gpt2      the same with GPT-2 124M

A rate is the median over at least TIMED_SECONDS, after SETTLE_SECONDS in which the clocks of the
GPU settle; PyTorch is timed in the same way.
"""

import collections
import math
import os
import statistics

import runs
import torch_rate
import variants
from torch_rate import PIECE, SETTLE_SECONDS, TIMED_SECONDS

HERE = os.path.dirname(os.path.abspath(__file__))
ROUNDS = 2  # A B A B
FIRST_STEPS = 4
START_SECONDS = 100  # of a run that has no algorithms yet: 60 for their trials, and the steps

DECK = """stop = "%d steps"
%s
[precision]
compute = "bfloat16"
[schedule]
kind = "constant"
rate = 1e-3
[checkpoint]
every = "1000000 steps"
[monitor]
every = "%d steps"
tensorboard = false
"""

RESNET50 = """[model]
kind = "resnet"
depth = 50
[data]
train = "%(data)s"
workers = 8
prefetch = 8
[batch]
global = %(batch)d
micro = %(batch)d
[optimizer]
kind = "sgd"
momentum = 0.9
weight_decay = 5e-4"""

GPT2 = """[model]
kind = "gpt"
layers = 12
heads = 12
width = 768
context = 1024
vocabulary = 50304
[data]
train = "%(data)s"
workers = 4
[batch]
global = %(batch)d
micro = %(batch)d
[optimizer]
kind = "adamw"
weight_decay = 0.1
beta2 = 0.95"""

CONTEXT, LAYERS, WIDTH, VOCABULARY = 1024, 12, 768, 50304
# Weights of GPT-2's matrix products. Attention takes 2 T C for each token and layer, half of it
# because of causality.
PRODUCTS = 12 * LAYERS * WIDTH**2 + VOCABULARY * WIDTH

# make: writes the dataset. words: those of torch_rate.py. flops: of a sample, for MFU.
Network = collections.namedtuple("Network", "deck batch make words unit units flops")
NETWORKS = {
    # 4.09 billion multiply-adds for an image forward (He et al. 2016 report 3.8, without v1.5's
    # stride), twice as many backward.
    "resnet50": Network(
        RESNET50,
        256,
        lambda trireme, data, batch: runs.make_color_images(
            trireme, data, samples=4 * batch, size=224, classes=1000
        ),
        ["--channels", 3],
        "images",
        1,
        3 * 2 * 4.09e9,
    ),
    "gpt2": Network(
        GPT2,
        32,
        lambda trireme, data, batch: runs.make_tokens(
            trireme, data, 8 * batch * CONTEXT + 1, VOCABULARY
        ),
        ["--vocabulary", VOCABULARY],
        "tokens",
        CONTEXT,
        3 * 2 * CONTEXT * (PRODUCTS + LAYERS * WIDTH * CONTEXT),
    ),
}


def deck_of(section, model, steps, every):
    """Returns the deck of a network; makes its dataset at the first call."""
    network = NETWORKS[model]
    batch = section.batch or network.batch
    data = os.path.join(section.shared, "%s-%d" % (model, batch))
    if not os.path.exists(data):
        network.make(section.trireme, data, batch)
    return DECK % (steps, network.deck % {"data": data, "batch": batch}, every)


def first_steps(section):
    """Trains each network for a few steps, whose losses must be finite."""
    section.result["losses"] = losses = {}

    def start(model, name, sets):
        deck = deck_of(section, model, FIRST_STEPS, 1)
        rows = section.train(name, deck, section.device, sets=sets, least=START_SECONDS)
        found = runs.losses(rows)
        losses[name] = found
        if len(found) != FIRST_STEPS:
            raise runs.Failed("%d losses, %d steps" % (len(found), FIRST_STEPS))

    # First each network in its usual form. GPT-2 has fewer problems to try algorithms for.
    starts = [
        (variant, model, sets)
        for model in ("gpt2", "resnet50")
        for variant, sets in variants.of(model, section.device)
    ]
    for variant, model, sets in sorted(starts, key=lambda start: bool(start[0])):
        name = variants.label(model, variant)
        section.attempt(name, lambda: start(model, name, sets))
    section.result["summary"] = ", ".join(
        "%s: loss %.3f to %.3f" % (name, found[0], found[-1]) for name, found in losses.items()
    )


def settled(rates, samples_of_piece):
    """Returns the rates of the pieces that began after SETTLE_SECONDS, and their seconds.

    The first piece, in which the program sets itself up, does not count.
    """
    times = [samples_of_piece / rate for rate in rates]
    begins = [sum(times[1:i]) for i in range(len(times))]
    first = next((i for i, begin in enumerate(begins) if begin >= SETTLE_SECONDS), len(rates))
    return rates[first:], sum(times[first:])


def trireme_rate(section, model, name, sets, seconds_of_step):
    """Trains long enough for a rate. `seconds_of_step`: of an earlier run, 0 if there was none.

    Without one a short run chooses the algorithms and measures the length of a step.
    """
    samples = PIECE * (section.batch or NETWORKS[model].batch)

    def train(name, pieces):
        deck = deck_of(section, model, PIECE * pieces, PIECE)
        rows = section.train(name, deck, section.device, sets=sets, least=START_SECONDS)
        runs.losses(rows)
        return rows, [row["samples_per_s"] for row in rows]

    if not seconds_of_step:
        _, rates = train(name + " short", 3)
        seconds_of_step = samples / rates[-1] / PIECE
    # A third more, since steps may become faster.
    pieces = math.ceil(1.33 * (SETTLE_SECONDS + TIMED_SECONDS) / (PIECE * seconds_of_step)) + 2
    rows, rates = train(name, pieces)
    timed, seconds = settled(rates, samples)
    if not timed:
        raise runs.Failed("no step was timed: all %d pieces took %.1f s" % (pieces, seconds))
    half = len(timed) // 2
    return {
        "samples_per_s": statistics.median(timed),
        "least": min(timed),
        "most": max(timed),
        "timed_seconds": seconds,
        "is_long_enough": seconds >= TIMED_SECONDS,
        # of the second half over the first: far from 1 if clocks had not settled
        "drift": statistics.median(timed[half:]) / statistics.median(timed[: half or 1]),
        "seconds_of_step": samples / PIECE / statistics.median(timed),
        "memory_bytes": rows[-1].get("memory_bytes", 0),
        "loss": rows[-1]["loss"],
    }


def torch_of(section, model, form, name, limit):
    environment = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(section.shared, "inductor")}
    network = NETWORKS[model]
    words = ["--batch", section.batch or network.batch, *network.words]
    program = [section.python, os.path.join(HERE, "torch_rate.py"), model, form]
    output = section.call(name, [*program, *words], environment, seconds=limit)
    return runs.last_json(output)


def side_by_side(section, model):
    """Measures Trireme, PyTorch and the variants of Trireme, twice in this order.

    The first round tries as many forms of PyTorch as the time allows. The second round uses the
    best.
    """
    ours, theirs, broken = {}, {}, {}
    section.result.update(trireme=ours, pytorch=theirs, left_out=broken)

    def measure(variant, name, sets):
        known = ours.get(variant)
        seconds = known[0]["seconds_of_step"] if known else 0
        found = trireme_rate(section, model, name, sets, seconds)
        ours.setdefault(variant, []).append(found)
        summarize(section, NETWORKS[model])

    def measure_pytorch(number):
        best = max(theirs, key=lambda form: theirs[form][0]["samples_per_s"]) if theirs else None
        for form in [best] if best else torch_rate.FORMS[model]:
            # The first round leaves a third of the time for the second.
            limit = section.left() - (0 if best else section.limit / 3)
            try:
                if limit < 20:
                    raise runs.Failed("not run: no time left")
                measured = torch_of(section, model, form, "pytorch %s %d" % (form, number), limit)
                theirs.setdefault(form, []).append(measured)
            except Exception as failure:  # of any kind: the next form may work
                broken[form] = str(failure)[-500:]
            summarize(section, NETWORKS[model])

    for number in range(ROUNDS):
        for variant, sets in variants.of(model, section.device):
            name = variants.label("round %d" % (number + 1), variant)
            section.attempt(name, lambda: measure(variant, name, sets))
            if not variant and not section.only:  # failed runs again: without PyTorch
                measure_pytorch(number)


def summarize(section, network):
    """Writes rates, the ratio to PyTorch's best form, and the summary."""

    def rate_of(measured):
        return statistics.median(run["samples_per_s"] for run in measured) * network.units

    result = section.result
    rates = {variant: rate_of(measured) for variant, measured in result["trireme"].items()}
    theirs = {form: rate_of(measured) for form, measured in result["pytorch"].items()}
    form = max(theirs, key=theirs.get, default=None)
    result.update(unit=network.unit, rates=rates, pytorch_form=form, pytorch_rates=theirs)
    words = []
    for variant, rate in rates.items():
        tflops = rate / network.units * network.flops / 1e12
        words.append("%.0f %s/s, %.0f TFLOP/s" % (rate, network.unit, tflops))
        words[-1] += " (%s)" % variant if variant else ""
    if form:
        words.append("PyTorch %.0f (%s)" % (theirs[form], form))
        result["ratios"] = {variant: rate / theirs[form] for variant, rate in rates.items()}
        words.append("ratio " + ", ".join("%.2f" % ratio for ratio in result["ratios"].values()))
    else:
        words.append("no rate of PyTorch")
    result["summary"] = "; ".join(words)
