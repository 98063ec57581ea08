# SPDX-License-Identifier: Apache-2.0
"""Trains and evaluates one run with the program, and returns the rows of the results file.

A run has a folder of its own, WORK/runs/KEY. Training is resumed there when the same run is asked
for again. The deck names no test set, so training cannot show test accuracies: `trireme evaluate`
computes them later.
"""

import datetime
import hashlib
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from deck_text import deck_text  # noqa: E402
from plan import QUARTER  # noqa: E402

# The deck without the keys that runs set (plan.Run.settings).
DECK = {
    "run.walltime": "none",
    "model.kind": "chain",  # with BLOCKS
    "data.workers": 1,
    "data.augment.flip": True,
    "data.augment.random_crop": 2,
    "batch.micro": 128,
    "schedule.kind": "cosine",
    "evaluate.every": "100000 epochs",  # at the end alone
    "checkpoint.every": "100 steps",
    "checkpoint.keep": 1,
    "checkpoint.best": "none",
    "health.spike_ratio": 0.0,  # no step is left out because of its loss
    "health.spike_warn": 0.0,
    "health.grad_norm_warn": 0.0,
    "health.rollbacks": 0,
    "monitor.every": "50 steps",
    "monitor.noise_scale": "50 steps",
    "monitor.tensorboard": False,
}
WIDTH = 16
# Mean and standard deviation of the training images of Fashion-MNIST, as value / 255.
NORMALIZE = "{ mean = [0.2860], std = [0.3530] }"
DIVERGED = 76  # exit code
STOPPED = 75


class Stopped(Exception):
    """The program was stopped by a signal and wrote a checkpoint."""


def blocks():
    """Returns model.blocks: ResNet-8 (He et al. 2016) whose first convolution has stride 2. That
    makes an image cost a quarter."""

    def conv(channels, stride=1):
        more = f", stride = {stride}" if stride > 1 else ""
        kind = f'{{ kind = "conv", channels = {channels}, kernel = 3, bias = false{more} }}'
        return f'{kind}, {{ kind = "norm" }}'

    relu = '{ kind = "activation" }'
    network = [conv(WIDTH, 2), relu]
    for channels, stride in ((WIDTH, 1), (2 * WIDTH, 2), (4 * WIDTH, 2)):
        body = f"{conv(channels, stride)}, {relu}, {conv(channels)}"
        network += [f'{{ kind = "residual", body = [{body}] }}', relu]
    network += ['{ kind = "pool", pool = "global" }', '{ kind = "linear", width = 10 }']
    return ",\n  ".join(network)


def normalized_deck(values):
    """Returns the deck of dotted keys, which also normalizes images and lists the blocks."""
    text = deck_text(values)
    text = text.replace("[data.augment]", f"[data.augment]\nnormalize = {NORMALIZE}")
    return text.replace("[model]", f"[model]\nblocks = [\n  {blocks()},\n]")


def machine():
    """Returns the processor and the number of cores, as in "AMD EPYC (family 25, model 17)"."""
    text = pathlib.Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    found = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", text.split("\n\n")[0], re.MULTILINE))
    if "model name" not in found:
        return f"{platform.machine()}, {os.cpu_count()} cores"
    kind = f"family {found.get('cpu family')}, model {found.get('model')}"
    return f"{found['model name']} ({kind}), {os.cpu_count()} cores"


class Program:
    """The program, its data, and the folder of the runs."""

    def __init__(self, path, data, work, deck=None):
        self.path, self.work = pathlib.Path(path).resolve(), pathlib.Path(work).resolve()
        self.data = pathlib.Path(data).resolve()
        self.deck = {**DECK, **(deck or {})}
        self.children = set()
        self.stopping = False
        version = subprocess.run([self.path, "--version"], capture_output=True, text=True)
        if version.returncode != 0:
            raise SystemExit(f"{self.path} --version: {version.stderr.strip()}")
        first_line = version.stdout.partition("\n")[0]
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()[:12]
        self.form = hashlib.sha256(normalized_deck(self.deck).encode()).hexdigest()[:8]
        self.version = f"{first_line}, sha256 {digest}"

    def folder(self, run):
        return self.work / "runs" / run.key

    def write_deck(self, run, part=1.0):
        folder = self.folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        values = {"run.name": "large-batch", "run.folder": str(folder / "run")}
        values |= {"data.train": str(self.data / "train")}
        values |= {"data.validation": str(self.data / "validation")}
        path = folder / "deck.toml"
        path.write_text(
            normalized_deck({**values, **self.deck, **run.settings(part)}), encoding="utf-8"
        )
        return path

    def call(self, *words, log):
        """Runs the program with one thread and returns its exit code and standard output."""
        if self.stopping:
            raise Stopped()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with open(log, "a", encoding="utf-8") as errors:
            child = subprocess.Popen(
                [self.path, *map(str, words)],
                env=environment,
                cwd=self.work,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            self.children.add(child)
            if self.stopping:
                child.terminate()
            text, _ = child.communicate()
            self.children.discard(child)
        return child.returncode, text

    def stop(self):
        """Lets the running trainings write a checkpoint and end."""
        self.stopping = True
        for child in list(self.children):
            child.terminate()

    def failure(self, run, what, code):
        return SystemExit(f"{run.key}: {what} ended with {code}; see {self.folder(run)}/log.txt")

    def train(self, run, action="train"):
        """Trains, or resumes training, and returns the row of the run. `action`: "quarter" stops
        after a quarter of it."""
        part = QUARTER if action == "quarter" else 1.0
        deck, log = self.write_deck(run, part), self.folder(run) / "log.txt"
        # At the lowest priority a step may take minutes.
        code, text = self.call("train", deck, "--set", "health.watchdog=1 hour", log=log)
        with open(log, "a", encoding="utf-8") as file:
            file.write(text)
        if code == STOPPED or self.stopping and code < 0:
            raise Stopped()
        if code not in (0, DIVERGED):
            raise self.failure(run, "training", code)
        rows = [
            json.loads(line)
            for line in (self.folder(run) / "run/metrics.jsonl").read_text().splitlines()
        ]
        scores = [r for r in rows if r["kind"] == "evaluate" and r["split"] == "validation"]
        noise = [r["noise_scale"] for r in rows if r["kind"] == "noise" and r["noise_scale"]]
        row = {
            "row": action,
            "key": run.key,
            "deck": run.settings(),
            "validation": scores[-1]["top1"] if scores and code == 0 else None,
            "loss": scores[-1]["loss"] if scores and code == 0 else None,
            "steps": max(r["step"] for r in rows),
            "noise_scale": round(statistics.median(noise), 1) if noise else None,
            "seconds": round(rows[-1]["elapsed_s"], 1),
        }
        return self.signed(row)

    def test(self, run, steps):
        """Evaluates the checkpoint of step `steps` on the test set and returns the row; None if
        that checkpoint is gone, as when the run is being trained again."""
        checkpoint = self.folder(run) / f"run/checkpoints/step_{steps:09}.h5"
        if not checkpoint.exists():
            return None
        deck, log = self.write_deck(run), self.folder(run) / "log.txt"
        words = ["evaluate", deck, "--set", f"data.test={self.data / 'test'}"]
        words += ["--split", "test", "--checkpoint", checkpoint, "--json"]
        code, text = self.call(*words, log=log)
        if self.stopping and code != 0:
            raise Stopped()
        if code != 0:
            raise self.failure(run, "evaluation", code)
        found = json.loads(text)
        row = {"row": "test", "key": run.key, "test": found["top1"], "loss": found["loss"]}
        return self.signed(row)

    def signed(self, row):
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ")
        load = round(os.getloadavg()[0], 1)
        row["form"] = self.form
        return {**row, "program": self.version, "machine": machine(), "date": now, "load": load}
