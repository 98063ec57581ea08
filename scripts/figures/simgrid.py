# SPDX-License-Identifier: Apache-2.0
"""Simulated times of communication divided by predicted ones, from docs/figures/data/simgrid.json.

There is a panel for each kind of communication, with a line for each taper over the ranks. A band
marks the bar of 20 % on an untapered network.
"""

import math

from svg import Drawing

LEFT, TOP, WIDTH, HEIGHT, GAP = 56, 78, 150, 220, 22
TICKS = (0.5, 1, 2, 4, 8)
BAR = 0.2
LINES = ((1, "c0", "untapered fat tree"), (4, "c1", "fat tree, tapered 4:1"))


def height_of(ratio):
    share = math.log(ratio / TICKS[0]) / math.log(TICKS[-1] * 1.2 / TICKS[0])
    return TOP + HEIGHT * (1 - min(max(share, 0), 1))


def panel(drawing, left, kind, rows):
    upper, lower = height_of(1 + BAR), height_of(1 - BAR)
    drawing.rect(left, upper, WIDTH, lower - upper, line=None, radius=0)
    for tick in TICKS:
        drawing.line([(left, height_of(tick)), (left + WIDTH, height_of(tick))], "line", 1)
    drawing.text(left, TOP - 12, kind, 13, bold=True)
    ranks = sorted({row["ranks"] for row in rows})
    for taper, color, _ in LINES:
        points = []
        for place, count in enumerate(ranks):
            across = left + WIDTH * (place + 0.5) / len(ranks)
            drawing.text(across, TOP + HEIGHT + 20, f"{count:,}", 12, "soft", "middle")
            for row in rows:
                if (row["ranks"], row["taper"]) == (count, taper):
                    points.append((across, height_of(row["simulated_s"] / row["predicted_s"])))
        if len(points) > 1:
            drawing.line(points, f"{color}", 2)
        for x, y in points:
            drawing.circle(x, y, 3.5, color)


def draw(rows):
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    width = LEFT + len(kinds) * (WIDTH + GAP)
    drawing = Drawing(
        width, TOP + HEIGHT + 46, "Times simulated by SimGrid divided by predicted ones"
    )
    drawing.text(20, 26, "Time simulated by SimGrid / time predicted by plan", 15, bold=True)
    left = 520
    for _, color, text in LINES:
        drawing.line([(left, 22), (left + 22, 22)], color, 2)
        drawing.text(left + 30, 26, text, 13)
        left += 190
    for tick in TICKS:
        drawing.text(LEFT - 8, height_of(tick) + 4, f"{tick:g}", 12, "soft", "end")
    for place, kind in enumerate(kinds):
        panel(
            drawing,
            LEFT + place * (WIDTH + GAP),
            kind,
            [row for row in rows if row["kind"] == kind],
        )
    drawing.text(LEFT + (width - LEFT - GAP) / 2, TOP + HEIGHT + 40, "ranks", 13, "soft", "middle")
    return str(drawing)
