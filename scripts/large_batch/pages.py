# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of large batches into their guide, from the results alone.

A table is the text between the lines `<!-- large batch: NAME -->` and `<!-- end of large batch -->`
of docs/guides/large_batch.md. All other text is written by hand and stays.
"""

import re
import sys

PAGE = "guides/large_batch.md"
BLOCK = re.compile(r"(<!-- large batch: ([\w ]+) -->\n)(.*?)(<!-- end of large batch -->\n)", re.S)


def percent(values):
    """Returns the mean with the least and largest value."""
    text = f"{100 * sum(values) / len(values):.2f}"
    if len(values) == 1:
        return f"{text} (one seed)"
    return f"{text} ({100 * min(values):.2f} to {100 * max(values):.2f})"


def describe(run):
    """Returns the values of a run that its tries choose."""
    words = [f"rate {run.rate:g}" + ("" if run.scaling == "none" else f" {run.scaling}")]
    words += [f"decay {run.weight_decay:g}"]
    words += [f"trust {run.trust:g}"] if run.trust is not None else []
    return ", ".join(words)


def noise_of(row, results):
    """Returns the mean noise scale of the winner's runs, in samples, or None."""
    found = [results.train[run.key].get("noise_scale") for run in row.finals(results)]
    found = [value for value in found if value]
    return sum(found) / len(found) if found else None


def points_below(rows, row, results):
    """Returns the points of test accuracy by which a row is below its row of batch 256, or None."""
    if row.below is None or not rows[row.below].is_complete(results):
        return None
    of_base, own = (r.accuracies(results) for r in (rows[row.below], row))
    return 100 * (sum(of_base) / len(of_base) - sum(own) / len(own))


def table(study, rows, results):
    lines = []
    for row in rows.values():
        if not row.is_complete(results):
            continue
        run = row.winner(results)
        below = points_below(rows, row, results)
        noise = noise_of(row, results)
        lines.append(
            [row.name, str(results.train[run.key]["steps"]), describe(run)]
            + ["" if noise is None else f"{noise:.0f}"]
            + [percent(row.accuracies(results, split)) for split in ("validation", "test")]
            + ["" if below is None else f"{below:.2f}", "" if below is None else f"{row.allowed}"]
        )
    head = ["batch", "steps", "chosen by validation", "noise scale, samples", "validation, %"]
    head += ["test, %", "points below 256", "allowed"]
    align = ["---", "---:", "---", "---:", "---", "---", "---:", "---:"]
    return (
        "\n".join("| " + " | ".join(line) + " |" for line in [head])
        + "\n"
        + ("|" + "|".join(align) + "|\n")
        + "".join("| " + " | ".join(line) + " |\n" for line in lines)
    )


def conditions(study, rows, results):
    """What the results say about the measurement, and which rows are not done."""
    done = [*results.quarter.values(), *results.train.values(), *results.test.values()]
    missing = [row.name for row in rows.values() if not row.is_complete(results)]
    said = [["rows that are not done", "; ".join(missing) or "none"]]
    if done:
        dates = sorted(row["date"][:10] for row in done)
        said.append(["dates", dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"])
        said.append(["machine", "; ".join(sorted({row["machine"] for row in done}))])
        said.append(["program", "; ".join(sorted({row["program"] for row in done}))])
        hours = sum(row.get("seconds", 0) for row in done) / 3600
        said.append(["time of the trainings", f"{hours:.1f} h, one thread each"])
    lines = [["condition", "value"], ["---", "---"], *said]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines).replace("| --- ", "|---", 1)


def steps_for(accuracy, known):
    """Returns the steps for an accuracy between two of `known`, (steps, accuracy) by steps, linear
    in the logarithm of the steps; or None."""
    for (fewer, low), (more, high) in zip(known, known[1:]):
        if low <= accuracy <= high:
            return fewer * (more / fewer) ** ((accuracy - low) / (high - low))
    return None


def muon(study, rows, results):
    """How many times the steps of Muon LARS needs for the same test accuracy."""
    mean = {}
    for row in rows.values():
        run = row.winner(results) if row.is_complete(results) and len(row.seeds) > 1 else None
        if run is not None and run.rows == study.constant(study.large):
            accuracies = row.accuracies(results)
            steps = results.train[run.key]["steps"]
            mean.setdefault(run.kind, {})[steps] = sum(accuracies) / len(accuracies)
    lines = [["steps of Muon", "test, %", "steps of LARS for it", "times as many"]]
    lines.append(["---:", "---:", "---:", "---:"])
    for steps, accuracy in sorted(mean.get("muon", {}).items()):
        needed = steps_for(accuracy, sorted(mean.get("lars", {}).items()))
        if needed is not None:
            said = [f"{100 * accuracy:.2f}", f"{needed:.0f}", f"{needed / steps:.2f}"]
            lines.append([str(steps), *said])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


BLOCKS = {"table": table, "conditions": conditions, "muon": muon}


def update(documents, study, results, write):
    """Writes the tables, or compares them. Returns the exit code."""
    path, rows = documents / PAGE, study.rows()
    text = path.read_text(encoding="utf-8")
    if not BLOCK.search(text):
        print(f"{path}: has no table of large batches", file=sys.stderr)
        return 1
    new = BLOCK.sub(lambda m: f"{m[1]}\n{BLOCKS[m[2]](study, rows, results)}\n{m[4]}", text)
    if new == text:
        return 0
    if write:
        path.write_text(new, encoding="utf-8")
        return 0
    message = "differs from the results; run scripts/large_batch_table.py --pages"
    print(f"{path}: {message}", file=sys.stderr)
    return 1
