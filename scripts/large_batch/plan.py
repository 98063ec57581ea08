# SPDX-License-Identifier: Apache-2.0
"""The runs behind the figures of large batches, and their order.

A `Run` is one training. Its key has everything that its numbers depend on, so two cells that need
the same training share it. A `Cell` is a place of a table or a curve: candidates, which are trained
with the first seed, and seeds for the candidate with the highest validation accuracy. A `Stage` is
a list of cells. The driver asks next_job() what to do, and the pages ask Cell.winner() and
Cell.accuracies().

Results are rows by key: "train" (validation accuracy) and "test" (test accuracy). The test set is
evaluated for the runs of winners only, after the choice.
"""

from dataclasses import dataclass, replace

WARMUP = 5.0  # epochs, as Goyal et al. 2017


@dataclass(frozen=True)
class Run:
    """One training. `rate` is the peak that the schedule reaches, after scaling."""

    kind: str  # optimizer.kind
    batch: int
    epochs: int
    rate: float
    warmup: float = 0.0  # epochs
    weight_decay: float = 5e-4
    trust: float | None = None  # lars
    beta2: float | None = None  # lamb
    seed: int = 1

    @property
    def key(self):
        words = [self.kind, f"b{self.batch}", f"e{self.epochs}", f"r{self.rate:g}"]
        words += [f"u{self.warmup:g}", f"d{self.weight_decay:g}"]
        words += [f"t{self.trust:g}"] if self.trust is not None else []
        words += [f"m{self.beta2:g}"] if self.beta2 is not None else []
        return "_".join(words + [f"s{self.seed}"])

    def settings(self):
        """Returns the keys of the deck that this run sets."""
        values = {
            "run.seed": self.seed,
            "run.stop": f"{self.epochs} epochs",
            "batch.global": self.batch,
            "optimizer.kind": self.kind,
            "optimizer.weight_decay": self.weight_decay,
            "schedule.rate": self.rate,
        }
        if self.warmup:
            values["schedule.warmup"] = f"{self.warmup:g} epochs"
        if self.kind in ("sgd", "lars"):
            values["optimizer.momentum"] = 0.9
        if self.trust is not None:
            values["optimizer.trust_coefficient"] = self.trust
        if self.beta2 is not None:
            values["optimizer.beta2"] = self.beta2
        return values


class Results:
    """The rows that exist, by key."""

    def __init__(self, rows=()):
        self.train, self.test = {}, {}
        for row in rows:
            self.add(row)

    def add(self, row):
        getattr(self, row["row"])[row["key"]] = row

    def validation(self, run):
        """Returns the accuracy of a finished run; 0 for one that diverged."""
        return self.train[run.key]["validation"] or 0.0


class Cell:
    """A place of a table or a curve.

    `candidates(results)` returns the runs of the grid with the first seed, or None as long as they
    depend on a winner that is not known. They are at most `size`, for estimates until then.
    """

    def __init__(self, name, batch, epochs, candidates, seeds, size=1):
        self.name, self.batch, self.epochs, self.seeds = name, batch, epochs, seeds
        self.candidates = candidates if callable(candidates) else lambda _: candidates
        self.size = size

    def winner(self, results):
        """Returns the candidate with the highest validation accuracy, None before all are done."""
        grid = self.candidates(results)
        if not grid or any(run.key not in results.train for run in grid):
            return None
        return max(grid, key=results.validation)

    def finals(self, results):
        """Returns the winner's runs of all seeds, or nothing if it is not known."""
        best = self.winner(results)
        return [replace(best, seed=seed) for seed in self.seeds] if best else []

    def accuracies(self, results, split="test"):
        """Returns the accuracies of the winner that exist, by seed."""
        rows = results.test if split == "test" else results.train
        found = [rows[run.key][split] for run in self.finals(results) if run.key in rows]
        return [value or 0.0 for value in found]

    def is_complete(self, results):
        return len(self.accuracies(results)) == len(self.seeds)

    def jobs(self, results):
        """Yields (round, action, run) of everything that is missing and known.

        Candidates come in the order of the grid, then the further seeds, then the test set.
        """
        grid = self.candidates(results) or []
        for place, run in enumerate(grid):
            if run.key not in results.train:
                yield place, "train", run
        for run in self.finals(results):
            if run.key not in results.train:
                yield 100, "train", run
            elif run.key not in results.test:
                yield 0, "test", run

    def missing_runs(self, results):
        """Returns a run for each training that is missing. Unknown ones have seeds below 0."""

        def unknown(count):
            return [Run("", self.batch, self.epochs, 0.0, seed=-n - 1) for n in range(count)]

        grid = self.candidates(results)
        if grid is None:
            return unknown(self.size + len(self.seeds) - 1)
        if not grid:
            return []
        missing = [run for run in grid if run.key not in results.train]
        if missing:
            return missing + unknown(len(self.seeds) - 1)
        return [run for run in self.finals(results) if run.key not in results.train]


@dataclass
class Stage:
    name: str
    cells: list


def next_job(stages, results, running=()):
    """Returns the next (action, run), or None. `running` are keys that are being worked on.

    Stages come in their order. Within a stage the cells take turns, so that early rounds compare
    all rules.
    """
    for stage in stages:
        jobs = [job for cell in stage.cells for job in cell.jobs(results)]
        jobs = [job for job in jobs if job[2].key not in running]
        if jobs:
            _, action, run = min(jobs, key=lambda job: job[0])
            return action, run
    return None


def missing(stages, results):
    """Returns the missing trainings of each stage by name. One that two stages need is listed in
    the first."""
    listed, seen = [], set()
    for stage in stages:
        runs = []
        for cell in stage.cells:
            for run in cell.missing_runs(results):
                name = run.key if run.seed > 0 else (id(cell), run.key)
                if name not in seen:
                    seen.add(name)
                    runs.append(run)
        listed.append((stage.name, runs))
    return listed
