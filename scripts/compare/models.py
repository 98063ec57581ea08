# SPDX-License-Identifier: Apache-2.0
"""The models whose training is compared: networks, data, optimizers and decks."""

import array
import dataclasses
import random
import struct

from deck_text import deck_text
from safetensors_file import tensors_of, write_safetensors

BATCHES = 8  # batches in the data; epochs repeat them
MEAN, STD = 0.5, 0.25  # of normalized pixels


def decay_groups(weights, decay):
    """Returns the groups of an optimizer of PyTorch: only matrices and kernels decay."""
    groups = {False: [], True: []}
    for weight in weights:
        # Of three extents: the class token and positions of a vision transformer.
        groups[weight.dim() in (2, 4)].append(weight)
    return [{"params": groups[key], "weight_decay": decay * key} for key in (True, False)]


def adamw(torch, weights):
    groups = decay_groups(weights, 0.1)
    try:
        return torch.optim.AdamW(groups, lr=1e-3, fused=True)
    except RuntimeError:  # this PyTorch has fused optimizers for GPUs only
        return torch.optim.AdamW(groups, lr=1e-3, foreach=True)


ADAMW = {"optimizer.kind": "adamw", "optimizer.weight_decay": 0.1}


@dataclasses.dataclass(frozen=True)
class Images:
    """A ResNet on random images; the rate counts images."""

    name: str
    title: str
    depth: int
    stem: str
    side: int
    channels: int
    batch: int  # images a step, over all ranks
    piece: int  # steps
    pieces: int
    width: int = 64
    classes: int = 10
    unit: str = "images"
    units_per_sample: int = 1

    def network(self):
        from compare.torch_resnet import ResNet

        return ResNet(self.depth, self.width, self.stem, self.channels, self.classes)

    def optimizer(self, torch, weights):
        return torch.optim.SGD(decay_groups(weights, 5e-4), lr=1e-3, momentum=0.9, foreach=True)

    def numbers(self):
        """Returns pixels and labels of all samples, as bytes: [n, side, side, channels] and [n]."""
        draw, count = random.Random(1), BATCHES * self.batch
        pixels = draw.randbytes(count * self.side**2 * self.channels)
        return pixels, bytes(draw.randrange(self.classes) for _ in range(count))

    def batches(self, torch, ranks, rank, dtype):
        """Returns the batches of a rank: x [B, channels, side, side], channels last, and y [B]."""
        pixels, labels = self.numbers()
        shape = (BATCHES, ranks, -1, self.side, self.side, self.channels)
        x = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(shape)[:, rank]
        y = torch.frombuffer(bytearray(labels), dtype=torch.uint8).reshape(BATCHES, ranks, -1)
        return [
            ((part.permute(0, 3, 1, 2).float() / 255 - MEAN).div(STD).to(dtype), labels.long())
            for part, labels in zip(x, y[:, rank])
        ]

    def make_shards(self, folder):
        """Returns the arguments of `trireme shard`."""
        pixels, labels = self.numbers()
        extents = [BATCHES * self.batch, self.side, self.side]
        extents += [self.channels] if self.channels > 1 else []
        with open(folder / "images", "wb") as file:
            file.write(struct.pack(f">{1 + len(extents)}I", 0x800 + len(extents), *extents))
            file.write(pixels)
        with open(folder / "labels", "wb") as file:
            file.write(struct.pack(">II", 0x801, len(labels)) + labels)
        return ["idx", folder / "images", folder / "labels"]

    def deck(self):
        mean, std = [MEAN] * self.channels, [STD] * self.channels
        return f"""
[data.augment]
normalize = {{ mean = {mean}, std = {std} }}
[model]
kind = "resnet"
depth = {self.depth}
width = {self.width}
stem = "{self.stem}"
[optimizer]
kind = "sgd"
momentum = 0.9
weight_decay = 5e-4
"""


@dataclasses.dataclass(frozen=True)
class VitImages(Images):
    """A vision transformer on random images. `depth` counts its blocks."""

    heads: int = 6
    patch: int = 16

    def network(self):
        from compare.torch_vit import VisionTransformer

        extents = (self.side, self.side), self.channels, self.classes, self.patch
        return VisionTransformer(*extents, self.depth, self.heads, self.width)

    def optimizer(self, torch, weights):
        return adamw(torch, weights)

    def deck(self):
        mean, std = [MEAN] * self.channels, [STD] * self.channels
        return deck_text(
            {
                "data.augment.normalize.mean": mean,
                "data.augment.normalize.std": std,
                "model.kind": "vit",
                "model.patch": self.patch,
                "model.layers": self.depth,
                "model.heads": self.heads,
                "model.width": self.width,
                **ADAMW,
            }
        )


# Keys of a deck that choose a form of torch_gpt.FORMS
DECK_OF_FORM = {
    "gpt2": {},
    "llama": {
        "model.mlp": "swiglu",
        "model.norm": "rms",
        "model.positions": "rope",
        "model.tie_embeddings": False,
    },
}


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A transformer in the form of GPT-2 or Llama, without dropout; the rate counts tokens."""

    name: str
    title: str
    layers: int
    heads: int
    width: int
    context: int
    vocabulary: int
    batch: int  # sequences a step, over all ranks
    piece: int
    pieces: int
    form: str = "gpt2"  # of torch_gpt.FORMS
    kv_heads: int | None = None  # default: as many as heads
    mlp_width: int | None = None  # default: the form's
    unit: str = "tokens"

    @property
    def units_per_sample(self):
        return self.context

    def network(self):
        from compare.torch_gpt import FORMS

        sizes = (self.layers, self.heads, self.width, self.context, self.vocabulary)
        return FORMS[self.form](*sizes, self.mlp_width, self.kv_heads)

    def optimizer(self, torch, weights):
        return adamw(torch, weights)

    def numbers(self):
        count = BATCHES * self.batch * self.context + 1
        return array.array("H", random.Random(1).choices(range(self.vocabulary), k=count))

    def batches(self, torch, ranks, rank, dtype):
        """Returns the batches of a rank: tokens and targets, int64 [B, context]."""
        tokens = torch.tensor(self.numbers())
        x, y = (
            part.reshape(BATCHES, ranks, -1, self.context)[:, rank].contiguous()
            for part in (tokens[:-1], tokens[1:])
        )
        return list(zip(x, y))

    def make_shards(self, folder):
        """Returns the arguments of `trireme shard`."""
        with open(folder / "tokens", "wb") as file:
            self.numbers().tofile(file)
        return ["tokens", file.name, "--type", "uint16", "--vocabulary", self.vocabulary]

    def deck(self):
        names = ("layers", "heads", "width", "context", "kv_heads", "mlp_width")
        sizes = {f"model.{name}": getattr(self, name) for name in names if getattr(self, name)}
        return deck_text({"model.kind": "gpt", **sizes, **ADAMW, **DECK_OF_FORM[self.form]})


def draw_network(model):
    """Returns the PyTorch network of a model with weights that are the same in each process."""
    import torch

    torch.manual_seed(1)
    return model.network()


def write_weights(network, path):
    """Writes the weights of a PyTorch network as safetensors."""
    write_safetensors(path, tensors_of(network))


def deck_of(model, values):
    """Returns the deck that trains a model on the CPU at a constant rate. `values`: further dotted
    keys."""
    fixed = {
        "run.device": "cpu",
        "schedule.kind": "constant",
        "schedule.rate": 1e-3,
        "monitor.tensorboard": False,
        "checkpoint.every": "1000000 steps",
    }
    return deck_text(fixed | values) + model.deck()


MODELS = {
    model.name: model
    for model in (
        Images("tiny", "ResNet-8, 8 x 8, for trying the script", 8, "small", 8, 1, 4, 1, 6, 4),
        Images("resnet18", "ResNet-18, 28 x 28, gray, batch 128", 18, "small", 28, 1, 128, 2, 5),
        Images("resnet50", "ResNet-50, 224 x 224, batch 16", 50, "imagenet", 224, 3, 16, 1, 5),
        VitImages("vit_s", "ViT-S/16, 224 x 224, batch 8", 12, "", 224, 3, 8, 1, 5, 384),
        Tokens("gpt", "GPT 6 x 384, context 256, batch 8", 6, 6, 384, 256, 8192, 8, 2, 5),
        Tokens("gpt2", "GPT-2 124M, context 1024, batch 4", 12, 12, 768, 1024, 50257, 4, 1, 3),
        Tokens(
            name="llama",
            title="4 layers of Llama 1B, context 1024, batch 2",
            layers=4,
            heads=32,
            width=2048,
            context=1024,
            vocabulary=8192,
            batch=2,
            piece=1,
            pieces=3,
            form="llama",
            kv_heads=8,
            mlp_width=8192,
        ),
    )
}
