# SPDX-License-Identifier: Apache-2.0
"""Trains the models of compared_models.py with the program, for scripts that compare speeds.

Bench runs a training in processes that are bound to cores. measure_cells() runs the programs or
layouts of each cell in turns and appends a row for each measurement to Results, so an interrupted
script resumes. run_script() ends a script with a message and an exit code.

Also a program, which Bench starts for each rank:

  training_bench.py PEAK-FILES FIRST-CORE THREADS COMMAND...

It runs COMMAND on THREADS cores of its own and writes the largest resident set in bytes into the
file PEAK-FILES followed by the rank. The cores are those from FIRST-CORE + rank * THREADS of the
cores that it may use, in the order of their numbers. Two of them may be threads of one core: choose
others with `taskset -c`.

MPIEXEC names the launcher of the ranks: mpirun without it, or mpiexec or srun. Under srun the job
needs two tasks, or a task with two cores. The script may be a task of srun itself.
"""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import json
import math
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
import threading
import time

from compared_models import deck_of

LAUNCHER = os.environ.get("MPIEXEC") or "mpirun"
CORES = 2  # that each measurement uses
WARMUP_PIECES = 2  # the first steps choose algorithms, prepare weights and fill caches
MOST_SECONDS = 900  # of one cell
END_SECONDS = 10  # after a request to end, before a process is killed


class Broken(Exception):
    """A program did not train the cell.

    `code`: its exit code, None if no process failed. `lines`: those that it printed.
    """

    def __init__(self, message, code=None, lines=()):
        super().__init__(message)
        self.code, self.lines = code, lines


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
    mine = cores[first : first + threads]
    os.sched_setaffinity(0, cores if len(mine) < threads else mine)
    code = subprocess.run(command).returncode
    peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    pathlib.Path(peak_file).write_text(str(peak))
    return code


def launched_rank():
    """Returns the rank of this process by the variables in which the program finds its own."""
    names = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"]
    if "SLURM_STEP_ID" in os.environ:  # a job script has SLURM_PROCID, too
        names.append("SLURM_PROCID")
    return int(next(filter(None, map(os.environ.get, names)), 0))


def environment(threads):
    """Returns the environment of a program: ranks are not bound by their launcher. A script may be
    a task of srun, but a program that it starts is not."""
    task = ("PMI_", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(task)},
        "OMP_NUM_THREADS": str(threads),
        "OMP_PROC_BIND": "false",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_mapby": ":oversubscribe",  # the name in Open MPI 5 and 6
        "SLURM_CPU_BIND": "none",
        "SLURM_OVERLAP": "1",  # the script's own task has all cores of the job
    }


def end_group(child):
    """Ends a process and those that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all have ended
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)  # mpirun ends its ranks
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(END_SECONDS)
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@contextlib.contextmanager
def interruptions_later():
    """Raises KeyboardInterrupt at the end of the block if a signal to end came within it. Only the
    main thread receives signals; in others it does nothing."""
    came, before = [], {}
    is_main = threading.current_thread() is threading.main_thread()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ():
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            before[number] = signal.signal(number, lambda *_: came.append(True))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def call_together(commands, threads, seconds, variables=None):
    """Runs commands at once. Returns what each wrote to standard output and to standard error, as
    bytes. `variables`: more of their environment. Raises OSError, Broken, and OutOfTime after some
    seconds. No process of the commands is left, however it ends."""
    end = time.monotonic() + max(1, seconds)
    children = []
    with contextlib.ExitStack() as stack:
        for words in commands:
            out, errors = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            with interruptions_later():  # until the end of the child is arranged
                child = subprocess.Popen(
                    [str(word) for word in words],
                    env=environment(threads) | (variables or {}),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=errors,
                    start_new_session=True,
                )
                stack.callback(end_group, child)
            children.append((child, out, errors))
        outputs = []
        for child, *files in children:
            try:
                child.wait(max(0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise OutOfTime from None
            for file in files:
                file.seek(0)
            out, errors = (file.read() for file in files)
            if child.returncode != 0:
                lines = (errors.strip() or out.strip()).decode(errors="replace").splitlines()
                last = lines[-1] if lines else "no message"
                raise Broken(f"exit {child.returncode}: {last}", child.returncode, lines)
            outputs.append((out, errors))
    return outputs


def call(words, threads, seconds, variables=None):
    """Returns standard output and standard error of one command, as call_together() does."""
    return call_together([words], threads, seconds, variables)[0]


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
        values = {
            "run.name": "compare",
            "run.folder": f"{run}/out",
            "run.stop": f"{steps} steps",
            "data.train": f"{self.prepare(model)}/data",
            "data.shuffle": "none",
            "batch.global": batch,
            "batch.micro": batch // ranks,
            "precision.compute": precision,
            "monitor.every": "1 step",
        }
        deck.write_text(deck_of(model, values))
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
        call_together(commands, layout.threads, seconds)
        return [self.rows_of_steps(copy, steps) for copy in range(layout.copies)]

    def rows_of_steps(self, copy, steps):
        with open(self.folder / f"run{copy}/out/metrics.jsonl") as file:
            rows = [row for row in map(json.loads, file) if row["kind"] == "train"]
        if len(rows) != steps:
            raise Broken(f"trained {len(rows)} of {steps} steps")
        return rows

    def peak_bytes(self, layout):
        """Returns the largest resident sets of the processes, added up."""
        return sum(
            int((self.folder / f"peak{copy}.{rank}").read_text())
            for copy in range(layout.copies)
            for rank in range(layout.ranks)
        )


# --- results -------------------------------------------------------------------------------------


def is_text(value):
    return isinstance(value, str)


def is_number(value):
    return type(value) in (int, float) and math.isfinite(value)


def is_positive(value):
    return is_number(value) and value > 0


# Keys of a row, and functions that return whether their values are right.
ROW = {"cell": is_text, "program": is_text, "round": is_positive}
CONDITIONS = dict.fromkeys(("processor", "trireme", "allocator", "date"), is_text)
# Rows whose values of these differ are not compared. A date does not matter.
COMPARED = ("processor", "cores", "launcher", "torch", "trireme", "allocator", "pieces")


class Results:
    """The rows of a script in a file.

    `values`: what a measurement returns, in the form of ROW. `conditions`: further conditions.
    """

    def __init__(self, path, values, conditions):
        self.path, self.values, self.keys = path, values, ROW | CONDITIONS | conditions

    def is_row(self, row):
        if not isinstance(row, dict):
            return False
        keys = self.keys | ({"broken": is_text} if "broken" in row else self.values)
        return all(is_right(row.get(key)) for key, is_right in keys.items())

    def rows(self):
        """Returns all rows, without an incomplete last line, which a kill leaves. Raises OSError,
        and ValueError if the file has lines of something else."""
        if not self.path.exists():
            return []
        if not self.path.is_file():
            raise ValueError("it is no regular file")
        *lines, rest = self.path.read_text(encoding="utf-8").split("\n")
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                rows.append(None)
            if not self.is_row(rows[-1]):
                raise ValueError(f"line {number} is no row of this script")
        if rest and not rows:
            raise ValueError("it has no row of this script")
        return rows

    def append(self, row):
        """Appends a row, in place of an incomplete last line. Raises OSError."""
        try:
            with open(self.path, "a+b") as file:
                file.seek(0)
                text = file.read()
                if not text.endswith(b"\n"):
                    file.truncate(text.rfind(b"\n") + 1)
                file.write(json.dumps(row).encode() + b"\n")
        except OSError as error:
            raise OSError(f"--results {self.path}: {error}") from error


def same_conditions(rows, setting):
    """Returns the rows that were measured under the conditions of a setting."""
    return [row for row in rows if all(row.get(key) == setting.get(key) for key in COMPARED)]


def version_of(program):
    """Returns the first line of what a program prints with --version. Raises OSError."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, errors="replace")
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return lines[0] if lines else ""


def conditions(trireme):
    """Returns what a measurement depends on, and the date. Raises OSError."""
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
    launcher = os.path.realpath(shutil.which(LAUNCHER) or LAUNCHER)
    digest = hashlib.sha256(pathlib.Path(trireme).read_bytes()).hexdigest()[:12]
    allocator = os.environ.get("LD_PRELOAD") or " ".join(platform.libc_ver()) + " malloc"
    return {
        "processor": f"{processor} ({flags})",
        "cores": sorted(os.sched_getaffinity(0))[:CORES],
        "launcher": f"{launcher}, {version_of(LAUNCHER)}",
        "trireme": f"{version_of(trireme)}, sha256 {digest}",
        "allocator": allocator,
        "date": time.strftime("%Y-%m-%d"),
    }


def print_missing(cells):
    """Prints the names of cells that are not in a table, if there are any."""
    if cells:
        print(f"not in the table: {', '.join(cells)}", file=sys.stderr)


def print_broken(rows, cells):
    """Prints the rows of programs that did not train one of the cells."""
    for row in rows:
        if "broken" in row and row["cell"] in cells:
            print(f"{row['cell']}, {row['program']}: {row['broken']}")


def measure_in_turns(cell, programs, rounds, results, setting, measure):
    """Appends a row for each measurement of a cell that the results lack.

    `measure(program, seconds)` returns the values of a row, of which "rate" is printed.
    """
    rows = same_conditions(results.rows(), setting)
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
            results.append(row)


def make_parser(description, cells, results):
    """Returns a parser of the options that all scripts have. `cells` and `results` are the default
    cells and the default file of the rows."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", default=cells)
    parser.add_argument("--trireme", default="build/release/bin/trireme")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path(results))
    parser.add_argument("--table", action="store_true", help="measures nothing")
    return parser


def read_options(parser, parse_cells, values, **conditions):
    """Returns the options, the cells that they select, and the Results of these values and further
    conditions. Ends the script with a message if an option is wrong, or if it cannot measure."""
    given = parser.parse_args()
    try:
        cells = parse_cells(given.cells)
    except ValueError as error:
        parser.error(f"--cells: {error}")
    if given.rounds < 1:
        parser.error(f"--rounds {given.rounds}: at least 1")
    results = Results(given.results, values, conditions)
    try:
        rows = results.rows()
    except (OSError, ValueError) as error:
        parser.error(f"--results {given.results}: {error}; name a new file")
    if not given.table:
        given.trireme = pathlib.Path(given.trireme).resolve()
        check_machine(parser, given)
    elif not rows:
        parser.error(f"--results {given.results}: it has no rows; measure without --table first")
    return given, cells, results


def check_program(parser, trireme):
    """Ends the script with a message if the file is no program `trireme`."""
    if not os.access(trireme, os.X_OK) or trireme.is_dir():
        parser.error(f"--trireme {trireme}: is not built")
    try:
        version = version_of(trireme)
    except OSError as error:
        version = error.strerror
    if not version.startswith("trireme "):
        parser.error(f'--trireme {trireme}: is no trireme; --version: "{version}"')


def check_machine(parser, given):
    """Ends the script with a message if it cannot measure. Makes the folder of the results."""
    check_program(parser, given.trireme)
    if not shutil.which(LAUNCHER):
        parser.error(f"{LAUNCHER}: not found; install MPI, or name its launcher in MPIEXEC")
    cores = len(os.sched_getaffinity(0))
    if cores < CORES:
        parser.error(f"{CORES} cores are needed; this process may use {cores}")
    try:
        given.results.parent.mkdir(parents=True, exist_ok=True)
        open(given.results, "ab").close()
    except OSError as error:
        parser.error(f"--results {given.results}: {error.strerror}; name a file to write to")


def measure_cells(given, results, further, cells):
    """Measures what the results lack, without --table. Prints a heading for the table and returns
    its rows: those under the conditions of now, or with --table of the last row.

    `further`: conditions of the script, which replace those of the last row. `cells`: for each cell
    its name, its programs and `measure(bench, program, seconds)`, as in measure_in_turns().
    """
    if given.table:
        setting = results.rows()[-1] | further
    else:
        setting = conditions(given.trireme) | further
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            bench = Bench(given.trireme, pathlib.Path(folder))
            for name, programs, measure in cells:
                measure = functools.partial(measure, bench)
                measure_in_turns(name, programs, given.rounds, results, setting, measure)
    rows = same_conditions(results.rows(), setting)
    if rows:
        last = rows[-1]
        torch = [f"PyTorch {last['torch']}"] if "torch" in last else []
        words = [last["processor"], *torch, last["trireme"], last["allocator"], last["date"]]
        print("; ".join(words) + "\n")
    return rows


def run_script(main, advice="; start the script again to go on"):
    """Runs the main function of a script. Returns its exit code; 130 if it is interrupted, also by
    SIGTERM or SIGHUP, and 2 if a file cannot be written or a program cannot be started. `advice`:
    what is printed behind "interrupted"."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        return main()
    except KeyboardInterrupt:
        print(f"interrupted{advice}", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
        return 2


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
    rank = launched_rank()
    first_core = int(first) + rank * int(threads)
    return run_on_cores(f"{peak_files}{rank}", first_core, int(threads), command)


if __name__ == "__main__":
    sys.exit(main())
