#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the reading of images by Trireme and PyTorch: images per second of a processor.

  V/bin/python scripts/compare_loaders.py [--trireme build/release/bin/trireme] [--rounds 3]
      [--seconds 5] [--crop 224] [--folder FOLDER]

The Python that runs the script needs PyTorch, torchvision, h5py, and photographs:

  python3 -m venv V && V/bin/pip install torch torchvision h5py scikit-image scikit-learn

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

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import h5py
    import numpy as np
    import torch
    import torchvision
    from PIL import Image
    from skimage import data as photographs
    from sklearn.datasets import load_sample_images
    from torchvision import io as image_io
    from torchvision.transforms import v2
except ImportError as error:
    sys.exit("compare_loaders.py: %s; see --help for what to install" % error)

SIDE, BATCH, PADDING = 224, 256, 4
RAW_IMAGES, JPEG_IMAGES, CLASSES = 4000, 2000, 10
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


# --- the data -----------------------------------------------------------------------------------


def large_photographs():
    """Returns photographs of at least 375 x 500 pixels: uint8 [height, width, 3]."""
    found = [photographs.astronaut(), photographs.coffee(), photographs.rocket()]
    found += list(load_sample_images().images)
    return [image for image in found if image.shape[0] >= 375 and image.shape[1] >= 500]


def write_jpegs(folder, rng):
    """Writes parts of photographs, mirrored and changed in brightness, into folders of classes."""
    sources = large_photographs()
    for i in range(JPEG_IMAGES):
        image = sources[i % len(sources)]
        top = rng.integers(image.shape[0] - 375 + 1)
        left = rng.integers(image.shape[1] - 500 + 1)
        part = image[top : top + 375, left : left + 500]
        part = np.clip(part * rng.uniform(0.8, 1.2), 0, 255).astype(np.uint8)
        if rng.integers(2):
            part = part[:, ::-1]
        path = folder / str(i % CLASSES)
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.ascontiguousarray(part)).save(path / ("%05d.jpg" % i), quality=90)


def write_raw(folder, rng):
    """Writes a shard of random pixels, and the same as a file for numpy.memmap."""
    folder.mkdir()
    images = rng.integers(0, 256, (RAW_IMAGES, SIDE, SIDE, 3), dtype=np.uint8)
    with h5py.File(folder / "images.h5", "w") as file:
        file.attrs["format"] = "trireme-shard"
        file.create_dataset("images", data=images)
        file.create_dataset("labels", data=np.arange(RAW_IMAGES, dtype=np.int32) % CLASSES)
    images.tofile(folder / "images.bin")


# --- PyTorch ------------------------------------------------------------------------------------


def normalized(images):
    """Returns uint8 [..., 3, height, width] as normalized float32 with channels last."""
    images = v2.functional.to_dtype(images, torch.float32, scale=True)
    return v2.functional.normalize(images, MEAN, STD).movedim(-3, -1).contiguous()


class Raw(torch.utils.data.Dataset):
    side = SIDE

    def __init__(self, folder, colors=(), library="torchvision"):
        shape = (RAW_IMAGES, SIDE, SIDE, 3)
        self.images = np.memmap(folder / "images.bin", dtype=np.uint8, mode="r", shape=shape)
        crop = v2.RandomCrop(SIDE, padding=PADDING)
        self.transform = v2.Compose([crop, v2.RandomHorizontalFlip(), *colors])
        self.library = library

    def __len__(self):
        return RAW_IMAGES

    def image(self, index):
        if self.library == "Pillow":
            image = self.transform(Image.fromarray(self.images[index]))
            return v2.functional.pil_to_tensor(image), index % CLASSES
        image = torch.from_numpy(np.array(self.images[index])).permute(2, 0, 1)
        return self.transform(image), index % CLASSES

    def __getitem__(self, index):
        image, label = self.image(index)
        return normalized(image), label

    def batch(self, indices):
        images, labels = zip(*(self.image(index) for index in indices))
        return normalized(torch.stack(images)), torch.tensor(labels)


class Jpeg(torch.utils.data.Dataset):
    def __init__(self, folder, library, side):
        self.side = side
        self.paths = sorted(str(path) for path in folder.glob("*/*.jpg"))
        self.library = library
        crop = v2.RandomResizedCrop(side, antialias=True)
        self.transform = v2.Compose([crop, v2.RandomHorizontalFlip()])

    def __len__(self):
        return len(self.paths)

    def image(self, index):
        if self.library == "Pillow":
            image = Image.open(self.paths[index]).convert("RGB")
            return v2.functional.pil_to_tensor(self.transform(image)), index % CLASSES
        file = image_io.read_file(self.paths[index])
        image = image_io.decode_jpeg(file, mode=image_io.ImageReadMode.RGB)
        return self.transform(image), index % CLASSES

    __getitem__ = Raw.__getitem__
    batch = Raw.batch


class Batched(torch.utils.data.Dataset):
    """Asks for whole batches, so that they are normalized at once."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset) // BATCH

    def __getitem__(self, index):
        order = torch.randint(len(self.dataset), (BATCH,)).tolist()
        return self.dataset.batch(order)


def loader_of(dataset, fetching, workers):
    if fetching == "batch":
        return torch.utils.data.DataLoader(Batched(dataset), batch_size=None, num_workers=workers)
    return torch.utils.data.DataLoader(
        dataset, batch_size=BATCH, shuffle=True, drop_last=True, num_workers=workers
    )


def processor_seconds():
    """Returns the processor seconds of this process and of its children, ended or running."""
    total = sum(os.times()[:4])
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended
        if int(fields[1]) == os.getpid():
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def torch_rate(dataset, fetching, workers, seconds):
    """Returns images per processor second, after the first batches."""
    batches = iter(loader_of(dataset, fetching, workers))
    images, shape = 0, (BATCH, dataset.side, dataset.side, 3)
    for _ in range(2 * workers + 1):
        batch, labels = next(batches)
        assert batch.shape == shape and batch.dtype == torch.float32 and len(labels) == BATCH
    begin, before = time.monotonic(), processor_seconds()
    while time.monotonic() - begin < seconds:
        try:
            images += len(next(batches)[0])
        except StopIteration:
            batches = iter(loader_of(dataset, fetching, workers))
    return images / (processor_seconds() - before)


# --- Trireme ------------------------------------------------------------------------------------


def trireme_rate(program, folder, seconds, options):
    words = ["bench", "data", "--folder", folder, "--batch", str(BATCH), "--seconds", str(seconds)]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    output = subprocess.run(
        [program, *words, *options, "--workers", "1", "--json"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    ).stdout
    rows = [row for row in json.loads(output)["rows"] if "samples_per_s_core" in row]
    last = next(row for row in rows if row["stage"] == "crop, flip, normalize")
    return {
        row["prefetch"]: 1 / (1 / row["samples_per_s_core"] + 1 / last["samples_per_s_core"])
        for row in rows
        if row["stage"] == "read"
    }


def compare(name, ways, forms, arguments):
    """Prints the medians of the fastest form of each way of Trireme, and of PyTorch."""
    ours, theirs = {way: {} for way in ways}, {}
    for _ in range(arguments.rounds):
        for way, trireme in ways.items():
            for prefetch, rate in trireme().items():
                ours[way].setdefault(prefetch, []).append(rate)
        for form, dataset in forms.items():
            for fetching in ("sample", "batch"):
                for workers in (0, 1, 2):
                    rate = torch_rate(dataset, fetching, workers, arguments.seconds)
                    theirs.setdefault((form, fetching, workers), []).append(rate)
    other = max(theirs, key=lambda key: statistics.median(theirs[key]))
    reference = statistics.median(theirs[other])
    rows = [("PyTorch: %s, by %s, %d workers" % other, theirs[other])]
    for way, rates in ours.items():
        best = max(rates, key=lambda key: statistics.median(rates[key]))
        rows.append(("Trireme: %s, %d micro-batches ahead" % (way, best), rates[best]))
    for program, rates in rows:
        median = statistics.median(rates)
        figures = (name, program, median, min(rates), max(rates), median / reference)
        print("%-6s %-44s %8.0f images/s core (%.0f to %.0f), ratio %.2f" % figures)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trireme", default="build/release/bin/trireme")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--crop", type=int, default=SIDE, help="side of the crops of JPEG files")
    parser.add_argument("--folder", help="for the data; default: a temporary one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder, rng = pathlib.Path(name), np.random.default_rng(1)
        write_raw(folder / "raw", rng)
        write_jpegs(folder / "jpeg", rng)
        made = folder / "shards"
        words = ["shard", "folder", folder / "jpeg", "--encode", "keep", "--out", made]
        subprocess.run([arguments.trireme, *words], check=True)
        print("PyTorch %s, torchvision %s" % (torch.__version__, torchvision.__version__))

        def bench(path, *options):
            return lambda: trireme_rate(arguments.trireme, path, arguments.seconds, options)

        compare(
            "raw", {"pixels": bench(folder / "raw")}, {"memmap": Raw(folder / "raw")}, arguments
        )
        libraries = ("torchvision", "Pillow")
        colors = [v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandAugment(2, 9)]
        forms = {library: Raw(folder / "raw", colors, library) for library in libraries}
        compare("colors", {"pixels": bench(folder / "raw", "--colors")}, forms, arguments)
        ways = {
            decode: bench(made, "--decode", decode, "--crop", str(arguments.crop))
            for decode in ("exact", "fast")
        }
        forms = {name: Jpeg(folder / "jpeg", name, arguments.crop) for name in libraries}
        compare("jpeg", ways, forms, arguments)


if __name__ == "__main__":
    main()
