# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of large batches into their guide, from the results alone.

A table is the text between the lines `<!-- large batch: NAME -->` and `<!-- end of large batch -->`
of docs/guides/large_batch.md. All other text is written by hand and stays.
"""

import re
import sys

from plan import missing
from study import RULES

PAGE = "guides/large_batch.md"
BLOCK = re.compile(r"(<!-- large batch: ([\w ]+) -->\n)(.*?)(<!-- end of large batch -->\n)", re.S)
NONE = "-"  # not trained yet


def percent(value):
    return "diverged" if not value else f"{100 * value:.2f}"


def spread(cell, results, split="test"):
    """Returns the mean with the least and largest value, or how many seeds exist."""
    values = cell.accuracies(results, split)
    if not values:
        return NONE
    text = percent(sum(values) / len(values))
    if len(values) < len(cell.seeds):
        return f"{text} ({len(values)} of {len(cell.seeds)} seeds)"
    if len(values) == 1:
        return f"{text} (one seed)"
    return f"{text} ({percent(min(values))} to {percent(max(values))})"


def describe(run):
    """Returns the values of a run that its grid chooses."""
    words = [f"rate {run.rate:g}"]
    if run.kind == "sgd":
        words.append(f"decay {run.weight_decay:g}")
    if run.trust is not None:
        words.append(f"trust {run.trust:g}")
    if run.beta2 is not None:
        words.append(f"beta2 {run.beta2:g}")
    return ", ".join(words)


def markdown(head, align, rows):
    lines = ["| " + " | ".join(line) + " |" for line in [head] + rows]
    lines.insert(1, "|" + "|".join(align) + "|")
    return "\n".join(lines) + "\n"


def picture(cells, results):
    """Returns the link to the picture that scripts/figures/make.py draws, or a note."""
    points = [*cells.baseline.values(), *cells.curve.values()]
    if not any(cell.accuracies(results) for cell in points):
        return "The picture follows with the first measured point.\n"
    return "![Test accuracy over the epochs](../figures/large_batch_curve.svg)\n"


def bar_rows(cells, results):
    """Yields (batch, epochs, name, cell, points) of both bars; the baseline has no points."""
    for batch, epochs, points in cells.study.bars:
        yield cells.study.base, epochs, "SGD", cells.baseline[epochs], None
        for kind in ("lars", "lamb"):
            cell = cells.bar[kind, epochs]
            if cell.candidates(results):
                yield batch, epochs, cell.name, cell, points
        if epochs == cells.moved.epochs:
            winner = cells.moved.winner(results)
            name = winner.kind.upper() if winner else cells.moved.name
            yield batch, epochs, f"{name}, values of the first bar", cells.moved, points


def bar(cells, results):
    rows = []
    for batch, epochs, name, cell, points in bar_rows(cells, results):
        below, said = None, ""
        if points is not None:
            below = cells.below(cell, epochs, results, "test")
            said = NONE if below is None else f"{below:.2f}"
        allowed = "" if points is None else f"{points:.1f}"
        winner = cell.winner(results)
        train = results.train.get(winner.key) if winner else None
        steps = str(train["steps"]) if train else NONE
        chosen = describe(winner) if winner else NONE
        rows.append(
            [str(epochs), str(batch), steps, name, chosen]
            + [spread(cell, results, "validation"), spread(cell, results), said, allowed]
        )
    head = ["epochs", "batch", "steps", "optimizer", "chosen by validation", "validation, %"]
    head += ["test, %", "points below batch 256", "allowed"]
    align = ["---:", "---:", "---:", "---", "---", "---", "---", "---:", "---:"]
    return markdown(head, align, rows)


def table(cells, results):
    rows = []
    for rule in RULES:
        texts = [spread(cells.table[rule, batch], results) for batch in cells.study.batches]
        rows.append([rule] + texts)
    head = ["rule"] + [f"batch {batch}" for batch in cells.study.batches]
    return markdown(head, ["---"] * len(head), rows)


def curve(cells, results):
    rows = []
    for epochs in cells.study.curve_epochs:
        row = [str(epochs), spread(cells.baseline[epochs], results)]
        for batch in cells.study.curve_batches:
            for kind in ("sgd", "layerwise"):
                row.append(spread(cells.curve[kind, batch, epochs], results))
        rows.append(row)
    head = ["epochs", f"{cells.study.base}, SGD"]
    for batch in cells.study.curve_batches:
        head += [f"{batch}, SGD linear", f"{batch}, LARS or LAMB"]
    return markdown(head, ["---:"] + ["---"] * (len(head) - 1), rows)


def conditions(cells, results):
    """What the rows say about the measurement, and how much of it exists."""
    rows = [*results.train.values(), *results.test.values()]
    said = [["trainings", f"{len(results.train)} done"]]
    for stage, runs in missing(cells.stages(), results):
        said.append([f"missing of {stage}", f"at most {len(runs)}" if runs else "none"])
    if rows:
        dates = sorted(row["date"][:10] for row in rows)
        said.append(["dates", dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"])
        said.append(["machine", "; ".join(sorted({row["machine"] for row in rows}))])
        said.append(["program", "; ".join(sorted({row["program"] for row in rows}))])
        hours = sum(row["seconds"] for row in results.train.values()) / 3600
        loads = sorted(row["load"] for row in rows)
        said.append(["time of the trainings", f"{hours:.1f} h, one thread each"])
        said.append(["load of the machine", f"{loads[0]:g} to {loads[-1]:g}"])
    return markdown(["condition", "value"], ["---", "---"], said)


def verdict(cells, results):
    """A sentence for each bar: met, missed, or not known. It is missed once all cells are done."""
    lines = []
    for batch, epochs, points in cells.study.bars:
        rows = [r for r in bar_rows(cells, results) if r[1] == epochs and r[4] is not None]
        lost = [
            (below, cell.winner(results).kind.upper())
            for _, _, _, cell, _ in rows
            if (below := cells.below(cell, epochs, results, "test")) is not None
        ]
        text = "not measured yet."
        if lost:
            below, kind = min(lost)
            word = "met" if below <= points else "missed" if len(lost) == len(rows) else "open"
            side = "below" if below >= 0 else "above"
            text = (
                f"{word}. {kind} is {abs(below):.2f} points {side} SGD at {cells.study.base};"
                f" {points:.1f} below are allowed."
            )
        lines.append(f"- Batch {batch}, {epochs} epochs: {text}\n")
    return "".join(lines)


BLOCKS = {
    "bar": bar,
    "table": table,
    "curve": curve,
    "picture curve": picture,
    "conditions": conditions,
    "verdict": verdict,
}


def update(documents, cells, results, write):
    """Writes the tables, or compares them. Returns the exit code."""
    path = documents / PAGE
    text = path.read_text(encoding="utf-8")
    if not BLOCK.search(text):
        print(f"{path}: has no table of large batches", file=sys.stderr)
        return 1
    new = BLOCK.sub(lambda m: f"{m[1]}\n{BLOCKS[m[2]](cells, results)}\n{m[4]}", text)
    if new == text:
        return 0
    if write:
        path.write_text(new, encoding="utf-8")
        return 0
    message = "differs from the results; run scripts/large_batch_table.py --pages"
    print(f"{path}: {message}", file=sys.stderr)
    return 1
