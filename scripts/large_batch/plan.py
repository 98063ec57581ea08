# SPDX-License-Identifier: Apache-2.0
"""The trainings behind the figures of large batches, and their order.

A `Run` is one training. Its key has everything that its numbers depend on. A `Row` of the table
chooses among several tries: all of them are trained for a quarter of their steps, the two with the
highest validation accuracy to the end, and the better one with further seeds. A `Control` and a
`Single` have no tries. The driver asks next_job() what to do.

Results are rows by key: "quarter" and "train" (validation accuracy), and "test" (test accuracy).
The test set is evaluated for chosen runs only, after the choice.
"""

from dataclasses import dataclass, replace

QUARTER = 0.25
KEPT = 2  # tries of a row that are trained to the end


@dataclass(frozen=True)
class Run:
    """One training. `rows` are those of batch.ramp, (epoch, samples of a step); one row is a batch
    that stays. `rate` is the peak, with `scaling` that of 256 samples."""

    kind: str  # optimizer.kind
    rows: tuple
    stop: str  # the length of run and schedule
    rate: float
    weight_decay: float = 5e-4
    scaling: str = "none"
    nesterov: bool = False
    trust: float | None = None  # lars
    seed: int = 1

    @property
    def batch(self):
        """Returns the samples of the last steps."""
        return self.rows[-1][1]

    @property
    def key(self):
        rows = "-".join(
            f"{batch}" + (f"at{epoch:g}" if epoch else "") for epoch, batch in self.rows
        )
        words = [self.kind + ("n" if self.nesterov else ""), "b" + rows, self.stop.replace(" ", "")]
        words += [f"r{self.rate:g}{self.scaling[0]}", f"d{self.weight_decay:g}"]
        words += [f"t{self.trust:g}"] if self.trust is not None else []
        return "_".join(words + [f"s{self.seed}"])

    def settings(self, part=1.0):
        """Returns the keys of the deck that this run sets. `part`: of its length."""
        count, unit = self.stop.split()
        shorter = int(float(count) * part) if unit == "steps" else float(count) * part
        warmup = max(1, int(float(count) / 20)) if unit == "steps" else float(count) / 20
        values = {
            "run.seed": self.seed,
            "run.stop": f"{shorter:g} {unit}",
            "optimizer.kind": self.kind,
            "optimizer.weight_decay": self.weight_decay,
            "schedule.rate": self.rate,
            "schedule.scaling": self.scaling,
            "schedule.length": self.stop,
            "schedule.warmup": f"{warmup:g} {unit}",
        }
        if len(self.rows) == 1:
            values["batch.global"] = self.batch
        else:
            # A row that begins after the end of the run would be refused.
            seen = [(epoch, batch) for epoch, batch in self.rows if epoch < float(count) * part]
            values["batch.ramp"] = [[f"{epoch:g} epochs", batch] for epoch, batch in seen]
        if self.nesterov:
            values["optimizer.nesterov"] = True
        if self.trust is not None:
            values["optimizer.trust_coefficient"] = self.trust
        return values


class Results:
    """The rows that exist, by key."""

    def __init__(self, rows=()):
        self.quarter, self.train, self.test = {}, {}, {}
        for row in rows:
            self.add(row)

    def add(self, row):
        getattr(self, row["row"])[row["key"]] = row


def best(runs, rows):
    """Returns the runs in the order of their validation accuracy; a diverged one has 0."""
    return sorted(runs, key=lambda run: -(rows[run.key]["validation"] or 0.0))


class Row:
    """A row of the table that chooses among `tries`. `below`: the name of the row of batch 256 with
    which it is compared, and `allowed` the points that it may be below; None: no bar."""

    def __init__(self, name, tries, seeds, below=None, allowed=None):
        self.name, self.tries, self.seeds = name, tries, seeds
        self.below, self.allowed = below, allowed

    def kept(self, results):
        """Returns the tries that are trained to the end; None before that is known."""
        if len(self.tries) <= KEPT:
            return self.tries
        if any(run.key not in results.quarter for run in self.tries):
            return None
        return best(self.tries, results.quarter)[:KEPT]

    def winner(self, results):
        kept = self.kept(results)
        if kept is None or any(run.key not in results.train for run in kept):
            return None
        return best(kept, results.train)[0]

    def finals(self, results):
        """Returns the winner's runs of all seeds, or nothing if it is not known."""
        chosen = self.winner(results)
        return [replace(chosen, seed=seed) for seed in self.seeds] if chosen else []

    def accuracies(self, results, split="test"):
        """Returns the accuracies of the winner that exist, by seed."""
        rows = results.test if split == "test" else results.train
        found = [rows[run.key][split] for run in self.finals(results) if run.key in rows]
        return [value or 0.0 for value in found]

    def is_complete(self, results):
        return len(self.accuracies(results)) == len(self.seeds)

    def jobs(self, results):
        """Yields (action, run) of everything that is missing and known."""
        kept = self.kept(results)
        if kept is None:
            yield from (("quarter", run) for run in self.tries if run.key not in results.quarter)
            return
        yield from (("train", run) for run in kept if run.key not in results.train)
        for run in self.finals(results):
            if run.key not in results.train:
                yield "train", run
            elif run.key not in results.test:
                yield "test", run


class Control(Row):
    """The first row of a ramp alone: the same values for the same number of steps."""

    def __init__(self, name, ramp):
        super().__init__(name, [], ramp.seeds)
        self.ramp = ramp

    def kept(self, results):
        chosen = self.ramp.winner(results)
        if chosen is None:
            return None
        steps = results.train[chosen.key]["steps"]
        return [replace(chosen, rows=chosen.rows[:1], stop=f"{steps} steps")]


def next_job(rows, results, running=()):
    """Returns the next (action, run), or None. `running` are keys that are being worked on. Rows
    come in their order."""
    for row in rows:
        for action, run in row.jobs(results):
            if run.key not in running:
                return action, run
    return None
