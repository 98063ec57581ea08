# SPDX-License-Identifier: Apache-2.0
"""The life of a checkpoint: how it is written beside training, and which names its file has."""

from svg import Drawing

# Lane, first and last column (of 12), label, color: the phases of checkpoint::BackgroundWrite.
LANES = ["device", "copy stream", "a thread on each rank", "all ranks together"]
PHASES = [
    (0, 0, 1.9, "step n", "box"),
    (0, 2.0, 5.4, "forward, backward of n + 1", "box"),
    (0, 5.5, 7.4, "update", "box"),
    (0, 7.5, 12, "step n + 2 ...", "box"),
    (1, 2.0, 3.9, "copy state", "c0"),
    (2, 4.0, 5.4, "digests", "c1"),
    (2, 5.5, 6.8, "create file", "c1"),
    (2, 6.9, 8.4, "write, flush", "c1"),
    (2, 8.5, 9.8, "read back", "c1"),
    (2, 9.9, 11.6, "seal, rename", "c1"),
]
AGREEMENTS = [
    (1.95, "room?"),
    (5.45, "sums"),
    (6.85, "offsets"),
    (8.45, "written?"),
    (9.85, "equal?"),
    (11.65, "done"),
]
STATES = [
    ("step_000001000.h5.tmp", "incomplete; a start removes it", 22, "c4"),
    ("step_000001000.h5", "sealed and whole; starts read it", 330, "c2"),
    ("(removed)", "rotation: checkpoint.keep, keep_every", 640, "soft"),
]
SIDE = [
    ("step_000001000.h5.damaged", "seal does not match at a start", 640, "c5"),
    ("step_000001000.h5.failed", "two starts from it made no step", 640, "c5"),
]
LEFT, COLUMN, LANE, TOP = 180, 60, 44, 70


def draw():
    drawing = Drawing(LEFT + 12 * COLUMN + 20, 560, "The life of a checkpoint")
    drawing.text(22, 28, "A checkpoint is written beside the steps that follow it", 15, bold=True)
    drawing.text(
        22,
        48,
        "Steps wait in one place: before an update that would change state not yet copied.",
        13,
        "soft",
    )
    for number, lane in enumerate(LANES):
        y = TOP + number * LANE
        drawing.text(LEFT - 12, y + 24, lane, 13, anchor="end")
        drawing.line([(LEFT, y + 38), (LEFT + 12 * COLUMN, y + 38)], "line", 1)
    for lane, begin, end, label, color in PHASES:
        x, y, width = LEFT + begin * COLUMN, TOP + lane * LANE + 4, (end - begin) * COLUMN
        drawing.rect(x, y, width, 30, "box", "line" if color == "box" else color, 4)
        drawing.text(x + width / 2, y + 20, label, 12, "ink" if color == "box" else color, "middle")
    y = TOP + 3 * LANE
    for at, label in AGREEMENTS:
        x = LEFT + at * COLUMN
        drawing.circle(x, y + 12, 5, "c3")
        drawing.text(x, y + 32, label, 12, "c3", "middle")
    x = LEFT + 5.45 * COLUMN
    drawing.line(
        [(LEFT + 3.95 * COLUMN, TOP + LANE + 19), (x, TOP + LANE + 19), (x, TOP + 22)],
        "c0",
        1.5,
        True,
    )
    top = TOP + 4 * LANE + 52
    drawing.text(22, top, "A file with the final name is whole", 15, bold=True)
    drawing.text(
        22,
        top + 20,
        "The name changes once: when every byte is on the disk and sealed.",
        13,
        "soft",
    )
    y = top + 44
    places = {}
    for name, why, x, color in STATES:
        drawing.rect(x, y, 240, 52, "box", color)
        drawing.text(x + 120, y + 21, name, 12, "ink", "middle", mono=True)
        drawing.text(x + 120, y + 40, why, 12, "soft", "middle")
        places[name] = (x, y)
    for number, (name, why, x, color) in enumerate(SIDE):
        row = y + 70 * (number + 1)
        drawing.rect(x, row, 240, 52, "box", color)
        drawing.text(x + 120, row + 21, name, 12, "ink", "middle", mono=True)
        drawing.text(x + 120, row + 40, why, 12, "soft", "middle")
        drawing.line(
            [(450 + 20 * number, y + 52), (450 + 20 * number, row + 26), (x - 2, row + 26)],
            color,
            1.5,
            True,
        )
    drawing.rect(22, y + 105, 240, 52, "box", "c3")
    drawing.text(142, y + 126, "best.h5", 12, "ink", "middle", mono=True)
    drawing.text(142, y + 145, "the best by checkpoint.best", 12, "soft", "middle")
    drawing.line([(400, y + 52), (400, y + 131), (264, y + 131)], "c3", 1.5, True)
    drawing.line([(262, y + 26), (328, y + 26)], "ink", 1.5, True)
    drawing.line([(570, y + 26), (638, y + 26)], "ink", 1.5, True)
    drawing.text(295, y + 18, "rename", 12, "soft", "middle")
    return str(drawing)
