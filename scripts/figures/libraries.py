# SPDX-License-Identifier: Apache-2.0
"""The libraries and their arrows, from the table that scripts/check_layers.py enforces."""

import pathlib
import sys

from svg import Drawing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from check_layers import ARROWS  # noqa: E402

HOLDS = {
    "app": "command line",
    "plan": "predicted times",
    "report": "pages of runs",
    "train": "the run",
    "deck": "TOML deck",
    "model": "blocks, networks",
    "optim": "optimizers, rates",
    "data": "shards, loader",
    "checkpoint": "state on disk",
    "monitor": "metrics, trace",
    "parallel": "layouts, reduction",
    "ops": "operations",
    "kernels": "Kokkos kernels",
    "tensor": "shapes, arenas",
    "comm": "MPI, NCCL",
    "io": "files, HDF5",
    "device": "memory, streams",
    "keys": "tables of keys",
    "base": "errors, log, time",
}
# Row and column of each library. draw() checks that no arrow passes behind a box.
PLACES = {
    "app": (0, 2.5),
    "plan": (1, 2),
    "report": (1, 3),
    "train": (2, 2.5),
    "deck": (3, 2.5),
    "monitor": (4, 5),
    "model": (4, 1),
    "optim": (4, 2),
    "checkpoint": (4, 3),
    "data": (4, 4),
    "parallel": (5, 0.8),
    "ops": (6, 0.37),
    "comm": (6, 3),
    "kernels": (7, 1.12),
    "tensor": (7, 2.7),
    "keys": (6, 1.75),
    "device": (8, 3),
    "io": (8, 4.5),
    "base": (9, 2.5),
}
BOX, HEIGHT, GAP, ROW, TOP = 122, 46, 22, 80, 62


def reachable(library, without):
    """All libraries below `library`, not counting its own arrow to `without`."""
    found, waiting = set(), [other for other in ARROWS[library] if other != without]
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting += ARROWS[other]
    return found


def passes_behind(begin, end, corner):
    """Returns whether a straight line passes through the box with this upper left corner."""
    (x, y), (to_x, to_y), (left, top) = begin, end, corner
    points = [(x + (to_x - x) * i / 200, y + (to_y - y) * i / 200) for i in range(201)]
    return any(left <= a <= left + BOX and top <= b <= top + HEIGHT for a, b in points)


def draw():
    width = 6 * (BOX + GAP) + GAP
    drawing = Drawing(width, TOP + ROW * 10 - 20, "The libraries of Trireme and their arrows")
    drawing.text(GAP, 26, "An arrow leads to a library that is used. No arrow leads upward.", 15)
    drawing.text(GAP, 45, "Arrows that follow from others are left out.", 13, "soft")
    place = {
        library: (GAP + column * (BOX + GAP), TOP + ROW * row)
        for library, (row, column) in PLACES.items()
    }
    for library, below in ARROWS.items():
        x, y = place[library]
        for other in below:
            if other not in reachable(library, other):
                to_x, to_y = place[other]
                assert to_y > y, f"{library} -> {other} leads upward"
                ends = [(x + BOX / 2, y + HEIGHT), (to_x + BOX / 2, to_y - 1)]
                for box, corner in place.items():
                    if box not in (library, other) and passes_behind(*ends, corner):
                        raise ValueError(f"{library} -> {other} passes behind {box}")
                drawing.line(ends, "soft", 1.2, arrow=True)
    for library, (x, y) in place.items():
        drawing.rect(x, y, BOX, HEIGHT)
        drawing.text(x + BOX / 2, y + 20, library, 14, anchor="middle", bold=True)
        drawing.text(x + BOX / 2, y + 37, HOLDS[library], 12, "soft", "middle")
    return str(drawing)
