"""What the system tests share: small datasets, decks, runs under mpirun, and reading what a run left. Standard library only."""

import concurrent.futures
import contextlib
import functools
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

SKIP = 77
PATIENCE = 900  # seconds: what takes longer stands still. Far above what the slowest machine takes
TRIREME = os.environ.get("TRIREME", "")
MPIEXEC = os.environ.get("MPIEXEC", "mpirun")
# The device that Case.train() trains on: that of the deck; or all tests of a file on another one, by hand.
DEVICE = {
    "": (),
    "emulated": ("--allow-faults", "--set", "debug.device=emulated"),
    "cuda": ("--set", "run.device=cuda"),
}[os.environ.get("TRIREME_TEST_DEVICE", "")]

signal.signal(
    signal.SIGHUP, signal.SIG_DFL
)  # for the programs that tests start, also where the tests run under nohup


def skip(why):
    print("skipped: " + why)
    sys.exit(SKIP)


def environment(threads=1, **extra):
    """Enough for mpirun as root with more ranks than cores, idle ranks yielding; and what `extra` says."""
    env = dict(os.environ)
    env.update(
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMPI_MCA_rmaps_base_oversubscribe="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
        PRTE_MCA_mapby=":oversubscribe",  # as Open MPI 5 and 6 call it
        OMPI_MCA_mpi_yield_when_idle="1",
        OMPI_MCA_orte_execute_quiet="1",  # mpirun -q of Open MPI 4, an option that 6 does not know
        OMPI_MCA_hwloc_base_binding_policy="none",
        OMP_NUM_THREADS=str(threads),
        OMP_PROC_BIND="false",
    )
    env.update(extra)
    return env


@functools.cache
def has_hydra():
    """Whether the launcher is hydra, that of MPICH and what descends from it; else it is Open MPI's."""
    return (
        "HYDRA"
        in subprocess.run(
            [MPIEXEC, "--version"],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ).stdout
    )


def code_of_killed():
    """The launcher's exit code where a rank was killed."""
    return 9 if has_hydra() else 137


def ended_by_hdf5(result):
    """Whether HDF5 itself ended the process: with assertions, as some distributions build it (it then names __assert_fail), HDF5 2 stops at a failed write where it else returns an error."""
    if result.returncode in (0, 1, 2) or not re.search(
        r"H5\w+\.c:\d+: \w+: Assertion", result.text
    ):
        return False
    found = re.search(
        r"libhdf5\S* => (\S+)",
        subprocess.run(["ldd", TRIREME], stdout=subprocess.PIPE, text=True).stdout,
    )
    with open(found.group(1), "rb") as library:
        return b"__assert_fail" in library.read()


def command(*arguments, ranks=1):
    launcher = [MPIEXEC, "-n", str(ranks)] if ranks > 1 else []
    return launcher + [TRIREME, *map(str, arguments)]


def run(*arguments, ranks=1, cwd=None, threads=1, timeout=PATIENCE, env={}):
    """Runs the program to its end. Returns an object with returncode, stdout, stderr, and both together as `text`."""
    result = subprocess.run(
        command(*arguments, ranks=ranks),
        cwd=cwd,
        env=environment(threads, **env),
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    result.text = result.stdout + result.stderr
    return result


def start(*arguments, ranks=1, cwd=None, threads=1, env={}):
    """Starts the program, and does not wait for it."""
    return subprocess.Popen(
        command(*arguments, ranks=ranks),
        cwd=cwd,
        env=environment(threads, **env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def state_of(pid):
    """(state, parent) of a process; None where there is none."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return fields[0], int(fields[1])


def ranks_of(process):
    """Process ids of the ranks of a started program: the launcher's children (mpirun gives each a process group of its own), of hydra those of its part on this host; or itself."""
    if process.args[0] != MPIEXEC:
        return [process.pid]
    states = {int(name): state_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}

    def children(parent):
        return sorted(pid for pid, state in states.items() if state and state[1] == parent)

    started = children(process.pid)
    return (sum(map(children, started), []) if has_hydra() else started) or [process.pid]


def wait_for(condition, what):
    """Waits until the condition holds, with an end for what hangs."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("not within %g s: %s" % (PATIENCE, what))
        time.sleep(0.01)


def start_held(*arguments, step=12, ranks=1, cwd=None, env={}):
    """Starts a run whose rank 0 stops itself at the begin of a step and so holds up all, and waits until it does: a moment that no machine is too slow for.
    Returns the process, the ids of its ranks, and that of rank 0; end_of() lets it go on."""
    process = start(
        *arguments,
        "--allow-faults",
        "--set",
        "debug.fault=stop rank 0 step %s" % step,
        ranks=ranks,
        cwd=cwd,
        env=env
    )

    def stopped():
        return [pid for pid in ranks_of(process) if (state_of(pid) or "?")[0] == "T"]

    wait_for(lambda: stopped() or process.poll() is not None, "a rank that stopped itself")
    pids = ranks_of(process)
    if process.poll() is not None or len(pids) != ranks:
        raise AssertionError(
            "%d ranks of %d, exit code %s:\n%s"
            % (
                len(pids),
                ranks,
                process.poll(),
                process.communicate()[0] if process.poll() is not None else "",
            )
        )
    return process, pids, stopped()[0]


def end_of(process, held):
    """What it printed until its end, once the rank that held it up goes on."""
    os.kill(held, signal.SIGCONT)
    text, _ = process.communicate(timeout=PATIENCE)
    return text


def alive(pids):
    return [pid for pid in pids if (state_of(pid) or ("Z", 0))[0] not in "ZX"]


def processes_in(folder):
    """Processes whose working folder is this one or below it."""

    def is_in(name):
        try:
            return (os.readlink("/proc/%s/cwd" % name) + "/").startswith(folder + "/")
        except OSError:
            return False

    return alive([int(name) for name in os.listdir("/proc") if name.isdigit() and is_in(name)])


def kill(process):
    """SIGKILL to the ranks and to their launcher, as a scheduler or a power cut does it; waits until all of them are dead."""
    pids = ranks_of(process) + [process.pid]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.communicate()
    while alive(pids):
        time.sleep(0.001)


def write_idx(path, extents, data):
    with open(path, "wb") as file:
        file.write(
            struct.pack(">BBBB", 0, 0, 8, len(extents))
            + struct.pack(">%dI" % len(extents), *extents)
            + bytes(data)
        )


def make_dataset(folder, samples, size=12, classes=5, seed=1, shards=2):
    """Shards of noisy images whose brightness pattern tells their class: something a small network learns in a few steps."""
    rng = random.Random(seed)
    images, labels = bytearray(), bytearray()
    for i in range(samples):
        label = rng.randrange(classes)
        labels.append(label)
        for row in range(size):
            bright = 90 if row * classes // size == label else 0
            images.extend(bright + rng.randrange(120) for _ in range(size))
    work = folder + ".idx"
    os.makedirs(work, exist_ok=True)
    write_idx(work + "/images", (samples, size, size), images)
    write_idx(work + "/labels", (samples,), labels)
    result = run(
        "shard", "idx", work + "/images", work + "/labels", "--out", folder, "--shards", shards
    )
    if result.returncode != 0:
        raise RuntimeError(result.text)
    shutil.rmtree(work)


DECK = """
[run]
name = "test"
folder = "run"
seed = 7
deterministic = true
stop = "20 steps"
[model]
kind = "resnet"
depth = 8
width = 8
stem = "small"
[data]
train = "data/train"
validation = "data/validation"
test = "data/test"
workers = 1
[data.augment]
flip = true
random_crop = 2
normalize = { mean = [0.4], std = [0.25] }
[batch]
global = 64
micro = 16
[optimizer]
kind = "sgd"
momentum = 0.9
weight_decay = 5e-4
[schedule]
kind = "cosine"
rate = 0.1
warmup = "5 steps"
[evaluate]
every = "5 steps"
[checkpoint]
every = "5 steps"
[monitor]
every = "1 step"
tensorboard = false
"""


# A small language model of bytes; its text is made by make_text().
GPT_DECK = """
[run]
name = "gpt"
folder = "run"
seed = 3
stop = "6 steps"
[model]
kind = "gpt"
layers = 3
heads = 2
width = 16
context = 16
[data]
train = "text/train"
validation = "text/validation"
workers = 1
[batch]
global = 8
micro = 2
[parallel]
tensor = 1
pipeline = 1
pipeline_schedule = "1f1b"
pipeline_chunks = 1
sequence = false
[optimizer]
kind = "adamw"
[schedule]
kind = "constant"
rate = 1e-2
[evaluate]
every = "2 steps"
[checkpoint]
every = "3 steps"
best = "perplexity"
[monitor]
every = "1 step"
tensorboard = false
"""


def make_text(folder, words=1500, seed=1):
    """Datasets of bytes, folder/train and folder/validation."""
    rng = random.Random(seed)
    os.makedirs(folder)
    with open(folder + "/text", "w") as file:
        file.write(
            " ".join(
                "".join(rng.choice("etaoinshrdlu") for _ in range(rng.randrange(2, 8)))
                for _ in range(words)
            )
        )
    result = run(
        "shard",
        "text",
        folder + "/text",
        "--out",
        folder + "/train",
        "--hold-out",
        "0.1",
        "--hold-out-out",
        folder + "/validation",
    )
    if result.returncode != 0:
        raise RuntimeError(result.text)


def read_rows(folder, kind=None):
    rows = []
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        for line in file:
            row = json.loads(line)
            if kind is None or row["kind"] == kind:
                rows.append(row)
    return rows


def rows_so_far(folder, kind=None):
    """Of a run that goes on or was killed: its folder may not be there yet, its last line be half written."""
    try:
        with open(os.path.join(folder, "metrics.jsonl")) as file:
            rows = [json.loads(line) for line in file if line.endswith("\n")]
    except OSError:
        return []
    return [row for row in rows if kind is None or row["kind"] == kind]


def row_count(folder, kind=None):
    return len(rows_so_far(folder, kind))


def last_by_step(rows):
    """After a restart steps appear again: the last row of a step counts."""
    return {row["step"]: row for row in rows}


def losses(folder):
    by_step = last_by_step(read_rows(folder, "train"))
    return [by_step[step]["loss"] for step in sorted(by_step)]


def digest(checkpoint, cwd=None):
    result = run("inspect", "--digest", checkpoint, cwd=cwd)
    if result.returncode != 0:
        raise RuntimeError(result.text)
    return result.stdout.split()[-1]


def checkpoints(folder):
    names = os.listdir(os.path.join(folder, "checkpoints"))
    return sorted(name for name in names if re.fullmatch(r"step_\d{9}\.h5", name))


class Case(unittest.TestCase):
    """A test in a folder of its own with a deck and small datasets."""

    samples = 640

    @classmethod
    def setUpClass(cls):
        if not TRIREME:
            skip("TRIREME does not name the program")
        cls.shared = tempfile.mkdtemp(prefix="trireme-test-")
        make_dataset(cls.shared + "/train", cls.samples)
        make_dataset(cls.shared + "/validation", 90, seed=2, shards=1)
        make_dataset(cls.shared + "/test", 70, seed=3, shards=1)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.shared, ignore_errors=True)

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="trireme-test-")
        os.symlink(self.shared, self.folder + "/data")
        self.write_deck(DECK)

    def tearDown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def write_deck(self, text, name="deck.toml"):
        with open(os.path.join(self.folder, name), "w") as file:
            file.write(text)

    def train(self, *arguments, ranks=1, expect=0, deck="deck.toml", threads=1):
        result = run(
            "train", deck, *arguments, *DEVICE, ranks=ranks, cwd=self.folder, threads=threads
        )
        self.assertEqual(result.returncode, expect, result.text)
        return result

    def start_held(self, *arguments, step=12, ranks=1, env={}):
        return start_held(
            "train", "deck.toml", *arguments, step=step, ranks=ranks, cwd=self.folder, env=env
        )

    def preloaded(self, name, source):
        """A library that stands before the C library, of this source."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if not compiler:
            self.skipTest("no C compiler")
        with open(self.path(name + ".c"), "w") as file:
            file.write(source)
        subprocess.run(
            [
                compiler,
                "-shared",
                "-fPIC",
                "-o",
                self.path(name + ".so"),
                self.path(name + ".c"),
                "-ldl",
            ],
            check=True,
        )
        return self.path(name + ".so")

    end_of = staticmethod(end_of)

    def errors_of(self, text):
        return [line for line in text.splitlines() if "error: " in line]

    def path(self, *parts):
        return os.path.join(self.folder, *parts)


def main(at_once):
    """Runs the tests of the script that was started, or those it names (Class.test), so many at once in threads: tests that mostly wait for processes of their
    own, in folders of their own. Nothing that one test changes may be seen by another. What failed is printed last.
    """
    script = sys.modules["__main__"]
    loader = unittest.defaultTestLoader
    cases = []

    def collect(suite):
        for test in suite:
            collect(test) if isinstance(test, unittest.TestSuite) else cases.append(test)

    collect(
        loader.loadTestsFromNames(sys.argv[1:], script)
        if len(sys.argv) > 1
        else loader.loadTestsFromModule(script)
    )

    def one(case):
        result = unittest.TestResult()
        begin = time.monotonic()
        case.run(result)
        said = "ok" if result.wasSuccessful() else "FAILED"
        said += "".join(", skipped: " + why for _, why in result.skipped)
        print(
            "%s ... %s (%.1f s)" % (case.id().split(".", 1)[1], said, time.monotonic() - begin),
            flush=True,
        )
        return result.failures + result.errors

    with contextlib.ExitStack() as classes:
        for kind in dict.fromkeys(type(case) for case in cases):
            kind.setUpClass()
            classes.callback(kind.tearDownClass)
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            failed = [failure for failures in pool.map(one, cases) for failure in failures]
    for case, trace in failed:
        print("\n%s\n%s" % (case, trace))
    print("%d tests, %d failures" % (len(cases), len(failed)))
    sys.exit(1 if failed else 0)
