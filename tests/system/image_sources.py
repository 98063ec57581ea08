# SPDX-License-Identifier: Apache-2.0
"""Sources of images for `shard`: photographs, archives, and files that are made to cost much."""

import io
import os
import struct
import subprocess
import tarfile
import time
import zlib

import h5py
import numpy as np
from PIL import Image

import harness

# No source that is refused costs more.
BIG_SECONDS, BIG_BYTES = 4, 512 << 20


def photograph(height, width, seed):
    """Returns uint8 [height, width, 3] with edges, slopes and noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (5 + seed % 7) + y / 11), np.cos(x / 6), np.sin(y / 9 - x / 23)]
    pixels = 127 + 100 * np.stack(waves, -1) + rng.normal(0, 12, (height, width, 3))
    pixels[height // 3 : height // 2, width // 4 : width // 2] = rng.integers(0, 256, 3)
    return np.clip(pixels, 0, 255).astype(np.uint8)


def encoded(image, form="JPEG", **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def png_chunk(kind, data):
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def png(width, height, depth, color, rows):
    """Returns a PNG file. `rows`: the bytes of all rows with their filters."""
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
        + png_chunk(b"IDAT", zlib.compress(rows, 9))
        + png_chunk(b"IEND", b"")
    )


def every_form():
    """Returns a dict from file name to the bytes of an image: every form that is read."""
    pixels = photograph(75, 100, 1)
    image = Image.fromarray(pixels)
    alpha = np.dstack([pixels, pixels[:, :, 0]])
    forms = {
        "color.jpg": encoded(image, quality=90),
        "color444.JPG": encoded(image, quality=90, subsampling=0),
        "progressive.jpeg": encoded(image, quality=80, progressive=True),
        "gray.jpg": encoded(image.convert("L")),
        "cmyk.jpg": encoded(image.convert("CMYK")),
        "turned.jpg": encoded(image, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0"),
        "color.png": encoded(image, "PNG"),
        "alpha.png": encoded(Image.fromarray(alpha), "PNG"),
        "clear.png": encoded(image.convert("P"), "PNG", transparency=3),
    }
    for mode in ("L", "P", "LA", "1"):
        forms[mode + ".png"] = encoded(image.convert(mode), "PNG")
    wide = np.dstack([pixels, 255 - pixels]).reshape(75, 100, 3, 2)[..., [0, 1]]
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(wide))
    forms["color16.png"] = png(100, 75, 16, 2, rows)
    return forms


def tar(path, members, mode="w", **options):
    """Writes an archive of pairs (name, bytes), or (name, TarInfo) for what is no file."""
    with tarfile.open(path, mode, **options) as archive:
        for name, content in members:
            if isinstance(content, tarfile.TarInfo):
                content.name = name
                archive.addfile(content)
                continue
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def link(target, kind=tarfile.SYMTYPE):
    entry = tarfile.TarInfo()
    entry.type = kind
    entry.linkname = target
    return entry


def write(folder, files):
    """Writes a dict from relative path to bytes."""
    for name, content in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


def bad_images():
    """Returns a dict from name to the bytes of a file that must be refused, and the reason."""
    good = encoded(Image.fromarray(photograph(75, 100, 2)), quality=90)
    start = good.index(b"\xff\xc0")
    huge, large = (
        good[: start + 5] + struct.pack(">HH", side, side) + good[start + 9 :]
        for side in (65535, 16000)
    )
    middle = len(good) // 2
    scans = encoded(Image.fromarray(photograph(64, 64, 3)), quality=90, progressive=True)
    frame = scans.index(b"\xff\xc2")
    large_scans = scans[: frame + 5] + struct.pack(">HH", 7000, 7000) + scans[frame + 9 :]
    last_scan = scans[scans.rindex(b"\xff\xda") : -2]
    side = 8192
    flat = zlib.compress(b"\0" * (side * 3 + 1) * side, 9)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 65535, 65535, 8, 2, 0, 0, 0))
        + png_chunk(b"IDAT", flat)
        + png_chunk(b"IEND", b"")
    )
    wide = png(1 << 25, 1, 16, 6, b"")
    text = png_chunk(b"zTXt", b"note\0\0" + zlib.compress(b"x" * (256 << 20), 9))
    small = png(8, 8, 8, 2, (b"\0" + b"\7" * 24) * 8)
    return {
        "cut.jpg": (good[: len(good) // 2], "damaged JPEG"),
        "header_only.jpg": (good[: start + 20], "JPEG"),
        "huge.jpg": (huge, "65500 pixels"),
        "large.jpg": (large, "16000 x 16000 pixels"),
        "marker.jpg": (good[:middle] + good[start : start + 19] + good[middle:], "damaged JPEG"),
        "scans.jpg": (scans[:-2] + last_scan * 500 + b"\xff\xd9", "scans"),
        "bomb.png": (bomb, "65535 x 65535 pixels"),
        "wide.png": (wide, "1 x 33554432 pixels"),
        "scans_large.jpg": (large_scans, "7000 x 7000 pixels"),
        "cut.png": (small[:-30], "PNG"),
        "checksum.png": (small[:45] + b"\0" + small[46:], "PNG"),
        "short_rows.png": (png(8, 8, 8, 2, b"\0" * 9), "PNG"),
        "long_text.png": (small[:33] + text + small[33:], None),  # the text is left out
        "empty.jpg": (b"", "is empty"),
        "words.jpg": (b"these are no pixels", "neither a JPEG nor a PNG"),
        "gif.png": (b"GIF89a" + bytes(100), "neither a JPEG nor a PNG"),
    }


class Case(harness.Case):
    """Makes datasets from sources of images, and reads them."""

    def make(self, *arguments, expect=0, ranks=1, out="made"):
        words = ("shard",) + arguments + ("--out", out)
        result = harness.run(*words, ranks=ranks, cwd=self.folder)
        self.assertEqual(result.returncode, expect, "%s: %s" % (words, result.text))
        return result.text

    def refuse(self, *arguments, saying):
        text = self.make(*arguments, expect=2, out="refused")
        for part in [saying] if isinstance(saying, str) else saying:
            self.assertIn(part, text)
        self.assertFalse(os.path.exists(self.path("refused")), text)

    def read(self, folder="made"):
        """Returns images, labels and class names of a dataset."""
        images, labels, classes = [], [], []
        for name in sorted(os.listdir(self.path(folder))):
            if not name.endswith(".h5"):
                continue
            with h5py.File(self.path(folder, name)) as file:
                self.assertIsNone(file["images"].chunks)
                images.append(file["images"][:])
                labels.append(file["labels"][:])
                classes = list(file["classes"].asstr()) if "classes" in file else []
        return np.concatenate(images), np.concatenate(labels), classes

    def cost(self, *arguments):
        """Runs `shard` and returns its seconds, its largest memory in bytes, and the result."""
        command = harness.command("shard", *arguments, "--out", "cost", "--overwrite")
        script = (
            "import resource, subprocess, sys; r = subprocess.run(sys.argv[1:]);"
            "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss);"
            "sys.exit(r.returncode)"
        )
        begin = time.monotonic()
        result = subprocess.run(
            [os.sys.executable, "-c", script] + [str(word) for word in command],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=harness.environment(),
        )
        seconds = time.monotonic() - begin
        peak = int(result.stdout.rsplit("peak ", 1)[1]) << 10
        return seconds, peak, result
