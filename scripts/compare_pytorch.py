#!/usr/bin/env python3
"""Compares the speed of Trireme and PyTorch on the CPU, in images or tokens per second.

Both train the same network with the same batch on the same cores, in alternating rounds:

  V/bin/python scripts/compare_pytorch.py [--model resnet --depth 18 --image 28 --batch 128
      --threads 2 --rounds 3 --steps 30]
  V/bin/python scripts/compare_pytorch.py --model gpt [--form gpt2 --layers 6 --heads 6
      --width 384 --context 256 --vocabulary 8192 --batch 8]

The Python that runs the script needs PyTorch:

  python3 -m venv V && V/bin/pip install torch numpy

Each measurement is a process of its own.

- PyTorch: data in memory (images channels last). Every form of a precision is tried: eager and
torch.compile; bfloat16 by autocast and as a bfloat16 network with float32 master weights. The
fastest form counts.
- Trireme: `trireme train` on shards, with its loader.
- Both: SGD with momentum for images, AdamW for tokens, no clipping. The result is the median over
pieces of a few steps after the first ones, then the median over rounds.

--model gpt --help prints the options of that model.
"""

import argparse
import array
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

BATCHES = 10  # batches of random data in Trireme's shards; its epochs repeat them
# Steps in a piece: long compared with the clock's resolution, short compared with disturbances.
PIECE = 5
WARMUP_PIECES = 2  # the first steps choose algorithms, prepare weights and fill caches
FORMS = {
    "float32": ["eager", "compile"],
    "bfloat16": ["autocast", "autocast compile", "pure", "pure compile"],
}
INSTALL = "python3 -m venv V && V/bin/pip install torch numpy, then V/bin/python " + sys.argv[0]


# --- the models ---------------------------------------------------------------------------------
# A model defines its options, PyTorch's network, batch and optimizer, and Trireme's shards and
# tables [model] and [optimizer].


class ResNet:
    """Gray images; the rate counts images."""

    unit, classes = "images", 10

    def __init__(self, arguments):
        self.settings, self.units_per_sample = arguments, 1

    @staticmethod
    def add_options(parser):
        parser.add_argument("--depth", type=int, default=18)
        parser.add_argument("--width", type=int, default=64)
        parser.add_argument("--stem", choices=["small", "imagenet"], default="small")
        parser.add_argument("--image", type=int, default=28, help="height and width")
        parser.add_argument(
            "--channels",
            type=int,
            default=1,
            choices=[1],
            help="the shards are made from idx files, which are gray",
        )
        parser.add_argument("--batch", type=int, default=128, help="images a step")

    def title(self):
        settings = self.settings
        return (
            f"ResNet-{settings.depth} ({settings.image}x{settings.image}x{settings.channels}, stem "
            f"{settings.stem}, width {settings.width})"
        )

    def network(self, torch):
        from torch_resnet import ResNet as Network

        settings = self.settings
        return Network(
            settings.depth, settings.width, settings.stem, settings.channels, self.classes
        ).to(memory_format=torch.channels_last)

    def data(self, torch, dtype):
        settings = self.settings
        x = (
            torch.rand(settings.batch, settings.channels, settings.image, settings.image)
            .to(dtype)
            .contiguous(memory_format=torch.channels_last)
        )
        return x, torch.randint(0, self.classes, (settings.batch,))

    def optimizer(self, torch, weights):
        return torch.optim.SGD(weights, lr=1e-3, momentum=0.9, weight_decay=5e-4, foreach=True)

    def make_shards(self, folder):
        """Returns the arguments of `trireme shard`."""
        settings, draw = self.settings, random.Random(1)
        samples = BATCHES * settings.batch
        with open(f"{folder}/images", "wb") as file:
            file.write(
                struct.pack(">IIII", 0x803, samples, settings.image, settings.image)
                + draw.randbytes(samples * settings.image**2)
            )
        with open(f"{folder}/labels", "wb") as file:
            file.write(
                struct.pack(">II", 0x801, samples) + bytes(i % self.classes for i in range(samples))
            )
        return ["idx", f"{folder}/images", f"{folder}/labels"]

    def deck(self):
        settings = self.settings
        return f"""
[model]
kind = "resnet"
depth = {settings.depth}
width = {settings.width}
stem = "{settings.stem}"
[optimizer]
kind = "sgd"
momentum = 0.9
weight_decay = 5e-4
"""


class Gpt:
    """A language model without dropout; the rate counts tokens."""

    unit = "tokens"
    forms = {
        "gpt2": 'positions = "learned"\nnorm = "layer"\nmlp = "gelu"\ntie_embeddings = true',
        "llama": 'positions = "rope"\nnorm = "rms"\nmlp = "swiglu"\ntie_embeddings = false',
    }

    def __init__(self, arguments):
        self.settings, self.units_per_sample = arguments, arguments.context

    @staticmethod
    def add_options(parser):
        parser.add_argument("--form", choices=list(Gpt.forms), default="gpt2")
        parser.add_argument("--layers", type=int, default=6)
        parser.add_argument("--heads", type=int, default=6)
        parser.add_argument("--width", type=int, default=384)
        parser.add_argument("--context", type=int, default=256, help="tokens a sequence")
        parser.add_argument("--vocabulary", type=int, default=8192)
        parser.add_argument("--batch", type=int, default=8, help="sequences a step")

    def title(self):
        settings = self.settings
        return (
            f"{settings.form} ({settings.layers} layers, {settings.heads} heads, "
            f"width {settings.width}, context {settings.context}, vocabulary {settings.vocabulary})"
        )

    def network(self, torch):
        import torch_gpt

        settings = self.settings
        return torch_gpt.FORMS[settings.form](
            settings.layers, settings.heads, settings.width, settings.context, settings.vocabulary
        )

    def data(self, torch, dtype):
        tokens = torch.randint(
            0, self.settings.vocabulary, (self.settings.batch, self.settings.context + 1)
        )
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def optimizer(self, torch, weights):
        options = {"lr": 1e-3, "weight_decay": 0.1}
        try:
            return torch.optim.AdamW(weights, **options, fused=True)
        except RuntimeError:  # this PyTorch has fused optimizers for GPUs only
            return torch.optim.AdamW(weights, **options, foreach=True)

    def make_shards(self, folder):
        """Returns the arguments of `trireme shard`."""
        settings, draw = self.settings, random.Random(1)
        code, kind = ("H", "uint16") if settings.vocabulary <= 1 << 16 else ("I", "uint32")
        with open(f"{folder}/tokens", "wb") as file:
            array.array(
                code,
                draw.choices(
                    range(settings.vocabulary), k=BATCHES * settings.batch * settings.context + 1
                ),
            ).tofile(file)
        return [
            "tokens",
            f"{folder}/tokens",
            "--type",
            kind,
            "--vocabulary",
            str(settings.vocabulary),
        ]

    def deck(self):
        settings = self.settings
        return f"""
[model]
kind = "gpt"
layers = {settings.layers}
heads = {settings.heads}
width = {settings.width}
context = {settings.context}
{self.forms[settings.form]}
[optimizer]
kind = "adamw"
weight_decay = 0.1
"""


MODELS = {"resnet": ResNet, "gpt": Gpt}


# --- PyTorch ------------------------------------------------------------------------------------


def measure_torch(model, arguments, precision, form):
    """Returns the rate of one form, measured in this process."""
    import torch

    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

    torch.manual_seed(1)
    torch.set_num_threads(arguments.threads)
    pure, autocast = "pure" in form, "autocast" in form
    network = model.network(torch)
    dtype = torch.bfloat16 if pure else torch.float32
    master = [weight.detach().clone() for weight in network.parameters()] if pure else []
    if pure:
        network = network.to(dtype)
    weights = list(network.parameters())
    for target, weight in zip(master, weights):
        target.grad = torch.zeros_like(target)
    optimizer = model.optimizer(torch, master or weights)
    x, y = model.data(torch, dtype)
    forward = torch.compile(network) if "compile" in form else network

    def step():
        for weight in weights:
            weight.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = torch.nn.functional.cross_entropy(forward(x).float().flatten(0, -2), y.flatten())
        loss.backward()
        if pure:
            with torch.no_grad():
                torch._foreach_copy_(
                    [target.grad for target in master], [weight.grad for weight in weights]
                )
        optimizer.step()
        if pure:
            with torch.no_grad():
                torch._foreach_copy_(weights, master)
        return loss

    rates = []
    for _ in range(WARMUP_PIECES + arguments.steps // PIECE):
        start = time.perf_counter()
        for _ in range(PIECE):
            loss = step()
        loss.item()
        rates.append(
            PIECE * arguments.batch * model.units_per_sample / (time.perf_counter() - start)
        )
    return statistics.median(rates[WARMUP_PIECES:])


def run_torch(precision, form, environment):
    """Measures one form in a new process. Returns None and a message if the form does not work
    here."""
    command = [
        sys.executable,
        os.path.abspath(__file__),
        *sys.argv[1:],
        "--measure",
        precision,
        form,
    ]
    result = subprocess.run(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    if result.returncode != 0:
        return None, (result.stderr.strip().splitlines() or ["no message"])[-1]
    return json.loads(result.stdout.splitlines()[-1])["rate"], ""


# --- Trireme ------------------------------------------------------------------------------------


def call(command, environment):
    result = subprocess.run(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {result.returncode}\n{result.stdout}")


def run_trireme(model, arguments, folder, precision, number, environment):
    name = f"{precision}-{number}"
    with open(f"{folder}/{name}.toml", "w") as file:
        file.write(f"""
[run]
name = "{name}"
folder = "{folder}/{name}"
device = "cpu"
stop = "{(WARMUP_PIECES + arguments.steps // PIECE) * PIECE} steps"
[data]
train = "{folder}/data"
[batch]
global = {arguments.batch}
micro = {arguments.micro or arguments.batch}
[precision]
compute = "{precision}"
[schedule]
kind = "constant"
rate = 1e-3
[monitor]
every = "{PIECE} steps"
tensorboard = false
[checkpoint]
every = "1000000 steps"
{model.deck()}""")
    call([arguments.trireme, "train", f"{folder}/{name}.toml"], environment)
    with open(f"{folder}/{name}/metrics.jsonl") as file:
        rates = [row["samples_per_s"] for row in map(json.loads, file) if row["kind"] == "train"]
    return statistics.median(rates[WARMUP_PIECES:]) * model.units_per_sample


# --- the rounds and the table -------------------------------------------------------------------


def measure_all(model, arguments, folder, environment):
    """Returns {(precision, program and form): [rate in each round]}.

    A form that fails in the first round is left out.
    """
    rates, broken = {}, set()
    have_trireme = os.access(arguments.trireme, os.X_OK)
    if have_trireme:
        call(
            [arguments.trireme, "shard", *model.make_shards(folder), "--out", f"{folder}/data"],
            environment,
        )
    else:
        print(f"{arguments.trireme} is not built: PyTorch alone is measured")
    for number in range(arguments.rounds):
        for precision in arguments.precision.split(","):
            for form in FORMS[precision]:
                if form in broken or (arguments.no_compile and "compile" in form):
                    continue
                rate, why = run_torch(precision, form, environment)
                if rate is None:
                    broken.add(form)
                    print(f"PyTorch {precision}, {form}: does not work here: {why}")
                    continue
                rates.setdefault((precision, f"PyTorch {form}"), []).append(rate)
                print(
                    f"round {number + 1}: {precision}, PyTorch {form}: {rate:.1f} {model.unit}/s",
                    flush=True,
                )
            if have_trireme:
                rate = run_trireme(model, arguments, folder, precision, number, environment)
                rates.setdefault((precision, "Trireme"), []).append(rate)
                print(
                    f"round {number + 1}: {precision}, Trireme: {rate:.1f} {model.unit}/s",
                    flush=True,
                )
    return rates


def print_table(model, arguments, rates):
    print(
        f"\n{model.title()}, batch {arguments.batch}, {arguments.threads} threads, "
        f"{arguments.rounds} rounds of {arguments.steps} steps"
    )
    print(
        f"| precision | program | {model.unit}/s (median) | least .. most | Trireme / PyTorch's "
        "best |"
    )
    print("|---|---|---:|---:|---:|")
    for precision in arguments.precision.split(","):
        medians = {
            program: statistics.median(values)
            for (of, program), values in rates.items()
            if of == precision
        }
        best = max(
            (rate for program, rate in medians.items() if program != "Trireme"), default=None
        )
        for program, rate in medians.items():
            values = rates[precision, program]
            ratio = f"{rate / best:.2f}" if program == "Trireme" and best else ""
            print(
                f"| {precision} | {program} | {rate:.1f} | {min(values):.1f} .. {max(values):.1f} "
                f"| {ratio} |"
            )


def main():
    chosen = argparse.ArgumentParser(add_help=False)
    chosen.add_argument("--model", choices=list(MODELS), default="resnet")
    model_class = MODELS[chosen.parse_known_args()[0].model]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[chosen]
    )
    parser.add_argument("--trireme", default="build/release/bin/trireme")
    model_class.add_options(parser)
    parser.add_argument("--micro", type=int, default=0, help="Trireme's micro-batch; 0: the batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--steps", type=int, default=30, help=f"measured steps, a multiple of {PIECE}"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="float32,bfloat16", help="one or both, with a comma")
    parser.add_argument("--no-compile", action="store_true", help="PyTorch eager only")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    model = model_class(arguments)
    if unknown := [p for p in arguments.precision.split(",") if p not in FORMS]:
        parser.error(f"--precision {','.join(unknown)}: float32, bfloat16 or both")
    if arguments.steps < PIECE or arguments.steps % PIECE:
        parser.error(f"--steps {arguments.steps}: a multiple of {PIECE}")
    try:
        import torch
    except ImportError:
        print(f"skipped: this Python has no PyTorch; {INSTALL}")
        return 0
    if arguments.measure:
        print(json.dumps({"rate": measure_torch(model, arguments, *arguments.measure)}))
        return 0
    print(
        f"PyTorch {torch.__version__}; every measurement with OMP_NUM_THREADS={arguments.threads}"
    )
    environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads))
    with tempfile.TemporaryDirectory() as folder:
        print_table(model, arguments, measure_all(model, arguments, folder, environment))
    return 0


if __name__ == "__main__":
    sys.exit(main())
