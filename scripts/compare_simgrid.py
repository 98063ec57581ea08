#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares predicted times of communication with a replay by SimGrid.

- compare_simgrid.py TRIREME: writes the replays of all rows (`trireme plan --simgrid`), runs them,
  and stores predicted and simulated seconds in docs/figures/data/simgrid.json. Needs SimGrid
  (Debian: libsimgrid-dev) and about an hour; --ranks and --kind measure some of the rows anew.
- compare_simgrid.py --pages: writes the table of docs/design/planning.md from this file.
- compare_simgrid.py --check: exits with 1 if the page differs from the file.

A row is one kind of communication of a step: the calls of one group, without compute.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from fit_machines import replace_table  # noqa: E402

DATA = ROOT / "docs/figures/data/simgrid.json"
PAGE = ROOT / "docs/design/planning.md"
DECK = ROOT / "tests/decks/simgrid.toml"
BAR = 0.20  # of a small layout, in tests
RANKS = (64, 512, 4096)
TAPERS = (1, 4)
LAYOUT = ("parallel.tensor=8", "parallel.pipeline=4")
WIDE = ("parallel.tensor=16", "parallel.pipeline=2")
# The kinds of communication: name, group, micro-batches of a replica, keys of the deck. Tensor
# ranks sum after every layer, so one micro-batch of few layers has enough messages.
KINDS = {
    "gradients, rings": ("data", 8, LAYOUT),
    "gradients, tree order": ("data", 8, (*LAYOUT, "run.deterministic=true")),
    "tensor, in a node": ("tensor", 1, (*LAYOUT, "model.layers=4")),
    "tensor, two nodes": ("tensor", 1, (*WIDE, "model.layers=2")),
    "pipeline, gpipe": ("pipeline", 8, (*LAYOUT, "parallel.pipeline_schedule=gpipe")),
    "pipeline, 1f1b": ("pipeline", 8, LAYOUT),
}
RANKS_OF_A_REPLICA = 32


def replay(program, kind, ranks, taper, folder, deck=DECK, machine="a100"):
    """Writes and runs a replay; returns its row."""
    group, micro_batches, keys = KINDS[kind]
    data = ranks // RANKS_OF_A_REPLICA
    command = [program, "plan", str(deck), "--machine", machine, "--ranks", str(ranks)]
    command += ["--assume", "tokens:1000000000,32000", "--json", "-", "--simgrid", str(folder)]
    command += ["--taper", str(taper), "--group", group]
    for key in (*keys, "batch.global=%d" % (micro_batches * data)):
        command += ["--set", key]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(result.stderr.strip())
    plan = json.loads(result.stdout)["simgrid"]
    begin = time.monotonic()
    return {
        "kind": kind,
        "group": group,
        "ranks": ranks,
        "taper": taper,
        "predicted_s": plan["predicted_s"],
        "simulated_s": simulated_seconds(folder),
        "wall_s": round(time.monotonic() - begin, 1),
        "bytes": plan["bytes"],
    }


def simulated_seconds(folder):
    """Runs replay.sh of a folder and returns the simulated time."""
    result = subprocess.run(
        ["sh", str(pathlib.Path(folder) / "replay.sh")], capture_output=True, text=True
    )
    found = re.search(r"Simulation time ([0-9.e+-]+)", result.stdout + result.stderr)
    if result.returncode != 0 or not found:
        sys.exit("%s: %s" % (folder, (result.stdout + result.stderr)[-2000:]))
    return float(found.group(1))


def load():
    return json.loads(DATA.read_text()) if DATA.exists() else []


def measure(program, kinds, ranks):
    if not shutil.which("smpirun"):
        sys.exit("compare_simgrid.py: smpirun is missing; install SimGrid (libsimgrid-dev)")
    rows = {(row["kind"], row["ranks"], row["taper"]): row for row in load()}
    for count in ranks:
        for kind in kinds:
            for taper in TAPERS:
                with tempfile.TemporaryDirectory() as folder:
                    row = replay(program, kind, count, taper, folder)
                rows[kind, count, taper] = row
                print(row, flush=True)
                order = [(k, n, t) for k in KINDS for n in RANKS for t in TAPERS]
                kept = [rows[key] for key in order if key in rows]
                partial = DATA.with_suffix(".tmp")
                partial.write_text(json.dumps(kept, indent=1) + "\n")
                partial.replace(DATA)


def milliseconds(row):
    return "%.3g" % (1e3 * row["predicted_s"]) if row else "-"


def error_of(row):
    """Returns how much longer the simulated time is than the predicted one."""
    return "%+.1f %%" % (100 * (row["simulated_s"] / row["predicted_s"] - 1)) if row else "-"


def table(rows):
    """Returns the lines of the table: a row for each kind, with the values at all RANKS."""
    counts = " / ".join(f"{ranks:,}" for ranks in RANKS)
    lines = [
        "| communication on %s ranks | predicted, ms | no taper | 4:1 |" % counts,
        "|---|---:|---:|---:|",
    ]
    by_key = {(row["kind"], row["ranks"], row["taper"]): row for row in rows}
    for kind in KINDS:
        cells = [[by_key.get((kind, ranks, taper)) for ranks in RANKS] for taper in TAPERS]
        texts = [kind, " / ".join(milliseconds(row) for row in cells[0])]
        texts += [" / ".join(error_of(row) for row in taper) for taper in cells]
        lines.append("| " + " | ".join(texts) + " |")
    return lines


def page_of(rows):
    return replace_table(PAGE.read_text(), "simgrid", table(rows))


def check():
    if page_of(load()) == PAGE.read_text():
        return 0
    print("%s differs from %s; run --pages" % (PAGE, DATA), file=sys.stderr)
    return 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("program", nargs="?", help="the program trireme")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, choices=RANKS)
    parser.add_argument("--kind", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--pages", action="store_true", help="write the table of the page")
    parser.add_argument("--check", action="store_true", help="check the page")
    arguments = parser.parse_args()
    if arguments.pages:
        PAGE.write_text(page_of(load()))
    elif arguments.check:
        return check()
    elif arguments.program is None:
        parser.error("name the program trireme, or use --pages or --check")
    else:
        measure(arguments.program, arguments.kind, arguments.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
