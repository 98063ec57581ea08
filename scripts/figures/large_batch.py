# SPDX-License-Identifier: Apache-2.0
"""The test accuracy of large batches over the epochs, from docs/figures/data/large_batch.jsonl.

Points that are not measured are left out. A vertical line is the spread of the seeds. A point below
the axis is drawn at its lower end, with its value.
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


def curve(cells, results):
    epochs = cells.study.curve_epochs
    named = [
        (f"batch {cells.study.base}, SGD", "c0", False, [(e, cells.baseline[e]) for e in epochs])
    ]
    for color, batch in zip(("c1", "c2"), cells.study.curve_batches):
        for kind, name in (("layerwise", "LARS or LAMB"), ("sgd", "SGD, linear")):
            points = [(e, cells.curve[kind, batch, e]) for e in epochs]
            named.append((f"batch {batch}, {name}", color, kind == "sgd", points))
    series = [
        (name, color, dashed, [(x, v) for x, cell in points if (v := cell.accuracies(results))])
        for name, color, dashed, points in named
    ]
    values = [v for *_, points in series for _, many in points for v in many]
    if not values:
        return None
    low, high = limits(values, 60.0)
    width = 560
    drawing = Drawing(
        LEFT + width + 230,
        TOP + HEIGHT + BOTTOM,
        "Test accuracy of large batches over the length of the training",
    )
    drawing.text(20, 26, "Test accuracy over the length of the training, in %", 15, bold=True)
    axes = Axes(drawing, LEFT, width, epochs, low, high, "epochs")
    for place, (_, color, dashed, points) in enumerate(series):
        axes.series(points, color, dashed, shift=3 * (place - len(series) / 2))
    legend(drawing, LEFT + width + 20, [line[:3] for line in series if line[3]])
    return str(drawing)


def pictures(path):
    """Yields (name, text) of the picture if it has data."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    text = curve(study.Cells(study.FULL), plan.Results(rows))
    if text:
        yield "large_batch_curve", text
