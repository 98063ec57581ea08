# SPDX-License-Identifier: Apache-2.0
"""A step of a run with two stages and two replicas as lanes of time, from its trace.json."""

from svg import Drawing

LEFT, TOP, WIDTH, LANE = 150, 92, 760, 74
COMPUTE = {"forward": "c0", "backward": "c1"}
EXCHANGES = {
    "send_activation": "c2",
    "receive_activation": "c2",
    "send_gradient": "c4",
    "receive_gradient": "c4",
    "reduce_bucket": "c3",
    "reduce_tied": "c3",
}
LEGEND = [
    ("c0", "forward"),
    ("c1", "backward"),
    ("c2", "activations between stages"),
    ("c4", "gradients between stages"),
    ("c3", "sums between replicas"),
]


def draw(data):
    """`data`: {"title", "ranks": {rank: place}, "events": [[rank, name, begin_ms, end_ms, n]]}."""
    ranks = sorted(data["ranks"], key=int)
    end = max(event[3] for event in data["events"])
    drawing = Drawing(LEFT + WIDTH + 30, TOP + LANE * len(ranks) + 46, data["title"])
    drawing.text(22, 28, data["title"], 15, bold=True)
    x = 22
    for color, label in LEGEND:
        drawing.rect(x, 46, 14, 14, color, None, 3)
        drawing.text(x + 20, 58, label, 13)
        x += 36 + 7.2 * len(label)
    scale = WIDTH / end
    for number, rank in enumerate(ranks):
        y = TOP + LANE * number
        drawing.text(LEFT - 14, y + 22, f"rank {rank}", 14, anchor="end", bold=True)
        drawing.text(LEFT - 14, y + 40, data["ranks"][rank], 12, "soft", "end")
        drawing.line([(LEFT, y + 62), (LEFT + WIDTH, y + 62)], "line", 1)
    for rank, name, begin, stop, micro in data["events"]:
        y = TOP + LANE * ranks.index(str(rank))
        at, width = LEFT + begin * scale, max(1.5, (stop - begin) * scale)
        hint = f"{name}, {begin:.0f} to {stop:.0f} ms"
        if name in COMPUTE:
            drawing.rect(at, y + 4, width, 30, COMPUTE[name], None, 3, hint)
            if width > 12:
                drawing.label(at + width / 2, y + 24, str(micro + 1))
        elif name in EXCHANGES:
            low = name.startswith("receive") or name.startswith("reduce")
            drawing.rect(at, y + (48 if low else 39), width, 6, EXCHANGES[name], None, 2, hint)
    tick = next(t for t in (10, 20, 50, 100, 200, 500, 1000, 2000) if end / t <= 9)
    for number in range(int(end / tick) + 1):
        x, y = LEFT + number * tick * scale, TOP + LANE * len(ranks)
        drawing.line([(x, y - 12), (x, y - 6)], "soft", 1)
        drawing.text(x, y + 10, f"{number * tick}", 12, "soft", "middle")
    drawing.text(
        LEFT + WIDTH / 2, TOP + LANE * len(ranks) + 32, "milliseconds", 13, "soft", "middle"
    )
    return str(drawing)
