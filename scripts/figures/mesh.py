# SPDX-License-Identifier: Apache-2.0
"""The mesh of a layout: the place of every rank and the parts of the model that it holds."""

from svg import Drawing

CELL, HIGH, LEFT, TOP = 236, 74, 130, 128


def draw(data):
    """`data`: {"title", "lines", "shape": {data, tensor, pipeline}, "stages": [text], "rank": ...}.

    Ranks are numbered as src/parallel/mesh.cpp does: tensor fastest, then data, then stage.
    """
    shape = data["shape"]
    width = LEFT + shape["pipeline"] * (CELL * 1 + 150) + 30
    rows = shape["data"]
    height = TOP + rows * (shape["tensor"] * HIGH + 34) + 60
    drawing = Drawing(width, height, data["title"])
    drawing.text(22, 28, data["title"], 15, bold=True)
    for number, line in enumerate(data["lines"]):
        drawing.text(22, 50 + 18 * number, line, 13, "soft")
    step = CELL + 150
    for stage in range(shape["pipeline"]):
        x = LEFT + stage * step
        drawing.text(x + CELL / 2, TOP - 28, f"stage {stage}", 14, anchor="middle", bold=True)
        drawing.text(x + CELL / 2, TOP - 11, data["stages"][stage], 12, "soft", "middle")
    for replica in range(rows):
        y = TOP + replica * (shape["tensor"] * HIGH + 34)
        middle = y + shape["tensor"] * HIGH / 2
        drawing.text(22, middle - 4, f"replica {replica}", 14, bold=True)
        drawing.text(22, middle + 14, data["samples"][replica], 12, "soft")
        for stage in range(shape["pipeline"]):
            x = LEFT + stage * step
            drawing.rect(x - 6, y - 4, CELL + 12, shape["tensor"] * HIGH + 2, "box", "c0", 8)
            for tensor in range(shape["tensor"]):
                rank = (stage * shape["data"] + replica) * shape["tensor"] + tensor
                top = y + tensor * HIGH
                drawing.rect(x, top + 2, CELL, HIGH - 10, "box", "line", 6)
                drawing.text(x + 12, top + 26, f"rank {rank}", 14, bold=True)
                drawing.text(x + CELL - 12, top + 26, f"tensor {tensor}", 12, "soft", "end")
                drawing.text(x + 12, top + 48, data["holds"][stage][tensor], 12, "soft")
            if stage + 1 < shape["pipeline"]:
                drawing.line(
                    [(x + CELL + 10, middle - 10), (x + step - 10, middle - 10)], "c2", 1.5, True
                )
                drawing.text(x + CELL + 75, middle - 18, "activations", 12, "c2", "middle")
                drawing.line(
                    [(x + step - 10, middle + 14), (x + CELL + 10, middle + 14)], "c4", 1.5, True
                )
                drawing.text(x + CELL + 75, middle + 32, "gradients", 12, "c4", "middle")
    bottom = TOP + rows * (shape["tensor"] * HIGH + 34) + 8
    drawing.text(22, bottom, "In a blue frame: a tensor group, which shares every layer.", 13, "c0")
    text = "Ranks of one column with the same tensor number: a data group, which sums gradients."
    drawing.text(22, bottom + 20, text, 13, "soft")
    return str(drawing)
