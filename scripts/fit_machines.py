#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits machine files to published training runs, and compares predictions with other runs.

- fit_machines.py TRIREME: prints the prediction of every row.
- fit_machines.py TRIREME --fit: fits machines/*.toml to the rows of use "fit" and writes them.
- fit_machines.py TRIREME --pages: writes the table of docs/design/planning.md.
- fit_machines.py TRIREME --other: prints the errors with other assumptions about the runs; takes
  minutes.
- fit_machines.py TRIREME --check: takes seconds, leaves out rows with `slow` and other assumptions.
  Exits with 1 if a machine file differs from its fit, a prediction misses its bar, or the page
  states another error.

Rows and sources: docs/figures/data/published_rows.toml; decks: tests/decks/published.

One number of each machine is fitted: what a run of several ranks loses, `compute` of [scaling]. The
predicted rate of the machine's row is then the measured one. All else in the machine files has
other sources, and no number is fitted to rows of another use. Rows of use "one" are runs on one
GPU, which [scaling] does not change. The number has three digits, so the fitted rate is within
0.1 % of the measured one.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = ROOT / "docs/figures/data/published_rows.toml"
DECKS = ROOT / "tests/decks/published"
PAGE = ROOT / "docs/design/planning.md"
FITTED = r"(\[scaling\]\n(?:[^\[\n].*\n)*?compute = )[0-9.]+"
FIT_TOLERANCE = 0.001
# Of an error on the page, for machines that round otherwise.
PAGE_TOLERANCE = 0.002


def file_of(machine):
    return ROOT / "machines" / (machine + ".toml")


def machine_file(row):
    return file_of(row["machine"])


def predict(program, row, machine=None, sets=()):
    """Returns the prediction of a row, as the JSON of `trireme plan`."""
    command = [program, "plan", str(DECKS / row["deck"]), "--json", "-"]
    command += ["--machine", str(machine or machine_file(row))]
    command += ["--ranks", str(row["ranks"]), "--assume", row["assume"]]
    for key in [*row.get("set", ()), *sets]:
        command += ["--set", key]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit("row %s: %s" % (row["name"], result.stderr.strip()))
    return json.loads(result.stdout)


def published_flops(row, samples):
    """Returns the FLOPs of a step by the formula that the source of a row counts with."""
    with open(DECKS / row["deck"], "rb") as file:
        model = tomllib.load(file)["model"]
    context, width = model["context"], model["width"]
    passes = {"flops_recomputed": 4, "flops_model": 3}[row["unit"]]
    layer = 24 * samples * context * width**2 * (1 + context / (6 * width))
    head = 6 * samples * context * width * model["vocabulary"]
    return passes * model["layers"] * layer + head


def rate_of(row, run):
    """Returns the prediction in the unit of the row; greater is faster, but for seconds."""
    if row["unit"] == "seconds":
        return run["step"]["seconds"]
    if row["unit"] == "samples":
        return run["rate"]["samples_per_s"]
    if row["unit"] == "tokens":
        return run["rate"]["tokens_per_s"] / row["ranks"]
    return published_flops(row, run["batch"]["samples"]) / run["step"]["seconds"] / row["ranks"]


def error_of(row, rate):
    return rate / row["measured"] - 1


def scaling_of(machine):
    """Returns the fitted number of a machine."""
    return tomllib.loads(file_of(machine).read_text())["scaling"]["compute"]


def with_scaling(text, value):
    """Returns the text of a machine file with another fitted number."""
    text, count = re.subn(FITTED, lambda match: match.group(1) + "%.3f" % value, text)
    if count != 1:
        sys.exit("a machine file has no compute in [scaling]")
    return text


class TrialMachine:
    """A copy of a row's machine file with another fitted number."""

    def __init__(self, row):
        self.folder = tempfile.TemporaryDirectory()
        self.text = machine_file(row).read_text()
        self.path = pathlib.Path(self.folder.name) / machine_file(row).name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def at(self, value):
        self.path.write_text(with_scaling(self.text, value))
        return self.path


def fit(program, row, sets=()):
    """Returns the number with which the prediction of a row is closest to the measurement."""
    with TrialMachine(row) as trial:

        def seconds_too_many(value):
            rate = rate_of(row, predict(program, row, trial.at(value), sets))
            return row["measured"] / rate - 1

        # Seconds are nearly linear in 1 / value, so the secant method converges at once.
        old, value = 0.9, 0.6
        old_miss, miss = seconds_too_many(old), seconds_too_many(value)
        for _ in range(8):
            slope = (miss - old_miss) / (1 / value - 1 / old)
            old, old_miss = value, miss
            value = min(1.0, round(1 / (1 / value - miss / slope), 3))
            if value == old:
                return value
            miss = seconds_too_many(value)
    return value


def measured_text(row):
    if row["use"] == "one":
        return " to ".join("{:,.0f}".format(rate) for rate in row["range"])
    return text_of(row, row["measured"])


def error_text(row, rate):
    return "" if row["use"] == "one" else "%+.1f %%" % (100 * error_of(row, rate))


def text_of(row, rate):
    if row["unit"] == "seconds":
        return "%.0f ms" % (1e3 * rate)
    if row["unit"] == "samples":
        return "{:,.0f} images/s".format(rate)
    if row["unit"] == "tokens":
        return "{:,.0f} tokens/s a GPU".format(rate)
    return "%.1f TFLOP/s" % (rate / 1e12)


def bar_text(row):
    if row["use"] == "fit":
        return "fitted"
    if row["use"] == "one":
        return "range"
    return "%.0f %%" % (100 * row["bar"]) if "bar" in row else "none"


def line_of(row, rate):
    """Returns the line of a row in the table of the page."""
    cells = [
        row["name"],
        "%s on %s %s" % (row["model"], "{:,}".format(row["ranks"]), row["machine"].upper()),
        measured_text(row),
        text_of(row, rate),
        error_text(row, rate),
        bar_text(row),
    ]
    return "| " + " | ".join(cells) + " |"


def ratio_of(rows, rates):
    """Returns the measured and the predicted ratio of the rows of use "ratio", last to first, and
    the bar."""
    pair = [row for row in rows if row["use"] == "ratio"]
    first, last = pair[0], pair[-1]
    return (
        last["measured"] / first["measured"],
        rates[last["name"]] / rates[first["name"]],
        last["bar"],
    )


def ratio_line(rows, rates):
    measured, predicted, bar = ratio_of(rows, rates)
    return "| T6 | ratio of 128 to 8 GPUs | %.3f | %.3f | %+.3f | %.2f |" % (
        measured,
        predicted,
        predicted - measured,
        bar,
    )


def main_table(rows, rates):
    lines = ["| row | run | measured | predicted | error | bar |", "|---|---|---:|---:|---:|---:|"]
    for row in rows:
        if row["use"] != "ratio":
            lines.append(line_of(row, rates[row["name"]]))
    return lines + [ratio_line(rows, rates)]


def other_table(program, rows):
    """Returns the table of other assumptions. For a fitted row its machine is fitted anew."""
    lines = ["| row | assumed | scaling | errors |", "|---|---|---:|---|"]

    def add(row, other, scaling, tests, machine, sets):
        rates = [rate_of(test, predict(program, test, machine, sets)) for test in tests]
        errors = [
            "%s %+.1f %%" % (test["name"], 100 * error_of(test, rate))
            for test, rate in zip(tests, rates)
        ]
        cells = [row["name"], other["name"], scaling, ", ".join(errors)]
        lines.append("| " + " | ".join(cells) + " |")

    for row in rows:
        for other in row.get("other", ()):
            if row["use"] != "fit":
                add(row, other, "as above", [row], None, other["set"])
                continue
            value = fit(program, row, other["set"])
            tests = [r for r in rows if r["use"] == "test" and "bar" in r]
            tests = [r for r in tests if r["machine"] == row["machine"]]
            with TrialMachine(row) as trial:
                add(row, other, "%.3f" % value, tests, trial.at(value), ())
    return lines


def replace_table(text, name, lines):
    begin, end = "<!-- table: %s -->" % name, "<!-- end of table -->"
    if begin not in text:
        sys.exit("%s has no line %s" % (PAGE, begin))
    head, rest = text.split(begin, 1)
    return head + begin + "\n\n" + "\n".join(lines) + "\n\n" + end + rest.split(end, 1)[1]


def problems_of(row, rate):
    """Returns what is wrong with a row: its fit, its bar, or the page."""
    if row["use"] == "one":
        low, high = row["range"]
        if not low <= rate <= high:
            yield "row %s: %s, not %s" % (row["name"], text_of(row, rate), measured_text(row))
        if line_of(row, rate) not in PAGE.read_text():
            yield "row %s: %s has no line %s" % (row["name"], PAGE.name, line_of(row, rate))
        return
    error = error_of(row, rate)
    if row["use"] == "fit" and abs(error) > FIT_TOLERANCE:
        yield (
            "machines/%s.toml is not fitted to row %s: predicted %s, measured %s; run "
            "scripts/fit_machines.py TRIREME --fit"
            % (row["machine"], row["name"], text_of(row, rate), text_of(row, row["measured"]))
        )
    for machine in row.get("also", ()):
        if scaling_of(machine) != scaling_of(row["machine"]):
            yield "machines/%s.toml has another scaling than %s" % (machine, row["machine"])
    if row["use"] == "test" and abs(error) > row.get("bar", float("inf")):
        yield "row %s: error %+.1f %%, bar %s" % (row["name"], 100 * error, bar_text(row))
    if row["use"] != "ratio":
        line = r"^\| %s \|.* ([-+][.0-9]+) %% \|[^|]*\|$" % row["name"]
        found = re.search(line, PAGE.read_text(), re.M)
        if not found or abs(float(found.group(1)) / 100 - error) > PAGE_TOLERANCE:
            yield (
                "row %s: error %+.1f %%, but %s says %s; run scripts/fit_machines.py TRIREME "
                "--pages"
                % (row["name"], 100 * error, PAGE.name, found.group(1) if found else "nothing")
            )


def problems(rows, rates):
    """Returns what is wrong with the rows, one line each."""
    found = [problem for row in rows for problem in problems_of(row, rates[row["name"]])]
    measured, predicted, bar = ratio_of(rows, rates)
    if abs(predicted - measured) > bar:
        found.append("row T6: ratio %.3f, measured %.3f" % (predicted, measured))
    if ratio_line(rows, rates) not in PAGE.read_text():
        found.append("row T6: %s has no line %s" % (PAGE.name, ratio_line(rows, rates)))
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", help="the program trireme")
    for mode in ("--fit", "--pages", "--other", "--check"):
        parser.add_argument(mode, action="store_true")
    arguments = parser.parse_args()
    program = arguments.program
    rows = tomllib.loads(ROWS.read_text())["row"]
    if arguments.fit:
        for row in rows:
            if row["use"] == "fit":
                value = fit(program, row)
                for machine in (row["machine"], *row.get("also", ())):
                    file = file_of(machine)
                    file.write_text(with_scaling(file.read_text(), value))
                    print("%s: scaling %.3f" % (machine, value))
        return 0
    if arguments.check:
        rows = [row for row in rows if not row.get("slow")]
    if arguments.other:
        print("\n".join(other_table(program, rows)))
        return 0
    rates = {row["name"]: rate_of(row, predict(program, row)) for row in rows}
    if arguments.check:
        found = problems(rows, rates)
        print("\n".join(found) or "all rows are as they should be")
        return 1 if found else 0
    if not arguments.pages:
        print("\n".join(main_table(rows, rates)))
        return 0
    PAGE.write_text(replace_table(PAGE.read_text(), "published rows", main_table(rows, rates)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
