#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the table of a run from its metrics.jsonl: run_table.py RUN_FOLDER

One line for each epoch: mean training loss, loss and accuracy of the last validation, images
(language model: tokens) per second. Then the metrics of the test set, if it was evaluated.
"""

import json
import math
import sys
from pathlib import Path


def read_rows(path):
    """Returns the rows of a run. If a step occurs twice (repeated after a restart), the last row
    counts."""
    trained, evaluated = {}, {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # an incomplete last line; the program removes it at the next start
        if row.get("kind") == "event" and row.get("event") == "start":
            # A new run in the same folder: earlier rows belong to the old one.
            trained, evaluated = ({}, {})
        elif row.get("kind") == "train":
            trained[row["step"]] = row
        elif row.get("kind") == "evaluate":
            evaluated[row["step"], row["split"]] = row
    return list(trained.values()), list(evaluated.values())


def mean(values):
    values = [v for v in values if v is not None]
    return sum(values) / len(values) if values else None


def cell(value, form):
    return "-" if value is None else format(value, form)


def epoch_of(row):
    """Returns the epoch of a row, from 1 on. An evaluation at the end of an epoch belongs to it."""
    return max(1, math.ceil(row["epoch"] - 1e-6))


def table(folder):
    """Returns the lines of the table."""
    trained, evaluated = read_rows(Path(folder) / "metrics.jsonl")
    epochs = {}
    for row in trained:
        epochs.setdefault(epoch_of(row), []).append(row)
    validation = {epoch_of(row): row for row in evaluated if row["split"] == "validation"}
    unit, rate = (
        ("tokens/s", "tokens_per_s")
        if any("tokens_per_s" in row for row in trained)
        else ("images/s", "samples_per_s")
    )
    lines = [f"{'epoch':>5} {'train loss':>11} {'valid. loss':>12} {'valid. top1':>12} {unit:>10}"]
    for epoch in sorted(set(epochs) | set(validation)):
        rows, seen = epochs.get(epoch, []), validation.get(epoch, {})
        lines.append(
            f"{epoch:>5} {cell(mean(r.get('loss') for r in rows), '.4f'):>11} "
            f"{cell(seen.get('loss'), '.4f'):>12} "
            f"{cell(seen.get('top1'), '.2%'):>12} "
            f"{cell(mean(r.get(rate) for r in rows), '.0f'):>10}"
        )
    for row in evaluated:
        if row["split"] == "test":
            lines.append(
                f"test set: accuracy {cell(row.get('top1'), '.2%')}, loss "
                f"{cell(row.get('loss'), '.4f')}, {row['samples']} samples (step {row['step']})"
            )
    return lines


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(2)
    if not (Path(sys.argv[1]) / "metrics.jsonl").is_file():
        print(
            f"{sys.argv[1]}: no metrics.jsonl there; give the folder of a run (runs/<name>)",
            file=sys.stderr,
        )
        sys.exit(2)
    print("\n".join(table(sys.argv[1])))
