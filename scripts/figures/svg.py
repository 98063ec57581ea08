# SPDX-License-Identifier: Apache-2.0
"""Draws SVG pictures that are readable on light and on dark backgrounds.

Colors are classes: `ink` for text and lines, `soft` for secondary ones, `box` for surfaces, and
`c0` to `c5` for series. A browser picks their values by the reader's color scheme.
"""

from xml.sax.saxutils import escape

LIGHT = {
    "ink": "#1f2328",
    "soft": "#59636e",
    "line": "#d1d9e0",
    "box": "#f6f8fa",
    "c0": "#0969da",
    "c1": "#bc4c00",
    "c2": "#1a7f37",
    "c3": "#8250df",
    "c4": "#9a6700",
    "c5": "#bf3989",
}
DARK = {
    "ink": "#e6edf3",
    "soft": "#9198a1",
    "line": "#3d444d",
    "box": "#212830",
    "c0": "#4493f8",
    "c1": "#f0883e",
    "c2": "#3fb950",
    "c3": "#ab7df8",
    "c4": "#d29922",
    "c5": "#db61a2",
}

HALO = (
    ".halo{paint-order:stroke;stroke:#ffffff;stroke-width:4px;stroke-linejoin:round}"
    "@media(prefers-color-scheme:dark){.halo{stroke:#0d1117}}"
)


def colors(values):
    return "".join(
        f".{name}{{fill:{value}}}.{name}-line{{stroke:{value}}}" for name, value in values.items()
    )


class Drawing:
    """Collects shapes; str() is the SVG. Lengths are pixels at the picture's own width."""

    def __init__(self, width, height, title):
        self.width, self.height, self.title = width, height, title
        self.parts = []

    def rect(self, x, y, width, height, fill="box", line="line", radius=6, title=None):
        stroke = f' class="{fill} {line}-line"' if line else f' class="{fill}"'
        hint = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
            f' rx="{radius}"{stroke}>{hint}</rect>'
        )

    def text(
        self, x, y, text, size=14, fill="ink", anchor="start", bold=False, mono=False, halo=False
    ):
        """`halo`: a border in the color of the background keeps the text legible on lines."""
        font = ' font-family="ui-monospace,monospace"' if mono else ""
        weight = ' font-weight="600"' if bold else ""
        kind = f"{fill} halo" if halo else fill
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" class="{kind}"'
            f' text-anchor="{anchor}"{weight}{font}>{escape(text)}</text>'
        )

    def label(self, x, y, text, size=12):
        """Writes on a filled shape, in a color that both palettes carry."""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="#ffffff" font-weight="600"'
            f' text-anchor="middle">{escape(text)}</text>'
        )

    def line(self, points, line="line", width=1.5, arrow=False, dashed=False):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        end = f' marker-end="url(#arrow-{line})"' if arrow else ""
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self.parts.append(
            f'<polyline points="{path}" fill="none" class="{line}-line"'
            f' stroke-width="{width}"{dash}{end}/>'
        )

    def circle(self, x, y, radius, fill="c0"):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{fill}"/>')

    def __str__(self):
        arrows = "".join(
            f'<marker id="arrow-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
            f' markerHeight="7" orient="auto"><path d="M0,0L8,4L0,8z" class="{name}"/></marker>'
            for name in LIGHT
            if any(f"#arrow-{name})" in part for part in self.parts)
        )
        style = (
            f"{colors(LIGHT)}@media(prefers-color-scheme:dark){{{colors(DARK)}}}"
            "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}"
        )
        body = "\n".join(self.parts)
        if " halo" in body:
            style += HALO
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
            f' width="{self.width}" height="{self.height}" role="img">\n'
            f"<title>{escape(self.title)}</title>\n<style>{style}</style>\n"
            f"<defs>{arrows}</defs>\n{body}\n</svg>\n"
        )
