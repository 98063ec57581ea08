# SPDX-License-Identifier: Apache-2.0
"""The grids, tables and curves of the study of large batches.

FULL is published in docs/guides/large_batch.md. SMALL has the same form and runs for seconds: it
tests the script.
"""

from dataclasses import dataclass, replace

from plan import WARMUP, Cell, Run, Stage

LAYERWISE = ("lars", "lamb")
RULES = (
    "base rate kept",
    "linear, no warm-up",
    "linear, warm-up",
    "square root, warm-up",
    "LARS",
    "LAMB",
)


@dataclass(frozen=True)
class Study:
    """Sizes and grids. Rates of the table are those of the base batch."""

    base: int = 256
    batches: tuple = (256, 1024, 4096)  # of the table
    epochs: int = 20  # of the table
    bars: tuple = ((4096, 42, 0.5), (8192, 84, 1.0))  # batch, epochs, points that may be lost
    curve_batches: tuple = (4096, 8192)
    curve_epochs: tuple = (20, 42, 84, 180)
    seeds: tuple = (1, 2, 3)
    warmup: float = WARMUP
    # Grids of the bar: 8 each. The order is that of the runs, the likeliest first.
    sgd: tuple = tuple((r, d) for d in (5e-4, 1e-4) for r in (0.1, 0.2, 0.4, 0.8))
    lars: tuple = ((2.0, 0.02), (4.0, 0.02), (2.0, 0.08), (1.0, 0.08)) + (
        (1.0, 0.02),
        (0.5, 0.08),
        (4.0, 0.08),
        (0.5, 0.02),
    )
    lamb: tuple = ((0.02, 0.999), (0.08, 0.999), (0.04, 0.999), (0.08, 0.99)) + (
        (0.16, 0.999),
        (0.04, 0.99),
        (0.16, 0.99),
        (0.02, 0.99),
    )
    # Grids of the table: 4 each. LARS and LAMB scale their rates by the square root.
    table_sgd: tuple = (0.1, 0.2, 0.05, 0.4)
    table_lars: tuple = (0.5, 0.25, 1.0, 0.125)
    table_lamb: tuple = (0.01, 0.02, 0.005, 0.04)
    table_trust: float = 0.02
    table_beta2: float = 0.999

    def sgd_run(self, batch, epochs, rate, warmup=0.0, decay=5e-4):
        return Run("sgd", batch, epochs, rate, warmup, decay)

    def lars_run(self, batch, epochs, rate, trust):
        return Run("lars", batch, epochs, rate, self.warmup, 5e-4, trust=trust)

    def lamb_run(self, batch, epochs, rate, beta2):
        return Run("lamb", batch, epochs, rate, self.warmup, 0.01, beta2=beta2)

    def table_grid(self, rule, batch):
        """Returns the runs of a rule at a batch, for every rate of its grid."""
        ratio = batch / self.base
        root = ratio**0.5
        e = self.epochs
        if rule == "base rate kept":
            return [self.sgd_run(batch, e, r) for r in self.table_sgd]
        if rule == "linear, no warm-up":
            return [self.sgd_run(batch, e, r * ratio) for r in self.table_sgd]
        if rule == "linear, warm-up":
            return [self.sgd_run(batch, e, r * ratio, self.warmup) for r in self.table_sgd]
        if rule == "square root, warm-up":
            return [self.sgd_run(batch, e, r * root, self.warmup) for r in self.table_sgd]
        if rule == "LARS":
            return [self.lars_run(batch, e, r * root, self.table_trust) for r in self.table_lars]
        return [self.lamb_run(batch, e, r * root, self.table_beta2) for r in self.table_lamb]

    def table(self):
        """Returns the cells of the table by (rule, batch)."""
        return {
            (rule, batch): Cell(rule, batch, self.epochs, self.table_grid(rule, batch), self.seeds)
            for rule in RULES
            for batch in self.batches
        }


def transferred(sources, batch, epochs, ratio=1.0):
    """Returns the candidates of a cell that takes the winners of other cells to another batch and
    length, with the rate times `ratio`."""

    def candidates(results):
        best = [cell.winner(results) for cell in sources]
        if None in best:
            return None
        return [replace(run, batch=batch, epochs=epochs, rate=run.rate * ratio) for run in best]

    return candidates


def best_transferred(sources, batch, epochs):
    """As transferred(), with the source that has the highest validation accuracy alone."""

    def candidates(results):
        best = [cell.winner(results) for cell in sources]
        if None in best:
            return None
        run = max(best, key=results.validation)
        return [replace(run, batch=batch, epochs=epochs)]

    return candidates


class Cells:
    """All cells of a study. Names: `baseline` (SGD), `bar` (LARS and LAMB), `table`, `curve`."""

    def __init__(self, study):
        s = self.study = study
        self.table = s.table()
        (batch, epochs, _), (batch2, epochs2, points2) = s.bars

        # 1. The first bar: every optimizer on its grid of 8.
        grid = [s.sgd_run(s.base, epochs, r, decay=d) for r, d in s.sgd]
        self.baseline = {epochs: Cell("SGD", s.base, epochs, grid, s.seeds)}
        self.bar = {
            ("lars", epochs): Cell(
                "LARS", batch, epochs, [s.lars_run(batch, epochs, *p) for p in s.lars], s.seeds
            ),
            ("lamb", epochs): Cell(
                "LAMB", batch, epochs, [s.lamb_run(batch, epochs, *p) for p in s.lamb], s.seeds
            ),
        }
        sources = [self.bar[kind, epochs] for kind in LAYERWISE]

        # 2. The second bar has the same number of steps: it takes the winners of the first.
        self.baseline[epochs2] = Cell(
            "SGD", s.base, epochs2, transferred([self.baseline[epochs]], s.base, epochs2), s.seeds
        )
        self.moved = Cell(
            "LARS or LAMB", batch2, epochs2, transferred(sources, batch2, epochs2), s.seeds, size=2
        )

        # 3. If they miss it on the validation set, the better one's grid is tried at the second bar
        # itself.
        def retuned(kind, grid, make):
            def candidates(results):
                below = self.below(self.moved, epochs2, results)
                if below is None:
                    return None
                if below <= points2 or self.moved.winner(results).kind != kind:
                    return []
                return [make(batch2, epochs2, *p) for p in grid]

            return Cell(kind.upper(), batch2, epochs2, candidates, s.seeds, size=len(grid))

        self.bar["lars", epochs2] = retuned("lars", s.lars, s.lars_run)
        self.bar["lamb", epochs2] = retuned("lamb", s.lamb, s.lamb_run)

        # 4. The curve, with the winners that are known from above: one seed, and all seeds for the
        #    first batch where batch 256 has them, too.
        self.curve = {}
        one = s.seeds[:1]
        for e in s.curve_epochs:
            if e not in self.baseline and e != s.epochs:
                self.baseline[e] = Cell(
                    "SGD", s.base, e, transferred([self.baseline[epochs]], s.base, e), one
                )
        self.baseline[s.epochs] = self.table["base rate kept", s.base]
        linear = self.table["linear, warm-up", s.batches[-1]]
        for b in s.curve_batches:
            for e in s.curve_epochs:
                ratio = b / s.batches[-1]
                self.curve["sgd", b, e] = Cell(
                    "SGD, linear, warm-up", b, e, transferred([linear], b, e, ratio), one
                )
                seeds = s.seeds if b == batch and e in (epochs, epochs2) else one
                self.curve["layerwise", b, e] = Cell(
                    "LARS or LAMB", b, e, best_transferred(sources, b, e), seeds
                )
        self.curve["sgd", s.batches[-1], s.epochs] = linear
        self.curve["layerwise", batch2, epochs2] = self.moved

    def below(self, cell, epochs, results, split="validation"):
        """Returns the points by which the mean of a cell is below that of batch 256, or None."""
        means = []
        for side in (self.baseline[epochs], cell):
            values = side.accuracies(results, split)
            if len(values) < len(side.seeds):
                return None
            means.append(sum(values) / len(values))
        return 100 * (means[0] - means[1])

    def stages(self):
        (b, e, _), (b2, e2, _) = self.study.bars
        first = [self.bar["lars", e], self.baseline[e], self.bar["lamb", e]]
        second = [self.moved, self.baseline[e2]]
        again = [self.bar["lars", e2], self.bar["lamb", e2]]
        done = {id(cell) for cell in first + second + again + list(self.table.values())}
        rest = [*self.baseline.values(), *self.curve.values()]
        rest = [cell for cell in rest if id(cell) not in done]
        rest.sort(key=lambda cell: cell.epochs)
        return [
            Stage(f"bar: batch {b}, {e} epochs", first),
            Stage(f"bar: batch {b2}, {e2} epochs", second),
            Stage(f"bar: batch {b2}, {e2} epochs, tuned again if missed", again),
            Stage(f"table: {self.study.epochs} epochs", list(self.table.values())),
            Stage("curve", rest),
        ]


FULL = Study()
SMALL = Study(
    base=32,
    batches=(32, 64, 128),
    epochs=2,
    bars=((64, 3, 0.5), (128, 4, 1.0)),
    curve_batches=(64, 128),
    curve_epochs=(2, 3, 4),
    seeds=(1, 2),
    warmup=1.0,
    sgd=((0.1, 5e-4), (0.2, 5e-4)),
    lars=((1.0, 0.01), (2.0, 0.01)),
    lamb=((0.01, 0.999), (0.02, 0.999)),
    table_sgd=(0.1, 0.2),
    table_lars=(0.25, 0.5),
    table_lamb=(0.005, 0.01),
)
