# SPDX-License-Identifier: Apache-2.0
"""Compares the reading of images by Trireme and PyTorch: images per second of a processor.

  V/bin/python scripts/compare.py loaders [--rounds 3] [--seconds 5] [--crop 224] [--folder FOLDER]

Both programs make the same product: float32 [256, side, side, 3], normalized, with labels.

- raw: images of 224 x 224 are shifted by up to 4 pixels and mirrored. PyTorch reads them from one
  array in memory (numpy.memmap), by sample and by batch.
- colors: as raw, then ColorJitter(0.4, 0.4, 0.4, 0.1) and RandAugment(2, 9), in PyTorch on tensors
  and on Pillow's images.
- jpeg: files of 500 x 375 pixels, quality 90, cut from photographs, are decoded, cropped by
  RandomResizedCrop, scaled to --crop pixels a side and mirrored. Trireme decodes exactly, and as
  data.decode = "fast". PyTorch decodes with torchvision.io and with Pillow.

Everything is in the page cache. PyTorch's fastest form with 0, 1 or 2 workers counts. All rates are
divided by the processor seconds of all processes, so threads gain nothing. Trireme's number adds up
two measurements of `trireme bench data`: reading, which ends with uint8 images, and the last stage,
which a GPU makes in training. The programs run in turns; the result is the median over rounds.
"""

import functools
import json
import os
import pathlib
import statistics
import tempfile

from compare.processes import call, find_program, require

ROUNDS = 3
SIDE, BATCH = 224, 256


def trireme_rates(given, folder, *options):
    """Returns images per processor second, by the number of micro-batches ahead."""
    words = ["bench", "data", "--folder", folder, "--batch", BATCH, "--seconds", given.seconds]
    words += [*options, "--workers", 1, "--json"]
    rows = json.loads(call([given.trireme, *words])[0])["rows"]
    rates = [(row, row["samples_per_s_core"]) for row in rows if "samples_per_s_core" in row]
    last = next(rate for row, rate in rates if row["stage"] == "crop, flip, normalize")
    return {
        f"{row['prefetch']} micro-batches ahead": 1 / (1 / rate + 1 / last)
        for row, rate in rates
        if row["stage"] == "read"
    }


def torch_rates(given, images, datasets):
    """Returns images per processor second of the forms of PyTorch."""
    return {
        f"{form}, by {fetching}, {workers} workers": images.torch_rate(
            dataset, fetching, workers, given.seconds
        )
        for form, dataset in datasets.items()
        for fetching in ("sample", "batch")
        for workers in (0, 1, 2)
    }


def compare(name, rounds, programs):
    """Prints the medians of the fastest form of each program. `programs`: by name a function that
    returns the rates of its forms; the first one is the reference."""
    found = {program: {} for program in programs}
    for _ in range(rounds):
        for program, measure in programs.items():
            for form, rate in measure().items():
                found[program].setdefault(form, []).append(rate)
    reference = None
    for program, forms in found.items():
        best = max(forms, key=lambda form: statistics.median(forms[form]))
        rates, median = forms[best], statistics.median(forms[best])
        reference = reference or median
        print(
            f"{name:6} {program + best:44} {median:8.0f} images/s core "
            f"({min(rates):.0f} to {max(rates):.0f}), ratio {median / reference:.2f}",
            flush=True,
        )


def add_options(parser):
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--crop", type=int, default=SIDE, help="side of the crops of JPEG files")
    parser.add_argument("--folder", help="for the data; default: a temporary one")


def run(given):
    find_program(given)
    if given.folder and not os.path.isdir(given.folder):
        given.error(f"--folder {given.folder}: is no folder; name an existing one")
    require("torch", "torchvision", "h5py", "skimage", "sklearn")
    import numpy
    import torch
    import torchvision

    from compare import torch_images as images

    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}")
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = pathlib.Path(name)
        raw, jpeg, shards = (folder / part for part in ("raw", "jpeg", "shards"))
        draw = numpy.random.default_rng(1)
        images.write_raw(raw, draw)
        images.write_jpegs(jpeg, draw)
        call([given.trireme, "shard", "folder", jpeg, "--encode", "keep", "--out", shards])

        def ours(*words):
            return functools.partial(trireme_rates, given, *words)

        def theirs(datasets):
            return functools.partial(torch_rates, given, images, datasets)

        programs = {"PyTorch: ": theirs({"memmap": images.Raw(raw)})}
        programs["Trireme: pixels, "] = ours(raw)
        compare("raw", given.rounds, programs)
        libraries = ("torchvision", "Pillow")
        colored = {library: images.Raw(raw, images.COLORS, library) for library in libraries}
        programs = {"PyTorch: ": theirs(colored), "Trireme: pixels, ": ours(raw, "--colors")}
        compare("colors", given.rounds, programs)
        files = {library: images.Jpeg(jpeg, library, given.crop) for library in libraries}
        programs = {"PyTorch: ": theirs(files)}
        for decode in ("exact", "fast"):
            programs[f"Trireme: {decode}, "] = ours(
                shards, "--decode", decode, "--crop", given.crop
            )
        compare("jpeg", given.rounds, programs)
    return 0
