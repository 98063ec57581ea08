"""Trains the models of compared_models.py with the program, for scripts that compare speeds.

Bench runs a training in processes that are bound to cores. measure_in_turns() runs programs or
layouts in turns and appends a row for each measurement to a file, so an interrupted script resumes.
A script finds its rows with read_rows() and same_conditions().

Also a program, which Bench starts for each rank:

  training_bench.py PEAK-FILES FIRST-CORE THREADS COMMAND...

It runs COMMAND on THREADS cores of its own and writes the largest resident set in bytes into the
file PEAK-FILES followed by the rank. The cores are those from FIRST-CORE + rank * THREADS of the
cores that it may use.
"""

import concurrent.futures
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
import time

LAUNCHER = os.environ.get("MPIEXEC", "mpirun")
WARMUP_PIECES = 2  # the first steps choose algorithms, prepare weights and fill caches
MOST_SECONDS = 900  # of one cell


class Broken(Exception):
    """A program did not train the cell."""


class OutOfTime(Exception):
    """The time of a cell is over. The next call goes on."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """`copies` unconnected processes at once, or one run of `ranks`. Copies share the batch."""

    ranks: int
    threads: int  # of a rank
    copies: int = 1


# --- rates ---------------------------------------------------------------------------------------


def piece_rates(model, batch, seconds):
    """Returns units per second in each piece of a few steps, without the first pieces."""
    piece = model.piece
    times = [sum(seconds[i : i + piece]) for i in range(0, len(seconds) - piece + 1, piece)]
    return [piece * batch * model.units_per_sample / time for time in times[WARMUP_PIECES:]]


def with_range(values, scale=1.0, digits=1):
    """Returns the median as text, and in brackets the smallest and the largest value."""
    low, middle, high = (
        f"{scale * value:.{digits}f}"
        for value in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} [{low}, {high}]"


# --- processes -----------------------------------------------------------------------------------


def run_on_cores(peak_file, first, threads, command):
    """Runs a command on some of the cores that this process may use, on all if there are too few.
    Writes its largest resident set in bytes into a file. Returns its exit code."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[first : first + threads] or cores)
    code = subprocess.run(command).returncode
    peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    pathlib.Path(peak_file).write_text(str(peak))
    return code


def environment(threads):
    """Returns the environment of a program: ranks are not bound by their launcher."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "OMP_PROC_BIND": "false",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_mapby": ":oversubscribe",  # the name in Open MPI 5 and 6
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29531",
    }


def call(words, threads, seconds):
    """Returns the standard output of a command. Raises Broken, and OutOfTime after some seconds,
    when it has ended the command with all its processes."""
    child = subprocess.Popen(
        [str(word) for word in words],
        env=environment(threads),
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


class Bench:
    """Trains models with the program in a folder of its own."""

    def __init__(self, trireme, folder):
        self.trireme, self.folder = pathlib.Path(trireme).resolve(), folder

    def prepare(self, model):
        """Makes the shards of a model once. Returns their folder."""
        folder = self.folder / model.name
        if not folder.exists():
            partial = self.folder / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            words = model.make_shards(partial)
            call([self.trireme, "shard", *words, "--out", partial / "data"], 1, MOST_SECONDS)
            partial.rename(folder)
        return folder

    def write_deck(self, model, precision, steps, batch, ranks, run):
        """Writes the deck of a run, whose micro-batches are the batch of a rank."""
        deck = run / "deck.toml"
        deck.write_text(f"""
[run]
name = "compare"
folder = "{run}/out"
device = "cpu"
stop = "{steps} steps"
[data]
train = "{self.prepare(model)}/data"
shuffle = "none"
[batch]
global = {batch}
micro = {batch // ranks}
[precision]
compute = "{precision}"
[schedule]
kind = "constant"
rate = 1e-3
[monitor]
every = "1 step"
tensorboard = false
[checkpoint]
every = "1000000 steps"
{model.deck()}""")
        return deck

    def train(self, model, precision, layout, steps, seconds, weights=None):
        """Trains, and returns the rows of steps of each copy. The weights (safetensors) are the
        program's own without a file. Raises Broken and OutOfTime."""
        batch = model.batch // layout.copies
        commands = []
        for copy in range(layout.copies):
            run = self.folder / f"run{copy}"
            shutil.rmtree(run, ignore_errors=True)
            run.mkdir()
            deck = self.write_deck(model, precision, steps, batch, layout.ranks, run)
            restart = []
            if weights:
                restart = ["--restart", run / "0.h5"]
                call([self.trireme, "import", weights, deck, "--out", run / "0.h5"], 1, seconds)
            launch = [LAUNCHER, "-n", layout.ranks] if layout.ranks > 1 else []
            first = copy * layout.ranks * layout.threads
            me = [sys.executable, pathlib.Path(__file__).resolve()]
            me += [self.folder / f"peak{copy}.", first, layout.threads]
            commands.append([*launch, *me, self.trireme, "train", deck, *restart])
        with concurrent.futures.ThreadPoolExecutor(len(commands)) as pool:
            results = [pool.submit(call, words, layout.threads, seconds) for words in commands]
        for result in results:
            result.result()
        return [self.rows_of_steps(copy) for copy in range(layout.copies)]

    def rows_of_steps(self, copy):
        with open(self.folder / f"run{copy}/out/metrics.jsonl") as file:
            return [row for row in map(json.loads, file) if row["kind"] == "train"]

    def peak_bytes(self, layout):
        """Returns the largest resident sets of the processes, added up."""
        return sum(
            int((self.folder / f"peak{copy}.{rank}").read_text())
            for copy in range(layout.copies)
            for rank in range(layout.ranks)
        )


# --- results -------------------------------------------------------------------------------------


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
    """Returns what a measurement depends on, and the date."""
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
        "trireme": f"{version}, sha256 {digest}",
        "allocator": allocator,
        "date": time.strftime("%Y-%m-%d"),
    }


def same_conditions(rows, setting):
    """Returns the rows that were measured with these programs on this machine. A date does not
    matter."""
    keys = [key for key in ("processor", "torch", "trireme", "allocator") if key in setting]
    return [row for row in rows if all(row.get(key) == setting[key] for key in keys)]


def measure_in_turns(cell, programs, rounds, results, setting, measure):
    """Appends a row for each measurement of a cell that the results lack.

    `measure(program, seconds)` returns the values of a row, of which "rate" is printed.
    """
    rows = same_conditions(read_rows(results), setting)
    known = {(row["program"], row["round"]) for row in rows if row["cell"] == cell}
    broken = {row["program"] for row in rows if row["cell"] == cell and "broken" in row}
    end = time.monotonic() + MOST_SECONDS
    for number in range(1, rounds + 1):
        # In turns, and each round in the other direction.
        for program in programs if number % 2 else programs[::-1]:
            if (program, number) in known or program in broken:
                continue
            row = {"cell": cell, "program": program, "round": number, **setting}
            try:
                row |= measure(program, end - time.monotonic())
                print(f"{cell}, round {number}, {program}: {row['rate']:.1f}", flush=True)
            except Broken as error:
                row["broken"] = str(error)
                broken.add(program)
                print(f"{cell}, {program}: {error}", flush=True)
            except OutOfTime:
                print(f"{cell}: {MOST_SECONDS} s are over; start the script again to go on")
                return
            with open(results, "a") as file:
                file.write(json.dumps(row) + "\n")


def add_options(parser, results):
    """Adds the options that all scripts have. `results` is the default file of the rows."""
    parser.add_argument("--trireme", default="build/release/bin/trireme")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--results", type=pathlib.Path, default=results)
    parser.add_argument("--table", action="store_true", help="measures nothing")


def read_options(parser, parse_cells):
    """Returns the options, the cells that they select, and the rows that the results have. Ends
    the script with a message if an option is wrong."""
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
    if not given.table and (not os.access(given.trireme, os.X_OK) or os.path.isdir(given.trireme)):
        parser.error(f"--trireme {given.trireme}: is not built")
    return given, cells, rows


def select(text, *choices):
    """Returns the combinations that a list of names selects, such as "gpt:all". Every part of a
    name is "all" or one of its choices. "all" leaves out "tiny". Raises ValueError."""
    found = []
    for name in text.split(","):
        parts = name.split(":")
        if len(parts) != len(choices):
            raise ValueError(f'"{name}" has {len(parts)} of {len(choices)} parts')
        combinations = [()]
        for part, known in zip(parts, choices):
            if part != "all" and part not in known:
                raise ValueError(f'"{part}" in "{name}" is none of all, {", ".join(known)}')
            selected = [key for key in known if key != "tiny"] if part == "all" else [part]
            combinations = [(*before, key) for before in combinations for key in selected]
        found += combinations
    return list(dict.fromkeys(found))


def main():
    peak_files, first, threads, *command = sys.argv[1:]
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or 0)
    first_core = int(first) + rank * int(threads)
    return run_on_cores(f"{peak_files}{rank}", first_core, int(threads), command)


if __name__ == "__main__":
    sys.exit(main())
