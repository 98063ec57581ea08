# SPDX-License-Identifier: Apache-2.0
"""Compares the step times that `trireme plan` predicts for this machine with measured ones.

  scripts/compare.py prediction [--rounds 3] [--steps 14] [--folder FOLDER] [--only NAME,...]

Each round measures the machine (`bench gemm`, `conv`, `ops` and, on two ranks, `comm`) into a
machine file of its own, and then trains every deck for a few steps with that file as
`monitor.machine`. So predictions and runs take turns. A rank has one thread. A prediction is
`step.seconds` of the run's prediction.json; a measurement is the median `step_s` of the steps after
the first four. The table has the median over the rounds, and the smallest and largest in brackets.

A round takes several minutes on two cores, which must be free of other work.
"""

import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile

from compare.bench import Bench, train_rows
from compare.models import DECK_OF_FORM, Images, Tokens
from compare.processes import LAUNCHER, call, find_launcher, find_program
from compare.results import print_lines, with_range
from deck_text import deck_text

ROUNDS = 3
FIRST_STEPS = 4  # not counted
MARK = "made_by_compare_prediction"  # a file in folders that this command has made
CONTEXT = 256
DATA = (
    Images("images", "", 8, "small", side=28, channels=1, batch=512, piece=1, pieces=1),
    Tokens("tokens", "", 1, 1, 1, CONTEXT, vocabulary=256, batch=64, piece=1, pieces=1),
)
COMMON = {
    "run.walltime": "none",
    "data.workers": 1,
    "schedule.kind": "constant",
    "schedule.rate": 0.01,
    "checkpoint.every": "1000 epochs",
    "checkpoint.best": "none",
    "monitor.every": "1 step",
    "monitor.tensorboard": False,
    "health.spike_ratio": 0.0,
}


def resnet(depth, width, batch, micro):
    sizes = {"model.depth": depth, "model.width": width, "model.stem": "small"}
    optimizer = {"optimizer.kind": "sgd", "optimizer.momentum": 0.9}
    batches = {"batch.global": batch, "batch.micro": micro}
    return {"model.kind": "resnet", "data.train": "images/data", **sizes, **optimizer, **batches}


def gpt(layers, width, batch, micro, form="gpt2", **parallel):
    sizes = {"layers": layers, "heads": 4, "width": width, "context": CONTEXT}
    return {
        **{"model.kind": "gpt", "data.train": "tokens/data", "optimizer.kind": "adamw"},
        **{f"model.{name}": size for name, size in sizes.items()},
        **{"batch.global": batch, "batch.micro": micro},
        **{f"parallel.{name}": value for name, value in parallel.items()},
        **DECK_OF_FORM[form],
    }


# name: (ranks, title, keys)
DECKS = {
    "resnet18": (1, "ResNet-18 of width 32, accumulation of 2", resnet(18, 32, 64, 32)),
    "resnet8": (2, "ResNet-8 of width 16", resnet(8, 16, 128, 64)),
    "gpt": (1, "GPT 4 x 256, all recomputed", gpt(4, 256, 4, 4, recompute="all")),
    "gpt4": (4, "GPT 2 x 128, accumulation of 2", gpt(2, 128, 16, 2)),
    "tensor": (2, "Llama form 4 x 256, tensor ranks", gpt(4, 256, 4, 4, "llama", tensor=2)),
    "pipeline": (
        *(2, "Llama form 4 x 256, pipeline of 4 micro-batches"),
        gpt(4, 256, 8, 2, "llama", pipeline=2),
    ),
}
HEADS = ("deck", ">ranks", ">predicted, ms", ">measured, ms", ">ratio of medians")


class Comparison:
    def __init__(self, trireme, folder, steps):
        self.trireme, self.folder, self.steps = trireme, folder, steps
        bench = Bench(trireme, folder)
        for model in DATA:
            bench.prepare(model)

    def call(self, *words, ranks=1):
        launch = [LAUNCHER, "-n", ranks] if ranks > 1 else []
        call([*launch, self.trireme, *words], variables={"OMPI_MCA_mpi_yield_when_idle": "1"})

    def measured_machine(self, number):
        """Measures the machine once. Returns the file."""
        machine = self.folder / f"machine_{number}.toml"
        if not machine.exists():
            partial = machine.with_suffix(".partial")
            for subject in ("gemm", "conv", "ops"):
                self.call("bench", subject, "--machine-out", partial)
            self.call("bench", "comm", "--machine-out", partial, ranks=2)
            partial.rename(machine)
        return machine

    def train(self, name, machine):
        """Returns predicted and measured seconds of a step."""
        ranks, _, values = DECKS[name]
        run, deck = self.folder / "runs" / name, self.folder / f"{name}.toml"
        values = {"run.name": name, "run.folder": str(run), **COMMON, **values}
        values["data.train"] = str(self.folder / values["data.train"])
        values |= {"run.stop": f"{self.steps} steps", "monitor.machine": str(machine)}
        deck.write_text(deck_text(values), encoding="utf-8")
        shutil.rmtree(run, ignore_errors=True)
        self.call("train", deck, ranks=ranks)
        seconds = [row["step_s"] for row in train_rows(run)][FIRST_STEPS:]
        predicted = json.loads((run / "prediction.json").read_text())["step"]["seconds"]
        return predicted, statistics.median(seconds)


def add_options(parser):
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--folder", type=pathlib.Path, help="kept; default: a temporary one")
    parser.add_argument("--only", default=",".join(DECKS), help="decks, between commas")


def check(given):
    """Returns the names of the decks. Makes the folder. Ends the script with a message if an option
    is wrong, or if it cannot measure."""
    names = given.only.split(",")
    unknown = [name for name in names if name not in DECKS]
    if unknown:
        given.error(f"--only: unknown deck {unknown[0]}; known: {', '.join(DECKS)}")
    if given.steps <= FIRST_STEPS:
        given.error(f"--steps must be at least {FIRST_STEPS + 1}")
    folder = given.folder
    if folder and os.path.lexists(folder):
        if not folder.is_dir():
            given.error(f"--folder {folder}: a file has this name")
        try:
            is_other = any(folder.iterdir()) and not (folder / MARK).exists()
        except OSError as error:
            given.error(f"--folder {folder}: {error.strerror}; name a folder to write to")
        if is_other:
            given.error(f"--folder {folder}: holds files of something else; name a new one")
    find_program(given)
    find_launcher(given)
    if folder:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / MARK).touch()
        except OSError as error:
            given.error(f"--folder {folder}: {error.strerror}; name a folder to write to")
    return names


def measure(given, names, folder):
    """Returns predicted and measured seconds of each round, by deck."""
    comparison = Comparison(given.trireme, folder, given.steps)
    found = {name: ([], []) for name in names}
    for number in range(given.rounds):
        machine = comparison.measured_machine(number)
        for name in names:
            predicted, measured = comparison.train(name, machine)
            text = f"predicted {1e3 * predicted:.1f} ms, measured {1e3 * measured:.1f} ms"
            text += f", ratio {predicted / measured:.2f}"
            print(f"round {number + 1}, {name}: {text}", file=sys.stderr, flush=True)
            found[name][0].append(predicted)
            found[name][1].append(measured)
    return found


def run(given):
    names = check(given)
    if given.folder:
        found = measure(given, names, given.folder.resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="prediction-") as folder:
            found = measure(given, names, pathlib.Path(folder))
    lines = []
    for name, both in found.items():
        ranks, title, _ = DECKS[name]
        predicted, measured = map(statistics.median, both)
        times = (with_range(values, 1e3) for values in both)
        lines.append([title, str(ranks), *times, f"{predicted / measured:.2f}"])
    print_lines(HEADS, lines)
    return 0
