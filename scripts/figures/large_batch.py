"""The curves of large batches, from docs/figures/data/large_batch.jsonl.

There are three pictures: validation accuracy over the rates of the grids, test accuracy over the
batch (table), and over the epochs (curve). Points that are not measured are left out. A vertical
line is the spread of the seeds. A point below the axis is drawn at its lower end, with its value.
"""

import json
import math
import pathlib
import sys

from svg import Drawing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "large_batch"))
import plan  # noqa: E402
import study  # noqa: E402

LEFT, TOP, HEIGHT, BOTTOM = 60, 62, 260, 56


class Axes:
    """A panel with a logarithmic horizontal axis and accuracies in percent on the vertical one."""

    def __init__(self, drawing, left, width, xs, low, high, label):
        self.drawing, self.left, self.width = drawing, left, width
        self.first, self.last = math.log(min(xs)), math.log(max(xs))
        self.low, self.high = low, high
        step = next(s for s in (0.5, 1, 2, 5, 10, 20) if (high - low) / s <= 7)
        tick = math.ceil(low / step) * step
        while tick <= high:
            y = self.at(xs[0], tick)[1]
            drawing.line([(left, y), (left + width, y)], "line", 1)
            drawing.text(left - 8, y + 4, f"{tick:g}", 12, "soft", "end")
            tick += step
        for x in xs:
            drawing.text(self.at(x, low)[0], TOP + HEIGHT + 20, f"{x:g}", 12, "soft", "middle")
        drawing.text(left + width / 2, TOP + HEIGHT + 42, label, 13, "soft", "middle")

    def at(self, x, percent):
        share = (math.log(x) - self.first) / ((self.last - self.first) or 1)
        across = self.left + 14 + (self.width - 28) * share
        return across, TOP + HEIGHT * (self.high - percent) / (self.high - self.low)

    def series(self, points, color, dashed=False, shift=0):
        """Draws a line through (x, accuracies) with the spread; 0 to 1 are the accuracies."""
        path = []
        for x, values in points:
            mean = 100 * sum(values) / len(values)
            across, y = self.at(x, max(mean, self.low))
            across += shift
            path.append((across, y))
            if len(values) > 1:
                ends = [self.at(x, max(100 * v, self.low))[1] for v in (min(values), max(values))]
                self.drawing.line([(across, ends[0]), (across, ends[1])], color, 1.2)
            self.drawing.circle(across, y, 3.5, color)
            if mean < self.low:
                self.drawing.text(across - 9, y + 8, f"{mean:.1f} \u2193", 12, "soft", "end")
        if len(path) > 1:
            self.drawing.line(path, color, 2, dashed=dashed)


def limits(accuracies, lowest=0.0):
    """Returns the limits of the vertical axis in percent; lower values are drawn on the border."""
    values = [100 * v for v in accuracies]
    low = max(lowest, min(values))
    return math.floor(low - 0.5), math.ceil(max(values) + 0.2)


def legend(drawing, left, lines):
    """Draws (text, color, dashed) below each other."""
    for place, (text, color, dashed) in enumerate(lines):
        y = TOP + 8 + 20 * place
        drawing.line([(left, y), (left + 22, y)], color, 2, dashed=dashed)
        drawing.text(left + 30, y + 4, text, 13)


def grid(cells, results):
    """Validation accuracies over the rate, a panel for each optimizer of the first bar."""
    batch, epochs, _ = cells.study.bars[0]
    panels = [("SGD, batch %d" % cells.study.base, cells.baseline[epochs])]
    panels += [
        (f"{kind.upper()}, batch {batch}", cells.bar[kind, epochs]) for kind in study.LAYERWISE
    ]
    runs = cells.first_grid(results)
    known = [results.validation(run) for run in runs if run.key in results.train]
    if not known:
        return None
    low, high = limits(known, 75.0)
    width = 230
    drawing = Drawing(
        LEFT + 3 * (width + 50),
        TOP + HEIGHT + BOTTOM + 40,
        "Grids of SGD, LARS and LAMB over the rate",
    )
    drawing.text(
        20, 26, f"Validation accuracy after {epochs} epochs, one seed, in %", 15, bold=True
    )
    for place, (title, cell) in enumerate(panels):
        left = LEFT + place * (width + 50)
        members = cell.candidates(results)
        rates = sorted({run.rate for run in members})
        axes = Axes(drawing, left, width, rates, low, high, "peak rate")
        drawing.text(left, 50, title, 13, bold=True)
        kinds = {}
        for run in members:
            name = (
                f"trust {run.trust:g}"
                if run.trust is not None
                else (
                    f"beta2 {run.beta2:g}"
                    if run.beta2 is not None
                    else f"decay {run.weight_decay:g}"
                )
            )
            kinds.setdefault(name, []).append(run)
        for color, (name, line) in enumerate(kinds.items()):
            done = sorted((r.rate, [results.validation(r)]) for r in line if r.key in results.train)
            axes.series(done, f"c{color}")
            y = TOP + HEIGHT + BOTTOM + 8 + 18 * color
            drawing.line([(left + 20, y), (left + 42, y)], f"c{color}", 2)
            drawing.text(left + 50, y + 4, name, 12)
    return str(drawing)


def lines_of(drawing_title, head, label, named, xs, results, lowest):
    """Draws series of cells over `xs`: `named` is [(name, color, dashed, [(x, cell)])]."""
    series = [
        (name, color, dashed, [(x, v) for x, cell in points if (v := cell.accuracies(results))])
        for name, color, dashed, points in named
    ]
    values = [v for *_, points in series for _, many in points for v in many]
    if not values:
        return None
    low, high = limits(values, lowest)
    width = 560
    drawing = Drawing(LEFT + width + 230, TOP + HEIGHT + BOTTOM, drawing_title)
    drawing.text(20, 26, head, 15, bold=True)
    axes = Axes(drawing, LEFT, width, xs, low, high, label)
    for place, (_, color, dashed, points) in enumerate(series):
        axes.series(points, color, dashed, shift=3 * (place - len(series) / 2))
    legend(drawing, LEFT + width + 20, [line[:3] for line in series if line[3]])
    return str(drawing)


def table(cells, results):
    batches = cells.study.batches
    named = [
        (rule, f"c{place}", False, [(batch, cells.table[rule, batch]) for batch in batches])
        for place, rule in enumerate(study.RULES)
    ]
    return lines_of(
        "Test accuracy of six rules over the batch",
        f"Test accuracy after {cells.study.epochs} epochs, in %",
        "batch",
        named,
        batches,
        results,
        60.0,
    )


def curve(cells, results):
    epochs = cells.study.curve_epochs
    named = [
        (f"batch {cells.study.base}, SGD", "c0", False, [(e, cells.baseline[e]) for e in epochs])
    ]
    for color, batch in zip(("c1", "c2"), cells.study.curve_batches):
        for kind, name in (("layerwise", "LARS or LAMB"), ("sgd", "SGD, linear")):
            points = [(e, cells.curve[kind, batch, e]) for e in epochs]
            named.append((f"batch {batch}, {name}", color, kind == "sgd", points))
    return lines_of(
        "Test accuracy of large batches over the length of the training",
        "Test accuracy over the length of the training, in %",
        "epochs",
        named,
        epochs,
        results,
        60.0,
    )


def pictures(path):
    """Yields (name, text) of each picture that has data."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    cells, results = study.Cells(study.FULL), plan.Results(rows)
    for name, draw in (("grid", grid), ("table", table), ("curve", curve)):
        text = draw(cells, results)
        if text:
            yield f"large_batch_{name}", text
