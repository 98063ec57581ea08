#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the documents: make.py [--check]

Reads docs/figures/data (README.md beside this file says how they are collected) and the
table of libraries, and writes docs/figures/*.svg. With --check nothing is written: exit 1 where a
picture differs from its file.
"""

import json
import pathlib
import sys

import checkpoint
import large_batch
import libraries
import loss
import mesh
import simgrid
import step

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs/figures"


def pictures():
    def data(name):
        return json.loads((FOLDER / f"data/{name}.json").read_text(encoding="utf-8"))

    yield "libraries", libraries.draw()
    yield "checkpoint_life", checkpoint.draw()
    yield "quickstart_loss", loss.draw(data("quickstart_loss"))
    yield "step_2x2", step.draw(data("step_2x2"))
    yield "mesh", mesh.draw(data("mesh"))
    yield "simgrid", simgrid.draw(data("simgrid"))
    yield from large_batch.pictures(FOLDER / "data")


def main():
    different = []
    for name, text in pictures():
        path = FOLDER / f"{name}.svg"
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            different.append(str(path))
    for path in different:
        print(f"{path}: differs from its data; run scripts/figures/make.py", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
