# SPDX-License-Identifier: Apache-2.0
"""Compares training by Trireme and by PyTorch on the CPU: rate, resident memory and losses.

  V/bin/python scripts/compare.py training [--cells CELL,...] [--rounds 2] [--results FILE]
  V/bin/python scripts/compare.py training --table [--results FILE]
  V/bin/python scripts/compare.py training --deck inputs/examples/bible_gpt.toml [--set KEY=VALUE]

A cell is MODEL:PRECISION:RANKSxTHREADS, as in resnet18:float32:1x2. Each part may be "all". Two
ranks share the batch, by DistributedDataParallel over gloo and by mpirun. gpt2 and llama take up to
11 GiB of memory, and about 10 minutes a round.

Both programs start from the same weights and train on the same batches in the same order, with the
same optimizer: SGD with momentum for images, AdamW for tokens, no clipping. Trireme reads shards
with its loader. PyTorch has all batches in memory, images channels last. Every form of a precision
is tried: eager and torch.compile; bfloat16 by autocast and as a bfloat16 network with float32
master weights. The form with the highest median counts. A cell is in the table once every form of
its precision was tried, and Trireme and at least one form were measured.

Each measurement is a process of its own; programs and forms take turns in each round. Memory is the
largest resident set of a process, summed over ranks. If losses differ, there is no ratio and the
exit code is 1. Those of the first step may differ by the tolerance of the precision; those of the
first five steps also by as much as PyTorch's forms differ from each other.

--deck trains the model of a deck (model.kind = "gpt") in PyTorch, and prints the validation loss
and the perplexity of a token, to compare with those of `trireme train`. It has one process and as
many threads as OMP_NUM_THREADS, and needs h5py, too. Model, samples, schedule, clipping and AdamW
follow docs/reference/deck.md and docs/reference/numerics.md. Initial weights and the order of
samples are drawn from run.seed: runs agree in distribution, not step by step. The whole validation
set is evaluated every evaluate.every and at the end. Other features of a deck are refused.
The options of cells (--cells, --rounds, --results, --table) do not go with --deck.
"""

import dataclasses
import functools
import json
import pathlib
import socket
import statistics
import sys

from compare import results
from compare.bench import WARMUP_PIECES, Layout, piece_rates
from compare.models import MODELS, draw_network, write_weights
from compare.processes import Broken, call_together, find_program, require
from compare.results import is_positive, with_range

ROUNDS = 2
# Options that --deck does not have, and their defaults
CELL_OPTIONS = {
    "cells": "all:all:all",
    "rounds": ROUNDS,
    "results": pathlib.Path("build/compare_training.jsonl"),
    "table": False,
}
LOSSES = 5  # steps whose losses are compared
TOLERANCE = {"float32": 2e-4, "bfloat16": 2e-2}
FORMS = {
    "float32": ["eager", "compile"],
    "bfloat16": ["autocast", "autocast compile", "pure", "pure compile"],
}
LAYOUTS = {"1x2": Layout(ranks=1, threads=2), "2x1": Layout(ranks=2, threads=1)}


# --- cells ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Cell:
    model: object
    precision: str
    layout: str

    @property
    def name(self):
        return f"{self.model.name}:{self.precision}:{self.layout}"

    @property
    def place(self):
        return LAYOUTS[self.layout]

    @property
    def programs(self):
        return ["Trireme"] + [f"PyTorch {form}" for form in FORMS[self.precision]]

    @property
    def steps(self):
        return max(LOSSES, (WARMUP_PIECES + self.model.pieces) * self.model.piece)


def parse_cells(text):
    """Returns the cells that a list of names selects. Raises ValueError."""
    return [
        Cell(MODELS[model], precision, layout)
        for model, precision, layout in results.select(text, MODELS, FORMS, LAYOUTS)
    ]


# --- measuring -----------------------------------------------------------------------------------


def run_torch(cell, bench, form, seconds):
    """Trains in PyTorch, a process for each rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:  # a port that was free
        port = server.getsockname()[1]
    program = pathlib.Path(__file__).resolve().with_name("torch_rank.py")
    words = [*bench.on_cores(cell.place), sys.executable, program, cell.name, form]
    ranks = [["env", f"OMPI_COMM_WORLD_RANK={rank}", *words] for rank in range(cell.place.ranks)]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    text, _ = call_together(ranks, cell.place.threads, seconds, place)[0]
    return json.loads(text.splitlines()[-1])


def run_trireme(cell, bench, seconds):
    weights = bench.folder / f"{cell.model.name}.safetensors"
    if not weights.exists():
        write_weights(draw_network(cell.model), weights)
    [rows] = bench.train(cell.model, cell.precision, cell.place, cell.steps, seconds, weights)
    seconds, losses = ([row[key] for row in rows] for key in ("step_s", "loss"))
    return {"seconds": seconds, "losses": losses[:LOSSES]}


def measure(cell, bench, program, seconds):
    """Returns rate, memory and losses of a cell. Raises Broken and OutOfTime."""
    if program == "Trireme":
        found = run_trireme(cell, bench, seconds)
    else:
        found = run_torch(cell, bench, program.removeprefix("PyTorch "), seconds)
    if not are_losses(found["losses"]):
        raise Broken(f"its losses are {found['losses']}")
    rate = statistics.median(piece_rates(cell.model, cell.model.batch, found["seconds"]))
    return {"rate": rate, "peak_bytes": bench.peak_bytes(cell.place), "losses": found["losses"]}


# --- table ---------------------------------------------------------------------------------------


def are_losses(values):
    """Returns whether these are the losses of the steps that are compared."""
    return isinstance(values, list) and len(values) == LOSSES and all(map(is_positive, values))


def difference(a, b):
    return max(abs(p - q) / abs(q) for p, q in zip(a, b, strict=True))


VALUES = {"rate": is_positive, "peak_bytes": is_positive, "losses": are_losses}
HEADS = (
    *("model", "precision", "ranks x threads", ">Trireme", ">PyTorch's best", "form", ">ratio"),
    *(">memory, GiB: Trireme, PyTorch", ">losses differ by: first, five, PyTorch's"),
)


def line_of(cell, rows):
    """Returns the texts of a cell for the table, None if it is not complete, and whether its losses
    agree."""
    found, broken = results.by_program(rows, cell.name)
    torch = {name: group for name, group in found.items() if name != "Trireme"}
    # The best form is not known before all were tried.
    tried = all(name in found or name in broken for name in cell.programs)
    if "Trireme" not in found or not torch or not tried:
        return None, True
    rates = {name: [row["rate"] for row in group] for name, group in found.items()}
    best = max(torch, key=lambda name: statistics.median(rates[name]))
    usual = f"PyTorch {FORMS[cell.precision][0]}"
    reference = found.get(usual, found[best])[0]["losses"]
    losses = found["Trireme"][0]["losses"]
    first, apart = difference(losses[:1], reference[:1]), difference(losses, reference)
    of_forms = [group[0]["losses"] for group in torch.values()]
    forms = max(difference(a, b) for a in of_forms for b in of_forms)
    tolerance = TOLERANCE[cell.precision]
    agree = first <= tolerance and apart <= max(tolerance, forms)
    ratio = statistics.median(rates["Trireme"]) / statistics.median(rates[best])
    memory = (
        f"{statistics.median(row['peak_bytes'] for row in found[name]) / 2**30:.2f}"
        for name in ("Trireme", best)
    )
    line = [
        *(cell.model.title, cell.precision, cell.layout.replace("x", " x ")),
        *(with_range(rates["Trireme"]), with_range(rates[best]), best.removeprefix("PyTorch ")),
        *(f"{ratio:.2f}" if agree else "none", ", ".join(memory)),
        f"{first:.0e}, {apart:.0e}, {forms:.0e}",
    ]
    return line, agree


def print_table(cells, rows):
    """Prints the table. Returns whether every cell is in it and all losses agree."""
    found = {cell.name: line_of(cell, rows) for cell in cells}
    lines = {name: line for name, (line, _) in found.items()}
    complete = results.print_table(HEADS, lines, rows)
    return complete and all(agree for _, agree in found.values())


def add_options(parser):
    results.add_options(parser, CELL_OPTIONS["cells"], CELL_OPTIONS["results"])
    parser.set_defaults(**dict.fromkeys(CELL_OPTIONS))  # None: not on the command line
    parser.add_argument("--deck", type=pathlib.Path, help="train this model in PyTorch instead")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the deck"
    )


def read_options(given):
    """Fills in the defaults of the options of cells. Ends the script with a message if an option
    would have no effect."""
    if given.set and not given.deck:
        given.error("--set changes a key of a deck; name the deck: --deck FILE")
    for name, default in CELL_OPTIONS.items():
        if getattr(given, name) is None:
            setattr(given, name, default)
        elif given.deck:
            given.error(
                f"--{name} is for cells, but --deck trains one deck once; leave one of them out"
            )


def run(given):
    read_options(given)
    if given.deck:
        find_program(given)
        require("torch", "numpy", "h5py")
        from compare import torch_deck

        return torch_deck.run(given)
    cells, file = results.read_options(
        given, parse_cells, VALUES, packages=("torch", "numpy"), torch=results.is_text
    )
    further = {}
    if not given.table:
        import torch

        further = {"torch": torch.__version__}
    measures = [(cell.name, cell.programs, functools.partial(measure, cell)) for cell in cells]
    rows = results.measure_cells(given, file, further, measures)
    return 0 if print_table(cells, rows) else 1
