#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares training by Trireme and by PyTorch on the CPU: rate, resident memory and losses.

  V/bin/python scripts/compare_pytorch.py [--cells CELL,...] [--rounds 2] [--results FILE]
  V/bin/python scripts/compare_pytorch.py --table [--results FILE]

The Python that runs the script needs PyTorch:

  python3 -m venv V && V/bin/pip install torch numpy

A cell is MODEL:PRECISION:RANKSxTHREADS, as in resnet18:float32:1x2. Each part may be "all". Two
ranks share the batch, by DistributedDataParallel over gloo and by mpirun. Each rank is bound to
cores of its own: the first that the script may use. Choose others with `taskset -c`. The models are
those of compared_models.py: tiny, resnet18, resnet50, gpt, gpt2 and llama. gpt2 and llama take up
to 11 GiB of memory, and about 10 minutes a round.

Both programs start from the same weights and train on the same batches in the same order, with the
same optimizer: SGD with momentum for images, AdamW for tokens, no clipping. Trireme reads shards
with its loader. PyTorch has all batches in memory, images channels last. Every form of a precision
is tried: eager and torch.compile; bfloat16 by autocast and as a bfloat16 network with float32
master weights. The form with the highest median counts.

Each measurement is a process of its own; programs and forms take turns in each round. A rate is the
median over pieces of a few steps, after the first two pieces. Memory is the largest resident set of
a process, summed over ranks. Every measurement appends a row to FILE (default:
build/compare_pytorch.jsonl), and one that is in the file is not repeated; so an interrupted script
resumes. Rows of other programs, machines, cores and launchers (MPIEXEC) are left out. The table has
medians over rounds, and the smallest and largest in brackets. There is no ratio if losses differ by
more than the tolerance of the precision: those of the first step, or those of the first five steps
by more than the losses of PyTorch's forms differ from each other.

The exit code is 1 if losses differ or a cell is not in the table. A cell is in the table once every
form of its precision was tried, and Trireme and at least one form were measured. It is 2 if the
script cannot measure.
"""

import dataclasses
import functools
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import training_bench  # noqa: E402
from compared_models import BATCHES, MODELS  # noqa: E402
from safetensors_file import tensors_of, write_safetensors  # noqa: E402
from training_bench import Layout, with_range  # noqa: E402

LOSSES = 5  # steps whose losses are compared
TOLERANCE = {"float32": 2e-4, "bfloat16": 2e-2}
FORMS = {
    "float32": ["eager", "compile"],
    "bfloat16": ["autocast", "autocast compile", "pure", "pure compile"],
}
LAYOUTS = {"1x2": Layout(ranks=1, threads=2), "2x1": Layout(ranks=2, threads=1)}
INSTALL = "python3 -m venv V && V/bin/pip install torch numpy, then V/bin/python " + sys.argv[0]


# --- cells ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Cell:
    model: object
    precision: str
    layout: str

    @property
    def name(self):
        return f"{self.model.name}:{self.precision}:{self.layout}"

    @property
    def ranks(self):
        return LAYOUTS[self.layout].ranks

    @property
    def threads(self):
        return LAYOUTS[self.layout].threads

    @property
    def programs(self):
        return ["Trireme"] + [f"PyTorch {form}" for form in FORMS[self.precision]]

    @property
    def steps(self):
        return max(LOSSES, (training_bench.WARMUP_PIECES + self.model.pieces) * self.model.piece)

    def rate(self, seconds):
        """Returns units per second from the seconds of each step."""
        return statistics.median(training_bench.piece_rates(self.model, self.model.batch, seconds))


def parse_cells(text):
    """Returns the cells that a list of names selects. Raises ValueError."""
    return [
        Cell(MODELS[model], precision, layout)
        for model, precision, layout in training_bench.select(text, MODELS, FORMS, LAYOUTS)
    ]


# --- PyTorch ------------------------------------------------------------------------------------


def write_weights(cell, path):
    """Writes initial weights as safetensors."""
    import torch

    torch.manual_seed(1)
    write_safetensors(path, tensors_of(cell.model.network()))


def train_torch(cell, form, rank):
    """Trains one rank in this process. Returns seconds and losses of its steps."""
    import torch

    torch.set_num_threads(cell.threads)
    pure, autocast = "pure" in form, "autocast" in form
    dtype = torch.bfloat16 if pure else torch.float32
    torch.manual_seed(1)  # as write_weights()
    network = cell.model.network().to(memory_format=torch.channels_last)
    master = [weight.detach().clone() for weight in network.parameters()] if pure else []
    network = network.to(dtype)
    weights = list(network.parameters())
    for target in master:
        target.grad = torch.zeros_like(target)

    def groups(decay):
        of = master or weights
        return [
            {"params": [w for w in of if w.dim() > 1], "weight_decay": decay},
            {"params": [w for w in of if w.dim() <= 1], "weight_decay": 0.0},
        ]

    optimizer = cell.model.optimizer(torch, groups)
    batches = cell.model.batches(torch, cell.ranks, rank, dtype)
    forward = network
    if cell.ranks > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=cell.ranks)
        forward = torch.nn.parallel.DistributedDataParallel(forward)
    if "compile" in form:
        forward = torch.compile(forward)
    seconds, losses = [], []
    for step in range(cell.steps):
        x, y = batches[step % BATCHES]
        start = time.perf_counter()
        for weight in weights:
            weight.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = torch.nn.functional.cross_entropy(forward(x).float().flatten(0, -2), y.flatten())
        loss.backward()
        if pure:
            with torch.no_grad():
                gradients = [weight.grad for weight in weights]
                torch._foreach_copy_([target.grad for target in master], gradients)
        optimizer.step()
        if pure:
            with torch.no_grad():
                torch._foreach_copy_(weights, master)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    if cell.ranks > 1:
        total = torch.tensor(losses)
        torch.distributed.all_reduce(total)
        losses = (total / cell.ranks).tolist()
        torch.distributed.destroy_process_group()
    return {"seconds": seconds, "losses": losses[:LOSSES]}


# --- processes ----------------------------------------------------------------------------------


def run_torch(cell, bench, form, seconds):
    me = [sys.executable, pathlib.Path(__file__).resolve()]
    words = [*me, "--torch-ranks", cell.name, form, bench.folder]
    text, _ = training_bench.call(words, cell.threads, seconds)
    return json.loads(text.splitlines()[-1])


def run_trireme(cell, bench, seconds):
    weights = bench.folder / f"{cell.model.name}.safetensors"
    if not weights.exists():
        write_weights(cell, weights)
    layout = LAYOUTS[cell.layout]
    [rows] = bench.train(cell.model, cell.precision, layout, cell.steps, seconds, weights)
    return {
        "seconds": [row["step_s"] for row in rows],
        "losses": [row["loss"] for row in rows[:LOSSES]],
    }


def measure(cell, bench, program, seconds):
    """Returns rate, memory and losses of a cell. Raises Broken and OutOfTime."""
    if program == "Trireme":
        found = run_trireme(cell, bench, seconds)
    else:
        found = run_torch(cell, bench, program.removeprefix("PyTorch "), seconds)
    if not are_losses(found["losses"]):
        raise training_bench.Broken(f"its losses are {found['losses']}")
    return {
        "rate": cell.rate(found["seconds"]),
        "peak_bytes": bench.peak_bytes(LAYOUTS[cell.layout]),
        "losses": found["losses"],
    }


def torch_ranks(cell, form, folder):
    """Starts the PyTorch ranks of a measurement and passes on the output of rank 0."""
    me = [sys.executable, str(pathlib.Path(__file__).resolve())]
    with socket.create_server(("127.0.0.1", 0)) as server:  # a port that was free
        port = server.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = []
    for rank in range(cell.ranks):
        words = [*me, "--torch-rank", cell.name, form, folder, str(rank)]
        children.append(
            subprocess.Popen(words, env=os.environ | place, stdout=subprocess.PIPE, text=True)
        )
    texts = [child.communicate()[0] for child in children]
    sys.stdout.write(texts[0])
    return max(abs(child.returncode) for child in children)


def role(words):
    """Runs this process in the role that the script gave it. Returns None for other words."""
    if not words or words[0] not in ROLES:
        return None
    cell = parse_cells(words[1])[0]
    return ROLES[words[0]](cell, *words[2:])


def torch_rank(cell, form, folder, rank):
    words = [sys.executable, str(pathlib.Path(__file__).resolve())]
    words += ["--torch-train", cell.name, form, rank]
    first = int(rank) * cell.threads
    return training_bench.run_on_cores(f"{folder}/peak0.{rank}", first, cell.threads, words)


def torch_train(cell, form, rank):
    print(json.dumps(train_torch(cell, form, int(rank))))
    return 0


ROLES = {"--torch-ranks": torch_ranks, "--torch-rank": torch_rank, "--torch-train": torch_train}


# --- table ---------------------------------------------------------------------------------------


def are_losses(values):
    """Returns whether these are the losses of the steps that are compared."""
    return (
        isinstance(values, list)
        and len(values) == LOSSES
        and all(map(training_bench.is_positive, values))
    )


def difference(a, b):
    return max(abs(p - q) / abs(q) for p, q in zip(a, b, strict=True))


VALUES = dict.fromkeys(("rate", "peak_bytes"), training_bench.is_positive) | {"losses": are_losses}


def print_table(cells, rows):
    """Prints the table. Returns whether every cell is in it and all losses agree."""
    agree, missing = True, []
    print("| model | precision | ranks x threads | Trireme | PyTorch's best | form | ratio", end="")
    print(" | memory, GiB: Trireme, PyTorch | losses differ by: first, five, PyTorch's |")
    print("|---|---|---|---:|---:|---|---:|---:|---:|")
    for cell in cells:
        found, broken = {}, set()
        for row in rows:
            if row["cell"] == cell.name and "broken" in row:
                broken.add(row["program"])
            elif row["cell"] == cell.name:
                found.setdefault(row["program"], []).append(row)
        torch = {name: group for name, group in found.items() if name != "Trireme"}
        # The best form is not known before all were tried.
        tried = all(name in found or name in broken for name in cell.programs)
        if "Trireme" not in found or not torch or not tried:
            missing.append(cell.name)
            continue

        def rates(name):
            return [row["rate"] for row in found[name]]

        best = max(torch, key=lambda name: statistics.median(rates(name)))
        usual = f"PyTorch {FORMS[cell.precision][0]}"
        reference = found.get(usual, found[best])[0]
        losses = found["Trireme"][0]["losses"]
        first = difference(losses[:1], reference["losses"][:1])
        apart = difference(losses, reference["losses"])
        of_forms = [group[0]["losses"] for group in torch.values()]
        forms = max(difference(a, b) for a in of_forms for b in of_forms)
        tolerance = TOLERANCE[cell.precision]
        ratio = statistics.median(rates("Trireme")) / statistics.median(rates(best))
        equal = first <= tolerance and apart <= max(tolerance, forms)
        agree = agree and equal
        memory = ", ".join(
            f"{statistics.median(row['peak_bytes'] for row in found[name]) / 2**30:.2f}"
            for name in ("Trireme", best)
        )
        print(
            f"| {cell.model.title} | {cell.precision} | {cell.layout.replace('x', ' x ')} "
            f"| {with_range(rates('Trireme'))} | {with_range(rates(best))} "
            f"| {best.removeprefix('PyTorch ')} | {f'{ratio:.2f}' if equal else 'none'} "
            f"| {memory} | {first:.0e}, {apart:.0e}, {forms:.0e} |"
        )
    training_bench.print_broken(rows, [cell.name for cell in cells])
    training_bench.print_missing(missing)
    return agree and not missing


def main():
    parser = training_bench.make_parser(__doc__, "all:all:all", "build/compare_pytorch.jsonl")
    given, cells, results = training_bench.read_options(
        parser, parse_cells, VALUES, torch=training_bench.is_text
    )
    further = {}
    if not given.table:
        try:
            import torch
        except ImportError:
            print(f"skipped: this Python has no PyTorch; {INSTALL}")
            return 0
        further = {"torch": torch.__version__}
    measures = [(cell.name, cell.programs, functools.partial(measure, cell)) for cell in cells]
    rows = training_bench.measure_cells(given, results, further, measures)
    return 0 if print_table(cells, rows) else 1


if __name__ == "__main__":
    code = role(sys.argv[1:])
    sys.exit(training_bench.run_script(main) if code is None else code)
