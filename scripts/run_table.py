#!/usr/bin/env python3
"""Prints the table of a run from its metrics.jsonl: run_table.py RUN_FOLDER

One line an epoch: mean training loss, the last validation's loss and accuracy, images a second (of a language model tokens); then the metrics of the test
set, if it was evaluated.
"""

import json
import math
import sys
from pathlib import Path


def read_rows(path):
    """The rows of a run. Of a step that stands twice (it was lost and done again after a restart) the last row counts."""
    trained, evaluated = {}, {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # a torn last line: the program cuts it at the next start
        if row.get("kind") == "event" and row.get("event") == "start":
            trained, evaluated = (
                {},
                {},
            )  # a new run in the same folder: what stands before is the old one's
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
    """The epoch that a row belongs to, from 1 on: what is evaluated at its end belongs to it."""
    return max(1, math.ceil(row["epoch"] - 1e-6))


def table(folder):
    """The lines of the table."""
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
            f"{epoch:>5} {cell(mean(r.get('loss') for r in rows), '.4f'):>11} {cell(seen.get('loss'), '.4f'):>12} "
            f"{cell(seen.get('top1'), '.2%'):>12} {cell(mean(r.get(rate) for r in rows), '.0f'):>10}"
        )
    for row in evaluated:
        if row["split"] == "test":
            lines.append(
                f"test set: accuracy {cell(row.get('top1'), '.2%')}, loss {cell(row.get('loss'), '.4f')}, {row['samples']} samples (step {row['step']})"
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
