#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two ranks of one thread with one rank of two threads and with two unconnected processes.

  scripts/compare_ranks.py [--cells CELL,...] [--rounds 2] [--results FILE]
  scripts/compare_ranks.py --table [--results FILE]

A cell is MODEL:PRECISION, as in resnet18:float32. Each part may be "all". The models are those of
compared_models.py: tiny, resnet18, resnet50, gpt, gpt2 and llama (the last two take up to 20 GiB of
memory), with weights that the program draws. Three layouts train on two cores:

- threads: one rank with two threads
- ranks: two ranks of one thread, which share the batch
- processes: two processes of one rank and one thread at once, each with half of the batch

Processes exchange nothing, so they are the limit for ranks. This limit is slightly too high: the
slower process makes its last steps alone, while the other has ended. A rank is bound to cores of
its own: the first two that the script may use. These may be two threads of one core; choose others
with `taskset -c`.

Layouts take turns in each round. The rate counts the samples of all ranks or processes; it is the
median over pieces of a few steps, after the first two pieces. Exposed communication is
comm_exposed_s of metrics.jsonl (docs/reference/metrics.md) on rank 0; it is the mean of the same
steps. Every measurement appends a row to FILE (default: build/compare_ranks.jsonl), and one that is
in the file is not repeated; so an interrupted script resumes. Rows of other programs, machines,
cores, launchers (MPIEXEC) and --pieces are left out. The table has medians over rounds, and the
smallest and largest in brackets. A ratio is that of the medians, then that of the fastest rounds:
other work on the machine only slows down, and two ranks wait for the slower one.

The exit code is 1 if a cell is not in the table, and 2 if the script cannot measure.
"""

import functools
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import training_bench  # noqa: E402
from compared_models import MODELS  # noqa: E402
from training_bench import Layout, with_range  # noqa: E402

PRECISIONS = ("float32", "bfloat16")
LAYOUTS = {
    "threads": Layout(ranks=1, threads=2),
    "ranks": Layout(ranks=2, threads=1),
    "processes": Layout(ranks=1, threads=1, copies=2),
}
PHASES = ("forward_s", "backward_s", "comm_exposed_s", "optimizer_s", "data_s", "step_s")
VALUES = dict.fromkeys(PHASES, training_bench.is_number) | dict.fromkeys(
    ("rate", "step_s"), training_bench.is_positive
)


def measure(model, precision, pieces, bench, program, seconds):
    """Trains a cell in one of the layouts. Returns its rate and the phases of a step in s."""
    layout = LAYOUTS[program]
    skipped = training_bench.WARMUP_PIECES * model.piece
    steps = skipped + pieces * model.piece
    copies = bench.train(model, precision, layout, steps, seconds)
    rate = 0.0
    for rows in copies:
        times = [row["step_s"] for row in rows]
        rates = training_bench.piece_rates(model, model.batch // layout.copies, times)
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


def print_table(cells, rows):
    """Prints the table. Returns whether every cell is in it."""
    missing = []
    print("| model | precision | one rank, two threads | two ranks | two processes", end="")
    print(" | ranks / processes | ranks / threads | exposed communication, ms | of a step, % |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, precision in cells:
        found = {layout: [] for layout in LAYOUTS}
        for row in rows:
            if row["cell"] == f"{name}:{precision}" and "rate" in row and row["program"] in found:
                found[row["program"]].append(row)
        if not all(found.values()):
            missing.append(f"{name}:{precision}")
            continue
        rates = {layout: [row["rate"] for row in group] for layout, group in found.items()}
        exposed = [row["comm_exposed_s"] for row in found["ranks"]]
        parts = [row["comm_exposed_s"] / row["step_s"] for row in found["ranks"]]
        print(
            f"| {MODELS[name].title} | {precision} "
            f"| {with_range(rates['threads'])} | {with_range(rates['ranks'])} "
            f"| {with_range(rates['processes'])} "
            f"| {ratios(rates, 'processes')} | {ratios(rates, 'threads')} "
            f"| {with_range(exposed, 1e3)} | {with_range(parts, 100)} |"
        )
    training_bench.print_broken(rows, [":".join(cell) for cell in cells])
    training_bench.print_missing(missing)
    return not missing


def main():
    parser = training_bench.make_parser(__doc__, "all:all", "build/compare_ranks.jsonl")
    parser.add_argument("--pieces", type=int, help="number that count (default: the model's)")
    given, cells, results = training_bench.read_options(
        parser, lambda text: training_bench.select(text, MODELS, PRECISIONS), VALUES
    )
    if given.pieces is not None and given.pieces < 1:
        parser.error(f"--pieces {given.pieces}: at least 1")
    further = {} if given.table and given.pieces is None else {"pieces": given.pieces}
    measures = []
    for name, precision in cells:
        model = MODELS[name]
        of = functools.partial(measure, model, precision, given.pieces or model.pieces)
        measures.append((f"{name}:{precision}", list(LAYOUTS), of))
    rows = training_bench.measure_cells(given, results, further, measures)
    return 0 if print_table(cells, rows) else 1


if __name__ == "__main__":
    sys.exit(training_bench.run_script(main))
