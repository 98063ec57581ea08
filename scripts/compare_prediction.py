#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the step times that `trireme plan` predicts for this machine with measured ones.

  scripts/compare_prediction.py [--trireme build/release/bin/trireme] [--rounds 3] [--steps 14]
      [--folder FOLDER] [--only NAME,...]

Each round measures the machine (`bench gemm`, `conv`, `ops` and, on two ranks, `comm`) into a
machine file of its own, and then trains every deck for a few steps with that file as
`monitor.machine`. So predictions and runs take turns. A rank has one thread. A prediction is
`step.seconds` of the run's prediction.json; a measurement is the median `step_s` of the steps after
the first four. The table has the median over the rounds, and the smallest and largest in brackets.

A round takes several minutes on two cores, which must be free of other work.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

from compared_models import DECK_OF_FORM
from deck_text import deck_text

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST_STEPS = 4  # not counted
MARK = "made_by_compare_prediction"  # a file in folders that the script has made
SIDE, IMAGES, CLASSES = 28, 4096, 10

COMMON = {
    "run.walltime": "none",
    "data.workers": 1,
    "optimizer.kind": "sgd",
    "optimizer.momentum": 0.9,
    "schedule.kind": "constant",
    "schedule.rate": 0.01,
    "checkpoint.every": "1000 epochs",
    "checkpoint.best": "none",
    "monitor.every": "1 step",
    "monitor.tensorboard": False,
    "health.spike_ratio": 0.0,
}
RESNET = {"model.kind": "resnet", "model.stem": "small", "data.train": "data/images"}
GPT = {
    "model.kind": "gpt",
    "model.heads": 4,
    "model.context": 256,
    "data.train": "data/text",
    "optimizer.kind": "adamw",
}
LLAMA = {**GPT, "model.layers": 4, "model.width": 256, **DECK_OF_FORM["llama"]}
# name: (ranks, what it is, keys)
DECKS = {
    "resnet18": (
        1,
        "ResNet-18 of width 32, accumulation of 2",
        {**RESNET, "model.depth": 18, "model.width": 32, "batch.global": 64, "batch.micro": 32},
    ),
    "resnet8": (
        2,
        "ResNet-8 of width 16",
        {**RESNET, "model.depth": 8, "model.width": 16, "batch.global": 128, "batch.micro": 64},
    ),
    "gpt": (
        1,
        "GPT 4 x 256, all recomputed",
        {
            **{**GPT, "model.layers": 4, "model.width": 256, "parallel.recompute": "all"},
            **{"batch.global": 4, "batch.micro": 4},
        },
    ),
    "gpt4": (
        4,
        "GPT 2 x 128, accumulation of 2",
        {
            **{**GPT, "model.layers": 2, "model.width": 128},
            **{"batch.global": 16, "batch.micro": 2},
        },
    ),
    "tensor": (
        2,
        "Llama form 4 x 256, tensor ranks",
        {**LLAMA, "parallel.tensor": 2, "batch.global": 4, "batch.micro": 4},
    ),
    "pipeline": (
        2,
        "Llama form 4 x 256, pipeline of 4 micro-batches",
        {**LLAMA, "parallel.pipeline": 2, "batch.global": 8, "batch.micro": 2},
    ),
}


class Comparison:
    def __init__(self, trireme, folder, steps):
        self.trireme, self.folder, self.steps = pathlib.Path(trireme).resolve(), folder, steps
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def call(self, *words, ranks=1):
        launcher = ["mpirun", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
        words = [*launcher, str(self.trireme), *map(str, words)]
        found = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        if found.returncode != 0:
            raise SystemExit(f"{' '.join(words)}: exit {found.returncode}\n{found.stderr[-2000:]}")

    def make_data(self):
        """Makes random images, and bytes of the documents as tokens."""
        draw = random.Random(1)
        with open(self.folder / "images", "wb") as file:
            file.write(struct.pack(">4I", 0x803, IMAGES, SIDE, SIDE))
            file.write(draw.randbytes(IMAGES * SIDE * SIDE))
        with open(self.folder / "labels", "wb") as file:
            file.write(struct.pack(">2I", 0x801, IMAGES))
            file.write(bytes(draw.randrange(CLASSES) for _ in range(IMAGES)))
        self.call("shard", "idx", "images", "labels", "--out", "data/images")
        texts = sorted((ROOT / "docs").rglob("*.md"))
        self.call("shard", "text", *texts, "--out", "data/text")

    def measure_machine(self, file):
        for subject in ("gemm", "conv", "ops"):
            self.call("bench", subject, "--machine-out", file)
        self.call("bench", "comm", "--machine-out", file, ranks=2)

    def train(self, name, machine):
        """Returns predicted and measured seconds of a step."""
        ranks, _, values = DECKS[name]
        values = {"run.name": name, "run.folder": f"runs/{name}", **COMMON, **values}
        if values["optimizer.kind"] == "adamw":
            del values["optimizer.momentum"]
        values |= {"run.stop": f"{self.steps} steps", "monitor.machine": f"./{machine}"}
        (self.folder / f"{name}.toml").write_text(deck_text(values), encoding="utf-8")
        shutil.rmtree(self.folder / "runs" / name, ignore_errors=True)
        self.call("train", f"{name}.toml", ranks=ranks)
        run = self.folder / "runs" / name
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        seconds = [row["step_s"] for row in rows if row["kind"] == "train"][FIRST_STEPS:]
        predicted = json.loads((run / "prediction.json").read_text())["step"]["seconds"]
        return predicted, statistics.median(seconds)


def with_range(values):
    values = [1e3 * value for value in values]
    return f"{statistics.median(values):.1f} [{min(values):.1f}, {max(values):.1f}]"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trireme", default=ROOT / "build/release/bin/trireme")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--folder", type=pathlib.Path, help="kept; default: a temporary one")
    parser.add_argument("--only", default=",".join(DECKS), help="decks, between commas")
    given = parser.parse_args()
    names = given.only.split(",")
    unknown = [name for name in names if name not in DECKS]
    if unknown:
        parser.error(f"--only: unknown deck {unknown[0]}; known: {', '.join(DECKS)}")
    if given.rounds < 1 or given.steps <= FIRST_STEPS:
        parser.error(f"--rounds must be at least 1, --steps at least {FIRST_STEPS + 1}")
    if not os.access(given.trireme, os.X_OK) or os.path.isdir(given.trireme):
        parser.error(f"--trireme {given.trireme}: is not built")
    folder = given.folder or pathlib.Path(tempfile.mkdtemp(prefix="prediction-"))
    if folder.exists() and not folder.is_dir():
        parser.error(f"--folder {folder}: a file has this name")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        parser.error(
            f"--folder {folder}: holds files that this script has not made; name a new one"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()
    try:
        comparison = Comparison(given.trireme, folder.resolve(), given.steps)
        if not (folder / "data/text").exists():
            comparison.make_data()
        found = {name: ([], []) for name in names}
        for number in range(given.rounds):
            machine = f"machine_{number}.toml"
            if not (folder / machine).exists():
                comparison.measure_machine(f"{machine}.partial")
                (folder / f"{machine}.partial").rename(folder / machine)
            for name in names:
                predicted, measured = comparison.train(name, machine)
                print(
                    f"round {number + 1}, {name}: predicted {1e3 * predicted:.1f} ms, measured"
                    f" {1e3 * measured:.1f} ms, ratio {predicted / measured:.2f}",
                    file=sys.stderr,
                    flush=True,
                )
                found[name][0].append(predicted)
                found[name][1].append(measured)
    finally:
        if given.folder is None:
            shutil.rmtree(folder)
    print("| deck | ranks | predicted, ms | measured, ms | ratio of medians |")
    print("|---|---:|---:|---:|---:|")
    for name in names:
        ranks, text, _ = DECKS[name]
        predicted, measured = found[name]
        ratio = statistics.median(predicted) / statistics.median(measured)
        print(
            f"| {text} | {ranks} | {with_range(predicted)} | {with_range(measured)} | {ratio:.2f} |"
        )


if __name__ == "__main__":
    main()
