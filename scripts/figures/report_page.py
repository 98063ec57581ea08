#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the picture of a page of `trireme report`: docs/figures/report.png.

Usage: report_page.py TRIREME RUN...    needs Debian's chromium, and Pillow

The picture is the section of the curves, as chromium shows it.
"""

import pathlib
import subprocess
import sys
import tempfile

from PIL import Image

OUT = pathlib.Path(__file__).resolve().parents[2] / "docs/figures/report.png"
WIDTH, HEIGHT = 1100, 725  # pixels
HIDE = "section:not(#curves), nav, h1, .soft { display: none } h2 { margin-top: 0 }"


def main():
    program, *runs = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        page, picture = folder + "/page.html", folder + "/picture.png"
        subprocess.run([program, "report", *runs, "--out", page], check=True)
        text = pathlib.Path(page).read_text()
        pathlib.Path(page).write_text(text.replace("</head>", f"<style>{HIDE}</style></head>"))
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        subprocess.run(
            [
                "chromium",
                *options,
                f"--window-size={WIDTH},{HEIGHT}",
                f"--screenshot={picture}",
                f"file://{page}",
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        # 64 colors look the same and take a third of the bytes.
        Image.open(picture).convert("RGB").quantize(64).save(OUT, optimize=True)
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
