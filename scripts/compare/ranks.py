# SPDX-License-Identifier: Apache-2.0
"""Compares two ranks of one thread with one rank of two threads and with two unconnected processes.

  scripts/compare.py ranks [--cells CELL,...] [--rounds 2] [--pieces N] [--results FILE]
  scripts/compare.py ranks --table [--results FILE]

A cell is MODEL:PRECISION, as in resnet18:float32. Each part may be "all". gpt2 and llama take up to
20 GiB of memory. The program draws the weights. Three layouts train on two cores:

- threads: one rank with two threads
- ranks: two ranks of one thread, which share the batch
- processes: two processes of one rank and one thread at once, each with half of the batch

Processes exchange nothing, so they are the limit for ranks. This limit is slightly too high: the
slower process makes its last steps alone, while the other has ended.

Layouts take turns in each round. The rate counts the samples of all ranks or processes. Exposed
communication is comm_exposed_s of metrics.jsonl (docs/reference/metrics.md) on rank 0; it is the
mean of the same steps. Rows of other --pieces are left out, too. A ratio is that of the medians,
then that of the fastest rounds: other work on the machine only slows down, and two ranks wait for
the slower one.
"""

import functools
import statistics

from compare import results
from compare.bench import WARMUP_PIECES, Layout, piece_rates
from compare.models import MODELS
from compare.results import with_range

ROUNDS = 2
PRECISIONS = ("float32", "bfloat16")
LAYOUTS = {
    "threads": Layout(ranks=1, threads=2),
    "ranks": Layout(ranks=2, threads=1),
    "processes": Layout(ranks=1, threads=1, copies=2),
}
PHASES = ("forward_s", "backward_s", "comm_exposed_s", "optimizer_s", "data_s", "step_s")
VALUES = dict.fromkeys(PHASES, results.is_number)
VALUES |= {"rate": results.is_positive, "step_s": results.is_positive}
HEADS = (
    *("model", "precision", ">one rank, two threads", ">two ranks", ">two processes"),
    *(">ranks / processes", ">ranks / threads", ">exposed communication, ms", ">of a step, %"),
)


def measure(model, precision, pieces, bench, program, seconds):
    """Trains a cell in one of the layouts. Returns its rate and the phases of a step in s."""
    layout = LAYOUTS[program]
    skipped = WARMUP_PIECES * model.piece
    steps = skipped + pieces * model.piece
    copies = bench.train(model, precision, layout, steps, seconds)
    rate = 0.0
    for rows in copies:
        times = [row["step_s"] for row in rows]
        rates = piece_rates(model, model.batch // layout.copies, times)
        rate += statistics.median(rates)
    phases = {
        key: statistics.mean(row[key] for rows in copies for row in rows[skipped:])
        for key in PHASES
    }
    return {"rate": rate, **phases}


def ratios(rates, other):
    """Returns the ratio of ranks to another layout as text: of medians, then of fastest rounds."""
    values = (of(rates["ranks"]) / of(rates[other]) for of in (statistics.median, max))
    return ", ".join(f"{value:.2f}" for value in values)


def line_of(name, precision, rows):
    """Returns the texts of a cell for the table, None if a layout was not measured."""
    found, _ = results.by_program(rows, f"{name}:{precision}")
    if not found.keys() >= LAYOUTS.keys():
        return None
    rates = {layout: [row["rate"] for row in group] for layout, group in found.items()}
    exposed = [row["comm_exposed_s"] for row in found["ranks"]]
    parts = [row["comm_exposed_s"] / row["step_s"] for row in found["ranks"]]
    return [
        *(MODELS[name].title, precision, *(with_range(rates[layout]) for layout in LAYOUTS)),
        *(ratios(rates, "processes"), ratios(rates, "threads")),
        *(with_range(exposed, 1e3), with_range(parts, 100)),
    ]


def add_options(parser):
    results.add_options(parser, "all:all", "build/compare_ranks.jsonl")
    parser.add_argument("--pieces", type=int, help="number that count (default: the model's)")


def run(given):
    if given.pieces is not None and given.pieces < 1:
        given.error(f"--pieces {given.pieces}: at least 1")
    cells, file = results.read_options(
        given, lambda text: results.select(text, MODELS, PRECISIONS), VALUES
    )
    further = {} if given.table and given.pieces is None else {"pieces": given.pieces}
    measures = []
    for name, precision in cells:
        pieces = given.pieces or MODELS[name].pieces
        of = functools.partial(measure, MODELS[name], precision, pieces)
        measures.append((f"{name}:{precision}", list(LAYOUTS), of))
    rows = results.measure_cells(given, file, further, measures)
    lines = {":".join(cell): line_of(*cell, rows) for cell in cells}
    return 0 if results.print_table(HEADS, lines, rows) else 1
