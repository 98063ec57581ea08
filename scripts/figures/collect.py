# SPDX-License-Identifier: Apache-2.0
"""Collects the data of the pictures from real runs: collect.py DATA-FOLDER RUNS-FOLDER TRIREME

RUNS-FOLDER holds `fashion` (the quickstart's run) and `step2x2` (scripts/figures/README.md says how
it is made). TRIREME is asked for the layout of the mesh, for which RUNS-FOLDER/../data is read.
"""

import json
import pathlib
import re
import subprocess
import sys

STEP = 5


def loss_of(run):
    steps, validation, test = [], [], None
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["kind"] == "train":
            steps.append([round(row["epoch"], 4), round(row["loss"], 4)])
        elif row["kind"] == "evaluate" and row["split"] == "validation":
            validation.append([round(row["epoch"], 4), round(row["loss"], 4), row["top1"]])
        elif row["kind"] == "evaluate" and row["split"] == "test":
            test = row["top1"]
    return {"steps": steps, "validation": validation, "test": test}


def step_of(run):
    """The events of one step, in milliseconds from its first."""
    log = (run / "log.txt").read_text(encoding="utf-8")
    places = dict(re.findall(r"rank (\d+): (stage \d+ data \d+)", log))
    trace = json.loads((run / "trace.json").read_text(encoding="utf-8"))
    events = []
    for event in trace:
        if event["args"].get("step") != STEP:
            continue
        rank, name, at = event["pid"], event["name"], event["ts"] / 1e3
        end = at + event["dur"] / 1e3
        if name in ("forward", "backward"):
            events.append([rank, name, at, end, event["args"]["micro_batch"]])
        elif event.get("cat") == "exchange":
            events.append([rank, name, at, end, -1])
    origin = min(event[2] for event in events)
    layout = re.search(r"layout: (.*)", log)[1]
    return {
        "title": f"One training step of {layout}",
        "ranks": {r: p.replace("data", "replica") for r, p in places.items()},
        "events": [
            [r, n, round(b - origin, 2), round(e - origin, 2), m]
            for r, n, b, e, m in sorted(events)
        ],
    }


def mesh_of(trireme, folder):
    """Returns the data of the mesh figure, from `check` of a language model on 8 ranks."""
    deck = pathlib.Path(__file__).resolve().parents[2] / "inputs/examples/bible_gpt.toml"
    words = ["check", deck, "--ranks", "8", "--set", "batch.micro=2"]
    words += ["--set", "parallel.tensor=2", "--set", "parallel.pipeline=2"]
    text = subprocess.run(
        [pathlib.Path(trireme).resolve(), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    check = dict(line.split(None, 1) for line in text.splitlines() if "  " in line)
    numbers = [int(n) for n in re.findall(r"\d+", check["layout"])]
    half = "half of each matrix; norms whole"
    return {
        "title": f"A language model on {check['layout'].replace(' x ', ' × ')}",
        "lines": [check["model"], f"A step: {check['step'].replace(' x ', ' × ')}."],
        "shape": {"data": numbers[1], "tensor": numbers[2], "pipeline": numbers[3]},
        "stages": ["embedding, layers 0 and 1", "layers 2 and 3, head, loss"],
        "samples": ["samples 0 to 7", "samples 8 to 15"],
        "holds": [[half] * numbers[2]] * numbers[3],
    }


def main():
    data, runs, trireme = (
        pathlib.Path(sys.argv[1]),
        pathlib.Path(sys.argv[2]).resolve(),
        sys.argv[3],
    )
    data.mkdir(parents=True, exist_ok=True)
    for name, value in (
        ("quickstart_loss", loss_of(runs / "fashion")),
        ("step_2x2", step_of(runs / "step2x2")),
        ("mesh", mesh_of(trireme, runs.parent)),
    ):
        text = json.dumps(value, indent=1)
        text = re.sub(
            r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text
        )
        (data / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
