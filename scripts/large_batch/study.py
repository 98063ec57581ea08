# SPDX-License-Identifier: Apache-2.0
"""The rows of the study of large batches.

FULL is published in docs/guides/large_batch.md. SMALL has the same form and runs for seconds: it
tests the script.
"""

from dataclasses import dataclass, replace

from plan import Control, Row, Run


@dataclass(frozen=True)
class Study:
    samples: int = 50_000
    base: int = 256
    middle: int = 1024
    large: int = 4096
    largest: int = 8192
    epochs: int = 30  # of the ramps
    steps: int = 1650  # of the constant large batch
    muon_steps: tuple = (250, 500)
    seeds: tuple = (1, 2, 3)
    tries: int = 6

    def constant(self, batch):
        return ((0, batch),)

    def ramp(self, last):
        """Returns rows of which the last one has six tenths of the samples."""
        part = self.epochs / 5
        return ((0, self.base), (part, self.middle), (2 * part, last))

    def rows(self):
        """Returns the rows by name, in the order in which they are trained."""
        e, s = self.epochs, self.steps
        long = f"{s * self.large / self.samples:g} epochs"
        grid = [(r, d) for d in (5e-4, 1e-3) for r in (0.1, 0.2, 0.4)]
        ramped = [(0.1, "linear", 5e-4), (0.2, "linear", 5e-4), (0.2, "sqrt", 5e-4)]
        ramped += [(0.4, "sqrt", 5e-4), (0.1, "linear", 1e-3), (0.2, "sqrt", 1e-3)]
        lars = [(2.0, 0.02, 5e-4), (4.0, 0.02, 5e-4), (8.0, 0.02, 5e-4)]
        lars += [(4.0, 0.01, 5e-4), (2.0, 0.02, 1e-3), (4.0, 0.02, 1e-3)]
        muon = [(r, d) for d in (0.01, 0.1) for r in (0.01, 0.02, 0.04)]

        def row(name, runs, **more):
            return Row(name, list(runs)[: self.tries], self.seeds, **more)

        def sgd(stop):
            return [Run("sgd", self.constant(self.base), stop, r, d) for r, d in grid]

        def larses(stop):
            rows = self.constant(self.large)
            return [Run("lars", rows, stop, r, d, trust=t) for r, t, d in lars]

        def ramps(last):
            rows = self.ramp(last)
            return [Run("sgd", rows, f"{e} epochs", r, d, scaling=c) for r, c, d in ramped]

        short, equal = f"{self.base}, {e} epochs", f"{self.base}, {long}"
        listed = [row(short, sgd(f"{e} epochs"))]
        for last, allowed in ((self.large, 0.5), (self.largest, 1.0)):
            name = f"ramp to {last}, {e} epochs"
            listed.append(row(name, ramps(last), below=short, allowed=allowed))
            listed.append(Control(f"control: first row of the ramp to {last}", listed[-1]))
        for steps in self.muon_steps:
            runs = [Run("muon", self.constant(self.large), f"{steps} steps", r, d) for r, d in muon]
            listed.append(row(f"{self.large}, Muon, {steps} steps", runs))
            listed.append(row(f"{self.large}, LARS, {steps} steps", larses(f"{steps} steps")))
        listed.append(row(equal, sgd(long)))
        more = {"below": equal, "allowed": 0.5}
        listed.append(row(f"{self.large}, LARS, {s} steps", larses(f"{s} steps"), **more))
        nesterov = [
            Run("sgd", self.constant(self.large), f"{s} steps", 4 * r, d, nesterov=True)
            for r, d in grid
        ]
        listed.append(row(f"{self.large}, SGD with nesterov, {s} steps", nesterov, **more))
        # One run each with untuned values, without a bar.
        one = replace(larses(f"{s // 2} steps")[1], rows=self.constant(self.largest))
        lamb = Run("lamb", self.constant(self.large), f"{s} steps", 0.02, 0.01)
        listed.append(Row(f"{self.largest}, LARS, {s // 2} steps, untuned", [one], (1,)))
        listed.append(Row(f"{self.large}, LAMB, {s} steps, untuned", [lamb], (1,)))
        return {row.name: row for row in listed}


FULL = Study()
SMALL = Study(
    samples=640,
    base=32,
    middle=64,
    large=128,
    largest=320,
    epochs=5,
    steps=8,
    muon_steps=(4, 6),
    seeds=(1, 2),
    tries=3,
)
