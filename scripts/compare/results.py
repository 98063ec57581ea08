# SPDX-License-Identifier: Apache-2.0
"""Measures cells in turns, keeps each measurement as a row of a file, and prints tables.

A command that is interrupted resumes: measurements that are in the file are not repeated.
"""

import functools
import hashlib
import json
import math
import os
import pathlib
import platform
import shutil
import statistics
import sys
import tempfile
import time

from compare.bench import Bench
from compare.models import MODELS
from compare.processes import (
    LAUNCHER,
    Broken,
    OutOfTime,
    find_launcher,
    find_program,
    require,
    version_of,
)

CORES = 2  # that each measurement uses
MAX_SECONDS = 900  # of one cell
AGAIN = "start the command again to go on"


# --- tables --------------------------------------------------------------------------------------


def with_range(values, scale=1.0, digits=1):
    """Returns the median as text, and in brackets the smallest and the largest value."""
    low, middle, high = (
        f"{scale * value:.{digits}f}"
        for value in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} [{low}, {high}]"


def print_lines(heads, lines):
    """Prints a table. A column whose head begins with ">" is for numbers."""
    print("| " + " | ".join(head.removeprefix(">") for head in heads) + " |")
    print("|" + "|".join("---:" if head.startswith(">") else "---" for head in heads) + "|")
    for line in lines:
        print("| " + " | ".join(line) + " |")


def print_table(heads, lines, rows):
    """Prints a table, the rows of programs that failed, and the cells without a line. `lines`: by
    the name of the cell, None if it has none. Returns whether each cell has one."""
    print_lines(heads, filter(None, lines.values()))
    for row in rows:
        if "broken" in row and row["cell"] in lines:
            print(f"{row['cell']}, {row['program']}: {row['broken']}")
    missing = [name for name, line in lines.items() if line is None]
    if missing:
        print(f"not in the table: {', '.join(missing)}", file=sys.stderr)
    return not missing


# --- rows ----------------------------------------------------------------------------------------


def is_text(value):
    return isinstance(value, str)


def is_number(value):
    return type(value) in (int, float) and math.isfinite(value)


def is_positive(value):
    return is_number(value) and value > 0


# Keys of a row, and functions that return whether their values are right.
ROW = {"cell": is_text, "program": is_text, "round": is_positive}
CONDITIONS = dict.fromkeys(("processor", "trireme", "allocator", "date"), is_text)
# Rows whose values of these differ are not compared. A date does not matter.
COMPARED = ("processor", "cores", "launcher", "torch", "trireme", "allocator", "pieces")


class Results:
    """The rows of a command in a file.

    `values`: what a measurement returns, in the form of ROW. `conditions`: further conditions.
    """

    def __init__(self, path, values, conditions):
        self.path, self.values, self.keys = path, values, ROW | CONDITIONS | conditions

    def is_row(self, row):
        if not isinstance(row, dict):
            return False
        keys = self.keys | ({"broken": is_text} if "broken" in row else self.values)
        return all(is_right(row.get(key)) for key, is_right in keys.items())

    def rows(self):
        """Returns all rows, without an incomplete last line, which a kill leaves. Raises OSError,
        and ValueError if the file has lines of something else."""
        if not self.path.exists():
            return []
        if not self.path.is_file():
            raise ValueError("it is no regular file")
        *lines, rest = self.path.read_text(encoding="utf-8").split("\n")
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                rows.append(None)
            if not self.is_row(rows[-1]):
                raise ValueError(f"line {number} is no row of this command")
        if rest and not rows:
            raise ValueError("it has no row of this command")
        return rows

    def append(self, row):
        """Appends a row, in place of an incomplete last line. Raises OSError."""
        try:
            with open(self.path, "a+b") as file:
                file.seek(0)
                text = file.read()
                if not text.endswith(b"\n"):
                    file.truncate(text.rfind(b"\n") + 1)
                file.write(json.dumps(row).encode() + b"\n")
        except OSError as error:
            raise OSError(f"--results {self.path}: {error}") from error


def by_program(rows, cell):
    """Returns the rows of a cell by program, and the programs that failed."""
    found, broken = {}, set()
    for row in rows:
        if row["cell"] == cell and "broken" in row:
            broken.add(row["program"])
        elif row["cell"] == cell:
            found.setdefault(row["program"], []).append(row)
    return found, broken


def same_conditions(rows, setting):
    """Returns the rows that were measured under the conditions of a setting."""
    return [row for row in rows if all(row.get(key) == setting.get(key) for key in COMPARED)]


def conditions(trireme):
    """Returns what a measurement depends on, and the date. Raises OSError."""
    processor = platform.processor() or platform.machine()
    flags = ""
    if os.path.exists("/proc/cpuinfo"):
        lines = pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        fields = dict(map(str.strip, line.partition(":")[::2]) for line in lines)
        processor = f"{fields.get('model name')}, family {fields.get('cpu family')}"
        processor += f", model {fields.get('model')}"
        wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
        flags = ", ".join(flag for flag in wanted if flag in fields.get("flags", "").split())
    launcher = os.path.realpath(shutil.which(LAUNCHER) or LAUNCHER)
    digest = hashlib.sha256(pathlib.Path(trireme).read_bytes()).hexdigest()[:12]
    allocator = os.environ.get("LD_PRELOAD") or " ".join(platform.libc_ver()) + " malloc"
    return {
        "processor": f"{processor} ({flags})",
        "cores": sorted(os.sched_getaffinity(0))[:CORES],
        "launcher": f"{launcher}, {version_of(LAUNCHER)}",
        "trireme": f"{version_of(trireme)}, sha256 {digest}",
        "allocator": allocator,
        "date": time.strftime("%Y-%m-%d"),
    }


# --- options -------------------------------------------------------------------------------------


def select(text, *choices):
    """Returns the combinations that a list of names selects, such as "gpt:all". Every part of a
    name is "all" or one of its choices. "all" leaves out "tiny". Raises ValueError."""
    found = []
    for name in text.split(","):
        parts = name.split(":")
        if len(parts) != len(choices):
            raise ValueError(f'"{name}" has {len(parts)} of {len(choices)} parts')
        combinations = [()]
        for part, known in zip(parts, choices):
            if part != "all" and part not in known:
                raise ValueError(f'"{part}" in "{name}" is none of all, {", ".join(known)}')
            selected = [key for key in known if key != "tiny"] if part == "all" else [part]
            combinations = [(*before, key) for before in combinations for key in selected]
        found += combinations
    return list(dict.fromkeys(found))


HELP = """
The models are those of scripts/compare/models.py: %s.
A rank is bound to cores of its own: the first that the command may use. These may be two threads of
one core; choose others with `taskset -c`.

Every measurement appends a row to --results FILE (default: %s), and one
that is in the file is not repeated; so an interrupted command resumes. Rows of other programs,
machines, cores and launchers (MPIEXEC) are left out. A rate is the median over pieces of a few
steps, after the first two pieces. The table has medians over rounds, and the smallest and largest
in brackets. The exit code is 1 if a cell is not in the table, and 2 if the command cannot measure.
"""


def add_options(parser, cells, path):
    """Adds the options and the help of a command that measures cells, with their defaults."""
    parser.epilog = HELP % (", ".join(MODELS), path)
    parser.add_argument("--cells", default=cells, help="default: " + cells)
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path(path), metavar="FILE")
    parser.add_argument("--table", action="store_true", help="measures nothing")


def read_options(given, parse_cells, values, packages=(), **conditions):
    """Returns the cells that the options select, and the Results of these values and further
    conditions. Ends the script with a message if an option is wrong, or if it cannot measure: for
    that it needs the Python packages."""
    try:
        cells = parse_cells(given.cells)
    except ValueError as error:
        given.error(f"--cells: {error}")
    results = Results(given.results, values, conditions)
    try:
        rows = results.rows()
    except (OSError, ValueError) as error:
        given.error(f"--results {given.results}: {error}; name a new file")
    if not given.table:
        require(*packages)
        check_machine(given)
    elif not rows:
        given.error(f"--results {given.results}: it has no rows; measure without --table first")
    return cells, results


def check_machine(given):
    """Ends the script with a message if it cannot measure. Makes the folder of the results. A new
    file of results appears with its first row."""
    find_program(given)
    find_launcher(given)
    cores = len(os.sched_getaffinity(0))
    if cores < CORES:
        given.error(f"{CORES} cores are needed; this process may use {cores}")
    try:
        given.results.parent.mkdir(parents=True, exist_ok=True)
        is_new = not os.path.lexists(given.results)
        open(given.results, "ab").close()
        if is_new:
            given.results.unlink()
    except OSError as error:
        given.error(f"--results {given.results}: {error.strerror}; name a file to write to")


# --- measuring -----------------------------------------------------------------------------------


def measure_in_turns(cell, programs, rounds, results, setting, measure):
    """Appends a row for each measurement of a cell that the results lack.

    `measure(program, seconds)` returns the values of a row, of which "rate" is printed.
    """
    rows = [row for row in same_conditions(results.rows(), setting) if row["cell"] == cell]
    known = {(row["program"], row["round"]) for row in rows}
    broken = {row["program"] for row in rows if "broken" in row}
    end = time.monotonic() + MAX_SECONDS
    for number in range(1, rounds + 1):
        # In turns, and each round in the other direction.
        for program in programs if number % 2 else programs[::-1]:
            if (program, number) in known or program in broken:
                continue
            row = {"cell": cell, "program": program, "round": number, **setting}
            try:
                row |= measure(program, end - time.monotonic())
                print(f"{cell}, round {number}, {program}: {row['rate']:.1f}", flush=True)
            except Broken as error:
                row["broken"] = str(error)
                broken.add(program)
                print(f"{cell}, {program}: {error}", flush=True)
            except OutOfTime:
                print(f"{cell}: {MAX_SECONDS} s are over; {AGAIN}")
                return
            results.append(row)


def measure_cells(given, results, further, cells):
    """Measures what the results lack, without --table. Prints a heading for the table and returns
    its rows: those under the conditions of now, or with --table of the last row.

    `further`: conditions of the command, which replace those of the last row. `cells`: for each
    cell its name, its programs and `measure(bench, program, seconds)`, as in measure_in_turns().
    """
    if given.table:
        setting = results.rows()[-1] | further
    else:
        setting = conditions(given.trireme) | further
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            bench = Bench(given.trireme, pathlib.Path(folder))
            try:
                for name, programs, measure in cells:
                    measure = functools.partial(measure, bench)
                    measure_in_turns(name, programs, given.rounds, results, setting, measure)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(AGAIN) from None
    rows = same_conditions(results.rows(), setting)
    if rows:
        last = rows[-1]
        torch = [f"PyTorch {last['torch']}"] if "torch" in last else []
        words = [last["processor"], *torch, last["trireme"], last["allocator"], last["date"]]
        print("; ".join(words) + "\n")
    return rows
