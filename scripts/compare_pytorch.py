#!/usr/bin/env python3
"""Compares training by Trireme and by PyTorch on the CPU: rate, resident memory and losses.

  V/bin/python scripts/compare_pytorch.py [--cells CELL,...] [--rounds 2] [--results FILE]
  V/bin/python scripts/compare_pytorch.py --table [--results FILE]

The Python that runs the script needs PyTorch:

  python3 -m venv V && V/bin/pip install torch numpy

A cell is MODEL:PRECISION:RANKSxTHREADS, as in resnet18:float32:1x2. Each part may be "all". Two
ranks share the batch, by DistributedDataParallel over gloo and by mpirun. Each rank is bound to
cores of its own.

Both programs start from the same weights and train on the same batches in the same order, with the
same optimizer: SGD with momentum for images, AdamW for tokens, no clipping. Trireme reads shards
with its loader. PyTorch has all batches in memory, images channels last. Every form of a precision
is tried: eager and torch.compile; bfloat16 by autocast and as a bfloat16 network with float32
master weights. The form with the highest median counts.

Each measurement is a process of its own; programs and forms take turns in each round. A rate is the
median over pieces of a few steps, after the first two pieces. Memory is the largest resident set of
a process, summed over ranks. Every measurement appends a row to FILE (default:
build/compare_pytorch.jsonl), and one that is in the file is not repeated; so an interrupted script
resumes. Rows of other programs and machines are left out. The table has medians over rounds, and
the smallest and largest in brackets. There is no ratio if losses differ by more than the tolerance
of the precision: those of the first step, or those of the first five steps by more than the losses
of PyTorch's forms differ from each other.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from compared_models import BATCHES, MODELS  # noqa: E402
from safetensors_file import tensors_of, write_safetensors  # noqa: E402

LOSSES = 5  # steps whose losses are compared
WARMUP_PIECES = 2  # the first steps choose algorithms, prepare weights and fill caches
MOST_SECONDS = 900  # of one cell
CONDITIONS = ("processor", "torch", "trireme", "allocator")  # rows of other ones are left out
TOLERANCE = {"float32": 2e-4, "bfloat16": 2e-2}
FORMS = {
    "float32": ["eager", "compile"],
    "bfloat16": ["autocast", "autocast compile", "pure", "pure compile"],
}
LAYOUTS = {"1x2": (1, 2), "2x1": (2, 1)}
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
        return LAYOUTS[self.layout][0]

    @property
    def threads(self):
        return LAYOUTS[self.layout][1]

    @property
    def steps(self):
        return max(LOSSES, (WARMUP_PIECES + self.model.pieces) * self.model.piece)

    def rate(self, seconds):
        """Returns units per second from the seconds of each step."""
        piece = self.model.piece
        times = [sum(seconds[i : i + piece]) for i in range(0, len(seconds) - piece + 1, piece)]
        units = piece * self.model.batch * self.model.units_per_sample
        return statistics.median(units / t for t in times[WARMUP_PIECES:])


def parse_cells(text):
    """Returns the cells that a list of names selects. Raises ValueError."""
    found = []
    for name in text.split(","):
        parts = name.split(":")
        if len(parts) != 3:
            raise ValueError(f'"{name}" is not MODEL:PRECISION:RANKSxTHREADS')
        choices = (MODELS, FORMS, LAYOUTS)
        for part, known in zip(parts, choices):
            if part != "all" and part not in known:
                raise ValueError(f'"{part}" in "{name}" is none of all, {", ".join(known)}')
        models, precisions, layouts = (
            [key for key in known if key != "tiny"] if part == "all" else [part]
            for part, known in zip(parts, choices)
        )
        found += [
            Cell(MODELS[model], precision, layout)
            for model in models
            for precision in precisions
            for layout in layouts
        ]
    return list(dict.fromkeys(found))


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


def cores_of(cell, rank):
    """Returns the cores of a rank, of those that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    mine = cores[rank * cell.threads : (rank + 1) * cell.threads]
    return mine or cores


def run_rank(file, cores, command):
    """Runs a command on some cores and writes its largest resident set in bytes into a file."""
    os.sched_setaffinity(0, cores)
    code = subprocess.run(command).returncode
    peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    pathlib.Path(file).write_text(str(peak))
    return code


class Broken(Exception):
    """A program did not train the cell."""


class OutOfTime(Exception):
    """The time of a cell is over. The next call goes on."""


class Bench:
    """Measures cells in a folder of its own."""

    def __init__(self, trireme, folder):
        self.trireme, self.folder = pathlib.Path(trireme).resolve(), folder

    def environment(self, cell):
        return {
            **os.environ,
            "OMP_NUM_THREADS": str(cell.threads),
            "OMP_PROC_BIND": "false",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29531",
        }

    def call(self, words, cell, seconds):
        """Returns the standard output of a command. Raises Broken, and OutOfTime after some
        seconds, when it has ended the command with all its processes."""
        child = subprocess.Popen(
            [str(word) for word in words],
            env=self.environment(cell),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, errors = child.communicate(timeout=max(1, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            raise OutOfTime from None
        if child.returncode != 0:
            lines = (errors.strip() or out.strip()).splitlines()
            raise Broken(f"exit {child.returncode}: {lines[-1] if lines else 'no message'}")
        return out

    def ranks_peak(self, cell):
        return sum(int((self.folder / f"peak{rank}").read_text()) for rank in range(cell.ranks))

    def torch(self, cell, form, seconds):
        me = [sys.executable, str(pathlib.Path(__file__).resolve())]
        out = self.call([*me, "--torch-ranks", cell.name, form, self.folder], cell, seconds)
        return {**json.loads(out.splitlines()[-1]), "peak_bytes": self.ranks_peak(cell)}

    def prepare(self, cell):
        """Makes weights and shards of a model once."""
        folder = self.folder / cell.model.name
        if not folder.exists():
            partial = self.folder / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            words = cell.model.make_shards(partial)
            shard = [self.trireme, "shard", *words, "--out", partial / "data"]
            self.call(shard, cell, MOST_SECONDS)
            write_weights(cell, partial / "weights.safetensors")
            partial.rename(folder)
        return folder

    def run_trireme(self, cell, seconds):
        data, run = self.prepare(cell), self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        deck = run / "deck.toml"
        deck.write_text(f"""
[run]
name = "compare"
folder = "{run}/out"
device = "cpu"
stop = "{cell.steps} steps"
[data]
train = "{data}/data"
shuffle = "none"
[batch]
global = {cell.model.batch}
micro = {cell.model.batch // cell.ranks}
[precision]
compute = "{cell.precision}"
[schedule]
kind = "constant"
rate = 1e-3
[monitor]
every = "1 step"
tensorboard = false
[checkpoint]
every = "1000000 steps"
{cell.model.deck()}""")
        weights = data / "weights.safetensors"
        self.call([self.trireme, "import", weights, deck, "--out", run / "0.h5"], cell, seconds)
        train = [self.trireme, "train", deck, "--restart", run / "0.h5"]
        launch = ["mpirun", "--oversubscribe", "-n", cell.ranks] if cell.ranks > 1 else []
        me = [sys.executable, pathlib.Path(__file__).resolve()]
        self.call([*launch, *me, "--trireme-rank", cell.name, self.folder, *train], cell, seconds)
        with open(run / "out/metrics.jsonl") as file:
            rows = [row for row in map(json.loads, file) if row["kind"] == "train"]
        return {
            "seconds": [row["step_s"] for row in rows],
            "losses": [row["loss"] for row in rows[:LOSSES]],
            "peak_bytes": self.ranks_peak(cell),
        }

    def measure(self, cell, program, seconds):
        if program == "Trireme":
            return self.run_trireme(cell, seconds)
        return self.torch(cell, program.removeprefix("PyTorch "), seconds)


def torch_ranks(cell, form, folder):
    """Starts the PyTorch ranks of a measurement and passes on the output of rank 0."""
    me = [sys.executable, str(pathlib.Path(__file__).resolve())]
    children = []
    for rank in range(cell.ranks):
        words = [*me, "--torch-rank", cell.name, form, folder, str(rank)]
        children.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
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
    return run_rank(f"{folder}/peak{rank}", cores_of(cell, int(rank)), words)


def torch_train(cell, form, rank):
    print(json.dumps(train_torch(cell, form, int(rank))))
    return 0


def trireme_rank(cell, folder, *command):
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or 0)
    return run_rank(f"{folder}/peak{rank}", cores_of(cell, rank), command)


ROLES = {
    "--torch-ranks": torch_ranks,
    "--torch-rank": torch_rank,
    "--torch-train": torch_train,
    "--trireme-rank": trireme_rank,
}


# --- rounds and table ---------------------------------------------------------------------------


def read_rows(path):
    """Returns the rows of the results. Removes an incomplete last line, which a kill leaves."""
    if not path.exists():
        return []
    text = path.read_text()
    complete = text[: text.rfind("\n") + 1]
    if text != complete:
        os.truncate(path, len(complete.encode()))
    rows = [json.loads(line) for line in complete.splitlines()]
    if not all(isinstance(row, dict) and {"cell", "program", "round"} <= set(row) for row in rows):
        raise ValueError("has lines that are no rows of this script")
    return rows


def conditions(trireme):
    import torch

    processor = platform.processor() or platform.machine()
    flags = ""
    if os.path.exists("/proc/cpuinfo"):
        fields = {}
        for line in pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
        processor = f"{fields.get('model name')}, family {fields.get('cpu family')}"
        processor += f", model {fields.get('model')}"
        wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
        flags = ", ".join(flag for flag in wanted if flag in fields.get("flags", "").split())
    version = subprocess.run([trireme, "--version"], capture_output=True, text=True).stdout.strip()
    digest = hashlib.sha256(pathlib.Path(trireme).read_bytes()).hexdigest()[:12]
    allocator = os.environ.get("LD_PRELOAD") or " ".join(platform.libc_ver()) + " malloc"
    return {
        "processor": f"{processor} ({flags})",
        "torch": torch.__version__,
        "trireme": f"{version}, sha256 {digest}",
        "allocator": allocator,
        "date": time.strftime("%Y-%m-%d"),
    }


def same_conditions(rows, setting):
    """Returns the rows that were measured with these programs on this machine."""
    keys = [key for key in CONDITIONS if key in setting]
    return [row for row in rows if all(row.get(key) == setting[key] for key in keys)]


def measure_cell(bench, cell, rounds, results, setting):
    """Appends a row for each measurement of a cell that the results lack."""
    rows = same_conditions(read_rows(results), setting)
    known = {(row["program"], row["round"]) for row in rows if row["cell"] == cell.name}
    broken = {row["program"] for row in rows if row["cell"] == cell.name and "broken" in row}
    end = time.monotonic() + MOST_SECONDS
    programs = ["Trireme"] + [f"PyTorch {form}" for form in FORMS[cell.precision]]
    for number in range(1, rounds + 1):
        # In turns, and each round in the other direction.
        for program in programs if number % 2 else programs[::-1]:
            if (program, number) in known or program in broken:
                continue
            row = {"cell": cell.name, "program": program, "round": number, **setting}
            try:
                found = bench.measure(cell, program, end - time.monotonic())
                row |= {"rate": cell.rate(found["seconds"]), "peak_bytes": found["peak_bytes"]}
                row["losses"] = found["losses"]
                print(f"{cell.name}, round {number}, {program}: {row['rate']:.1f}", flush=True)
            except Broken as error:
                row["broken"] = str(error)
                broken.add(program)
                print(f"{cell.name}, {program}: {error}", flush=True)
            except OutOfTime:
                print(f"{cell.name}: {MOST_SECONDS} s are over; start the script again to go on")
                return
            with open(results, "a") as file:
                file.write(json.dumps(row) + "\n")


def difference(a, b):
    return max(abs(p - q) / abs(q) for p, q in zip(a, b, strict=True))


def with_range(values, scale=1.0, digits=1):
    low, middle, high = (
        f"{scale * value:.{digits}f}"
        for value in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} [{low}, {high}]"


def print_table(cells, rows):
    """Prints the table, and returns whether all losses agree."""
    agree = True
    print("| model | precision | ranks x threads | Trireme | PyTorch's best | form | ratio", end="")
    print(" | memory, GiB: Trireme, PyTorch | losses differ by: first, five, PyTorch's |")
    print("|---|---|---|---:|---:|---|---:|---:|---:|")
    for cell in cells:
        found = {}
        for row in rows:
            if row["cell"] == cell.name and "rate" in row:
                found.setdefault(row["program"], []).append(row)
        torch = {name: group for name, group in found.items() if name != "Trireme"}
        if "Trireme" not in found or not torch:
            continue

        def rates(name):
            return [row["rate"] for row in found[name]]

        best = max(torch, key=lambda name: statistics.median(rates(name)))
        usual = f"PyTorch {FORMS[cell.precision][0]}"
        reference = found.get(usual, found[best])[0]
        losses = found["Trireme"][0]["losses"]
        first = difference(losses[:1], reference["losses"][:1])
        apart = difference(losses, reference["losses"])
        tried = [group[0]["losses"] for group in torch.values()]
        forms = max(difference(a, b) for a in tried for b in tried)
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
    for row in rows:
        if "broken" in row and row["cell"] in {cell.name for cell in cells}:
            print(f"{row['cell']}, {row['program']}: {row['broken']}")
    return agree


def main():
    if (code := role(sys.argv[1:])) is not None:
        return code
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trireme", default="build/release/bin/trireme")
    parser.add_argument("--cells", default="all:all:all")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--results", type=pathlib.Path, default="build/compare_pytorch.jsonl")
    parser.add_argument("--table", action="store_true", help="measures nothing")
    given = parser.parse_args()
    try:
        cells = parse_cells(given.cells)
    except ValueError as error:
        parser.error(f"--cells: {error}")
    if given.rounds < 1:
        parser.error(f"--rounds {given.rounds}: at least 1")
    try:
        rows = read_rows(given.results)
    except (OSError, ValueError) as error:
        parser.error(f"--results {given.results}: {error}; name a new file")
    setting = rows[-1] if rows else {}
    if not given.table:
        if not os.access(given.trireme, os.X_OK) or os.path.isdir(given.trireme):
            parser.error(f"--trireme {given.trireme}: is not built")
        try:
            import torch  # noqa: F401
        except ImportError:
            print(f"skipped: this Python has no PyTorch; {INSTALL}")
            return 0
        given.results.parent.mkdir(parents=True, exist_ok=True)
        setting = conditions(given.trireme)
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(given.trireme, pathlib.Path(folder))
            for cell in cells:
                measure_cell(bench, cell, given.rounds, given.results, setting)
    rows = same_conditions(read_rows(given.results), setting)
    if rows:
        last = rows[-1]
        print(f"{last['processor']}; PyTorch {last['torch']}; {last['trireme']}; ", end="")
        print(f"{last['allocator']}; {last['date']}\n")
    return 0 if print_table(cells, rows) else 1


if __name__ == "__main__":
    sys.exit(main())
