# SPDX-License-Identifier: Apache-2.0
"""Pictures of large batches: the test accuracy over the epochs.

large_batch_epochs has the rows of docs/figures/data/large_batch.jsonl that are done, and the curve
that the noise scale predicts for the large batch. large_batch_curve is an earlier measurement of a
smaller network, whose points are in large_batch_width_4.json. A vertical line is the spread of the
seeds.
"""

import json
import math
import pathlib
import sys

from svg import Drawing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "large_batch"))
import pages  # noqa: E402
import plan  # noqa: E402
import study  # noqa: E402

LEFT, TOP, HEIGHT, BOTTOM, WIDTH = 60, 62, 260, 56, 560


class Axes:
    """A panel with a logarithmic horizontal axis and accuracies in percent on the vertical one."""

    def __init__(self, drawing, xs, low, high, label):
        self.drawing = drawing
        self.first, self.last = math.log(min(xs)), math.log(max(xs))
        self.low, self.high = low, high
        step = next(s for s in (0.5, 1, 2, 5, 10, 20) if (high - low) / s <= 7)
        tick = math.ceil(low / step) * step
        while tick <= high:
            y = self.at(xs[0], tick)[1]
            drawing.line([(LEFT, y), (LEFT + WIDTH, y)], "line", 1)
            drawing.text(LEFT - 8, y + 4, f"{tick:g}", 12, "soft", "end")
            tick += step
        for x in xs:
            drawing.text(self.at(x, low)[0], TOP + HEIGHT + 20, f"{x:.3g}", 12, "soft", "middle")
        drawing.text(LEFT + WIDTH / 2, TOP + HEIGHT + 42, label, 13, "soft", "middle")

    def at(self, x, percent):
        share = (math.log(x) - self.first) / ((self.last - self.first) or 1)
        across = LEFT + 14 + (WIDTH - 28) * share
        return across, TOP + HEIGHT * (self.high - percent) / (self.high - self.low)

    def series(self, points, color, dashed=False, shift=0.0, marks=True, letter=""):
        """Draws a line through (x, accuracies) with the spread; 0 to 1 are the accuracies. `letter`
        stands beside the last point."""
        path = []
        for x, values in points:
            mean = 100 * sum(values) / len(values)
            across, y = self.at(x, max(mean, self.low))
            across += shift
            path.append((across, y))
            if len(values) > 1:
                ends = [self.at(x, max(100 * v, self.low))[1] for v in (min(values), max(values))]
                self.drawing.line([(across, ends[0]), (across, ends[1])], color, 1.2)
            if marks:
                self.drawing.circle(across, y, 3.5, color)
            if mean < self.low:
                self.drawing.text(across - 9, y + 8, f"{mean:.1f} \u2193", 12, "soft", "end")
        if len(path) > 1:
            self.drawing.line(path, color, 2, dashed=dashed)
        self.drawing.text(path[-1][0] + 6, path[-1][1] - 5, letter, 12, bold=True)


def draw(title, series, xs, lowest):
    """Returns a picture of series: name, color, dashed, points, and whether points are marked."""
    values = [100 * v for line in series for _, many in line["points"] for v in many]
    low = math.floor(max(lowest, min(values)) - 0.5)
    drawing = Drawing(LEFT + WIDTH + 250, TOP + HEIGHT + BOTTOM, title)
    drawing.text(20, 26, f"{title}, in %", 15, bold=True)
    axes = Axes(drawing, xs, low, math.ceil(max(values) + 0.2), "epochs")
    for place, line in enumerate(series):
        shift = 3 * (place - len(series) / 2) if line.get("marks", True) else 0
        letter = chr(ord("a") + place) if line.get("marks", True) else ""
        axes.series(line["points"], line["color"], line["dashed"], shift, bool(letter), letter)
        y = TOP + 8 + 20 * place
        drawing.line(
            [(LEFT + WIDTH + 20, y), (LEFT + WIDTH + 42, y)],
            line["color"],
            2,
            dashed=line["dashed"],
        )
        drawing.text(
            LEFT + WIDTH + 50, y + 4, f"{letter}  {line['name']}" if letter else line["name"], 13
        )
    return str(drawing)


def epochs_of(chosen, run):
    """Returns the epochs of a run."""
    count, unit = run.stop.split()
    return float(count) * (run.batch / chosen.samples if unit == "steps" else 1)


def measured(chosen, results):
    """Returns the series of the rows that are done, and of the prediction for the large batch."""
    rows = [row for row in chosen.rows().values() if row.is_complete(results)]
    points = {}
    for row in rows:
        run = row.winner(results)
        rule = {"sgd": "Nesterov SGD" if run.nesterov else "SGD"}.get(run.kind, run.kind.upper())
        rule = "Muon" if run.kind == "muon" else rule
        batch = "ramp to " * (len(run.rows) > 1) + str(run.batch)
        points.setdefault((batch, rule), []).append(
            (epochs_of(chosen, run), row.accuracies(results))
        )
    colors = {str(chosen.base): "c0", str(chosen.large): "c1", str(chosen.largest): "c2"}
    series = [
        {
            "name": f"{batch}, {rule}",
            "color": colors[batch.split()[-1]],
            "dashed": rule not in ("SGD", "LARS"),
            "points": sorted(values),
        }
        for (batch, rule), values in points.items()
    ]
    small = sorted(points.get((str(chosen.base), "SGD"), []))
    noise = [
        value
        for row in rows
        if row.winner(results).batch == chosen.base and (value := pages.noise_of(row, results))
    ]
    if len(small) > 1 and noise:
        scale = sum(noise) / len(noise)
        factor = (1 + chosen.large / scale) / (1 + chosen.base / scale)
        series.append(
            {
                "name": f"{chosen.large} by a noise scale of {scale:.0f}",
                "color": "soft",
                "dashed": True,
                "marks": False,
                "points": [(e * factor, [sum(v) / len(v)]) for e, v in small if e * factor < 200],
            }
        )
    return series


def pictures(folder):
    """Yields (name, text) of the pictures that have data."""
    text = (folder / "large_batch.jsonl").read_text(encoding="utf-8")
    series = measured(study.FULL, plan.Results([json.loads(line) for line in text.splitlines()]))
    if series:
        xs = [x for line in series for x, _ in line["points"]]
        ticks = [5 * 2**k for k in range(8)]
        first = max(k for k in range(8) if ticks[k] <= min(xs))
        last = min(k for k in range(8) if ticks[k] >= max(xs))
        yield "large_batch_epochs", draw(
            "Test accuracy over the epochs", series, ticks[first : last + 1], 80.0
        )
    earlier = json.loads((folder / "large_batch_width_4.json").read_text(encoding="utf-8"))
    xs = [x for x, _ in earlier[0]["points"]]
    yield "large_batch_curve", draw(
        "Test accuracy over the length of the training", earlier, xs, 60.0
    )
