# SPDX-License-Identifier: Apache-2.0
"""Makes the files of this folder with an earlier version of the program: `make.py PROGRAM`.

earlier_files_test.py reads them with the present one. They are made once and stay as they are.

  sets/NAME     datasets: pixels, image files, tokens, text with a SentencePiece model
  NAME.toml     decks of 8 steps
  NAME/         the run folder after 4 steps of the deck
  known.json    what the earlier version says: digests of the checkpoint, losses of steps 5 to 8,
                results of an evaluation
"""

import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import zlib

FOLDER = pathlib.Path(__file__).resolve().parent
STEPS, HALF = 8, 4
RUN = """[run]
name = "NAME"
folder = "NAME"
seed = 3
stop = "8 steps"

[checkpoint]
every = "4 steps"
async = false
[monitor]
every = "1 step"
tensorboard = false
"""
DECKS = {
    # Pixels; SGD with momentum, an average of the weights.
    "mlp": """[model]
kind = "mlp"
widths = [12]
[data]
train = "sets/pixels"
validation = "sets/pixels"
[data.augment]
normalize = { mean = [0.3], std = [0.4] }
[batch]
global = 8
micro = 4
[optimizer]
kind = "sgd"
momentum = 0.9
ema = 0.9
[schedule]
length = "8 steps"
rate = 0.05
warmup = "2 steps"
""",
    # Image files; LARS, batch norm with running statistics, random crops.
    "resnet": """[model]
kind = "resnet"
depth = 8
width = 4
[data]
train = "sets/files"
validation = "sets/files"
[data.augment]
random_resized_crop = { size = 8 }
evaluate = { resize = 10, crop = 8 }
flip = true
[batch]
global = 4
micro = 2
[optimizer]
kind = "lars"
[schedule]
length = "8 steps"
rate = 0.1
""",
    # Tokens; AdamW.
    "gpt": """[model]
kind = "gpt"
layers = 2
heads = 2
width = 8
context = 16
mlp = "swiglu"
norm = "rms"
positions = "rope"
dropout = 0.1
[data]
train = "sets/text"
validation = "sets/text"
[batch]
global = 4
micro = 2
[optimizer]
kind = "adamw"
clip_norm = 1.0
[schedule]
length = "8 steps"
rate = 0.01
""",
}


def png(width, height, color):
    """Returns a PNG file of RGB pixels around a color."""

    def chunk(kind, data):
        crc = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    rows = b"".join(
        b"\0" + bytes((c + 7 * x + 3 * y) % 256 for x in range(width) for c in color)
        for y in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def main():
    program = os.path.abspath(sys.argv[1])
    work = FOLDER / "making"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()

    def call(*words):
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        return subprocess.run(
            [program, *words],
            cwd=work,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ).stdout

    rng = random.Random(1)
    # 1. Datasets.
    labels = [i % 3 for i in range(24)]
    pixels = bytes(
        min(255, 60 * label + rng.randrange(60)) for label in labels for _ in range(8 * 8)
    )
    (work / "images").write_bytes(struct.pack(">IIII", 0x803, 24, 8, 8) + pixels)
    (work / "labels").write_bytes(struct.pack(">II", 0x801, 24) + bytes(labels))
    call("shard", "idx", "images", "labels", "--out", "sets/pixels", "--shards", "2",
         "--classes", "ant,bee,cow")  # fmt: skip
    for name, color in (("blue", (20, 40, 200)), ("red", (200, 40, 20))):
        (work / "photos" / name).mkdir(parents=True)
        for i in range(6):
            image = png(10 + i, 12, [min(255, c + 5 * i) for c in color])
            (work / "photos" / name / ("%d.png" % i)).write_bytes(image)
    call("shard", "folder", "photos", "--encode", "keep", "--out", "sets/files")
    words = [
        "".join(rng.choice("abcdefghijklmnop") for _ in range(rng.randint(2, 7))) for _ in range(90)
    ]
    text = " ".join(rng.choice(words) for _ in range(600))
    (work / "text.txt").write_text(text)
    call("shard", "text", "text.txt", "--train-tokenizer", "320", "--out", "sets/text")
    tokens = struct.pack("<300H", *(rng.randrange(1000) for _ in range(300)))
    (work / "tokens.bin").write_bytes(tokens)
    call("shard", "tokens", "tokens.bin", "--type", "uint16", "--vocabulary", "1000",
         "--out", "sets/tokens")  # fmt: skip
    # 2. Runs: half, as it is kept, and whole.
    known = {}
    for name, deck in DECKS.items():
        (work / (name + ".toml")).write_text(RUN.replace("NAME", name) + deck)
        call("train", name + ".toml")
        rows = [json.loads(row) for row in (work / name / "metrics.jsonl").open()]
        losses = {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}
        whole = work / name / "checkpoints" / ("step_%09d.h5" % STEPS)
        evaluated = json.loads(
            call("evaluate", name + ".toml", "--checkpoint", str(whole), "--json")
        )
        shutil.rmtree(work / name)
        call("train", name + ".toml", "--set", "run.stop=4 steps")
        checkpoint = "%s/checkpoints/step_%09d.h5" % (name, HALF)
        known[name] = {
            "losses": losses,
            "evaluation": {key: evaluated[key] for key in ("samples", "loss", "top1")},
            "digest": call("inspect", checkpoint, "--digest").split()[-1],
        }
        # Without the files that name this machine.
        names = shutil.ignore_patterns("environment.json", "log.txt", "best.h5")
        shutil.copytree(work / name, FOLDER / name, ignore=names)
        shutil.copy(work / (name + ".toml"), FOLDER)
    shutil.copytree(work / "sets", FOLDER / "sets")
    (FOLDER / "known.json").write_text(json.dumps(known, indent=2) + "\n")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
