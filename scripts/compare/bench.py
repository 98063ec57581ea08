# SPDX-License-Identifier: Apache-2.0
"""Trains the models of models.py with the program, in processes that are bound to cores."""

import dataclasses
import json
import shutil

from compare.models import deck_of
from compare.processes import LAUNCHER, Broken, call, call_together, on_cores

WARMUP_PIECES = 2  # the first steps choose algorithms, prepare weights and fill caches
PREPARE_SECONDS = 900


@dataclasses.dataclass(frozen=True)
class Layout:
    """`copies` unconnected processes at once, or one run of `ranks`. Copies share the batch."""

    ranks: int
    threads: int  # of a rank
    copies: int = 1


def piece_rates(model, batch, seconds):
    """Returns units per second in each piece of a few steps, without the first pieces."""
    piece = model.piece
    times = [sum(seconds[i : i + piece]) for i in range(0, len(seconds) - piece + 1, piece)]
    return [piece * batch * model.units_per_sample / time for time in times[WARMUP_PIECES:]]


def train_rows(folder):
    """Returns the rows of the steps of a run."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["kind"] == "train"]


class Bench:
    """Trains models with the program in a folder of its own."""

    def __init__(self, trireme, folder):
        self.trireme, self.folder = trireme, folder

    def prepare(self, model):
        """Makes the shards of a model once. Returns their folder."""
        folder = self.folder / model.name
        if not folder.exists():
            partial = self.folder / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            words = model.make_shards(partial)
            call([self.trireme, "shard", *words, "--out", partial / "data"], 1, PREPARE_SECONDS)
            partial.rename(folder)
        return folder / "data"

    def write_deck(self, model, precision, steps, batch, ranks, run):
        """Returns the deck of a run, whose micro-batches are the batch of a rank."""
        deck = run / "deck.toml"
        values = {
            "run.name": "compare",
            "run.folder": f"{run}/out",
            "run.stop": f"{steps} steps",
            "data.train": str(self.prepare(model)),
            "data.shuffle": "none",
            "batch.global": batch,
            "batch.micro": batch // ranks,
            "precision.compute": precision,
            "monitor.every": "1 step",
        }
        deck.write_text(deck_of(model, values))
        return deck

    def train(self, model, precision, layout, steps, seconds, weights=None):
        """Trains, and returns the rows of steps of each copy. The weights (safetensors) are the
        program's own without a file. Raises Broken and OutOfTime."""
        batch = model.batch // layout.copies
        commands, runs = [], [self.folder / f"run{copy}" for copy in range(layout.copies)]
        for copy, run in enumerate(runs):
            shutil.rmtree(run, ignore_errors=True)
            run.mkdir()
            deck = self.write_deck(model, precision, steps, batch, layout.ranks, run)
            restart = []
            if weights:
                restart = ["--restart", run / "0.h5"]
                call([self.trireme, "import", weights, deck, "--out", run / "0.h5"], 1, seconds)
            launch = [LAUNCHER, "-n", layout.ranks] if layout.ranks > 1 else []
            bound = self.on_cores(layout, copy)
            commands.append([*launch, *bound, self.trireme, "train", deck, *restart])
        call_together(commands, layout.threads, seconds)
        copies = [train_rows(run / "out") for run in runs]
        for rows in copies:
            if len(rows) != steps:
                raise Broken(f"trained {len(rows)} of {steps} steps")
        return copies

    def on_cores(self, layout, copy=0):
        """Returns the words in front of the command of a rank, for peak_bytes()."""
        first = copy * layout.ranks * layout.threads
        return on_cores(self.folder / f"peak{copy}.", first, layout.threads)

    def peak_bytes(self, layout):
        """Returns the largest resident sets of the processes, added up."""
        return sum(
            int((self.folder / f"peak{copy}.{rank}").read_text())
            for copy in range(layout.copies)
            for rank in range(layout.ranks)
        )
