# SPDX-License-Identifier: Apache-2.0
"""The losses of the quickstart's run, from its metrics.jsonl."""

from svg import Drawing

LEFT, TOP, WIDTH, HEIGHT = 60, 58, 700, 260


def draw(data):
    """`data`: {"steps": [[epoch, loss]], "validation": [[epoch, loss, top1]], "test": top1}."""
    drawing = Drawing(LEFT + WIDTH + 60, TOP + HEIGHT + 50, "Losses of the quickstart's run")
    epochs = max(point[0] for point in data["validation"])
    largest = 1.2

    def at(epoch, loss):
        return LEFT + WIDTH * epoch / epochs, TOP + HEIGHT * (1 - min(loss, largest) / largest)

    drawing.text(20, 26, "ResNet-8 on Fashion-MNIST, 2 ranks on a CPU", 15, bold=True)
    drawing.text(20, 45, f"test accuracy {100 * data['test']:.2f} %", 13, "soft")
    for tick in range(0, 7):
        loss = 0.2 * tick
        _, y = at(0, loss)
        drawing.line([(LEFT, y), (LEFT + WIDTH, y)], "line", 1)
        drawing.text(LEFT - 8, y + 4, f"{loss:.1f}", 12, "soft", "end")
    for epoch in range(0, round(epochs) + 1):
        x, y = at(epoch, 0)
        drawing.text(x, y + 20, str(epoch), 12, "soft", "middle")
    drawing.text(LEFT + WIDTH / 2, TOP + HEIGHT + 42, "epochs", 13, "soft", "middle")
    drawing.line([at(*point) for point in data["steps"]], "c0", 1)
    drawing.line([at(*point[:2]) for point in data["validation"]], "c1", 2.5)
    for epoch, loss, top1 in data["validation"]:
        x, y = at(epoch, loss)
        drawing.circle(x, y, 4, "c1")
        anchor = "end" if epoch > 1 else "middle"
        drawing.text(x - 4, y - 12, f"{100 * top1:.1f} %", 12, "c1", anchor, halo=True)
    drawing.rect(LEFT + WIDTH - 250, TOP + 6, 14, 4, "c0", None, 0)
    drawing.text(LEFT + WIDTH - 230, TOP + 13, "training loss of a step", 13)
    drawing.rect(LEFT + WIDTH - 250, TOP + 26, 14, 4, "c1", None, 0)
    drawing.text(LEFT + WIDTH - 230, TOP + 33, "validation loss and accuracy", 13)
    return str(drawing)
