"""Helpers of the GPU acceptance: runs of `trireme train`, their losses and rates, small datasets.

Uses only the standard library.
"""

import array
import json
import os
import random
import shutil
import struct
import subprocess


class Failed(Exception):
    """A requirement is not met; the text says which."""


def call(command, seconds, environment=None, accept=(0,)):
    """Runs a command with a time limit and returns its output.

    Raises Failed if its exit code is not in `accept`.
    """
    words = " ".join(map(str, command))
    try:
        result = subprocess.run(
            list(map(str, command)),
            env=environment,
            text=True,
            errors="replace",
            timeout=max(1, seconds),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired as late:
        output = (
            late.stdout.decode(errors="replace")
            if isinstance(late.stdout, bytes)
            else late.stdout or ""
        )
        raise Failed("not done within %d s: %s\n%s" % (seconds, words, output[-2000:])) from None
    if result.returncode not in accept:
        raise Failed("exit status %d: %s\n%s" % (result.returncode, words, result.stdout[-2000:]))
    return result.stdout


def train(
    trireme, folder, name, deck, device, seconds, ranks=1, sets=(), environment=None, like=None
):
    """Trains in folder/name from the first step on, with the algorithms that the run `like` has
    chosen, if there are any. Returns the `train` rows of the metrics."""
    known = os.path.join(folder, like or name, "algorithms.txt")
    if like not in (None, name) and os.path.exists(known):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        shutil.copy(known, os.path.join(folder, name))
    text = '[run]\nname = "%s"\nfolder = "%s"\ndevice = "%s"\n%s' % (
        name,
        os.path.join(folder, name),
        device,
        deck,
    )
    path = os.path.join(folder, name + ".toml")
    with open(path, "w") as file:
        file.write(text)
    launcher = ["mpirun", "-n", ranks] if ranks > 1 else []
    words = [word for value in sets for word in ("--set", value)]
    call([*launcher, trireme, "train", path, "--restart", "none", *words], seconds, environment)
    with open(os.path.join(folder, name, "metrics.jsonl")) as file:
        return [row for row in map(json.loads, file) if row["kind"] == "train"]


def losses(rows):
    """Returns the losses by step, from the first one on."""
    by_step = {row["step"]: row["loss"] for row in rows}
    found = [by_step[step] for step in sorted(by_step)]
    if any(not isinstance(loss, float) for loss in found):
        raise Failed("a loss is not finite: %s" % found)
    return found


def write_idx(path, extents, data):
    with open(path, "wb") as file:
        file.write(
            struct.pack(">BBBB%dI" % len(extents), 0, 0, 8, len(extents), *extents) + bytes(data)
        )


def shard_images(trireme, folder, extents, images, labels, *options):
    """Makes a dataset of the bytes of images and labels, by way of idx files."""
    source = folder + ".source"
    os.makedirs(source, exist_ok=True)
    write_idx(source + "/images", extents, images)
    write_idx(source + "/labels", extents[:1], labels)
    words = [source + "/images", source + "/labels", *options, "--out", folder, "--overwrite"]
    call([trireme, "shard", "idx", *words], 60)


def make_gray_images(trireme, folder, samples, size, classes, seed=1, noise=120):
    """Makes a dataset of noisy gray images whose bright band depends on their class.

    A small network learns it within a few steps.
    """
    draw = random.Random(seed)
    tinted = bytes(min(255, 90 + value * noise // 256) for value in range(256))
    plain = bytes(value * noise // 256 for value in range(256))
    images, labels = bytearray(), bytearray()
    for _ in range(samples):
        label = draw.randrange(classes)
        labels.append(label)
        for row in range(size):
            images += draw.randbytes(size).translate(
                tinted if row * classes // size == label else plain
            )
    shard_images(trireme, folder, (samples, size, size), images, labels)


def make_color_images(trireme, folder, samples, size, classes, seed=1):
    """Makes a dataset of random color images in so many classes."""
    draw = random.Random(seed)
    images = b"".join(draw.randbytes(size * size * 3) for _ in range(samples))
    labels = bytes(draw.randrange(min(classes, 256)) for _ in range(samples))
    names = ",".join("class%d" % number for number in range(classes))
    shard_images(trireme, folder, (samples, size, size, 3), images, labels, "--classes", names)


def make_tokens(trireme, folder, count, vocabulary, seed=1):
    """Makes a dataset of random tokens."""
    os.makedirs(folder + ".source", exist_ok=True)
    with open(folder + ".source/tokens", "wb") as file:
        array.array("H", random.Random(seed).choices(range(vocabulary), k=count)).tofile(file)
    call(
        [
            trireme,
            "shard",
            "tokens",
            folder + ".source/tokens",
            "--type",
            "uint16",
            "--vocabulary",
            vocabulary,
            "--out",
            folder,
            "--overwrite",
        ],
        60,
    )
