# SPDX-License-Identifier: Apache-2.0
"""Makes images for `compare.py loaders`, and reads them with the loader of PyTorch."""

import os
import pathlib
import time

import h5py
import numpy as np
import torch
from PIL import Image
from skimage import data as photographs
from sklearn.datasets import load_sample_images
from torchvision import io as image_io
from torchvision.transforms import v2

from compare.loaders import BATCH, SIDE

PADDING = 4
RAW_IMAGES, JPEG_IMAGES, CLASSES = 4000, 2000, 10
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
COLORS = [v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandAugment(2, 9)]


# --- the data -----------------------------------------------------------------------------------


def write_jpegs(folder, rng):
    """Writes parts of photographs, mirrored and changed in brightness, into folders of classes."""
    sources = [photographs.astronaut(), photographs.coffee(), photographs.rocket()]
    sources += list(load_sample_images().images)  # uint8 [height, width, 3]
    sources = [image for image in sources if image.shape[0] >= 375 and image.shape[1] >= 500]
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
        Image.fromarray(np.ascontiguousarray(part)).save(path / f"{i:05d}.jpg", quality=90)


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
