# SPDX-License-Identifier: Apache-2.0
"""Helpers of the system tests: small datasets, decks, runs under mpirun, readers of their results.

Uses only the standard library.
"""

import concurrent.futures
import contextlib
import ctypes
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
PATIENCE = 900  # seconds: the limit for hanging programs, far above the time of the slowest machine
TRIREME = os.environ.get("TRIREME", "")
PROGRAM = os.path.realpath(TRIREME + "/../../libexec/trireme")  # linked with the libraries
MPIEXEC = os.environ.get("MPIEXEC", "mpirun")
# The device of Case.train(): that of the deck, or another one for all tests of a file, set by hand.
DEVICE = {
    "": (),
    "emulated": ("--allow-faults", "--set", "debug.device=emulated"),
    "cuda": ("--set", "run.device=cuda"),
}[os.environ.get("TRIREME_TEST_DEVICE", "")]

# h5py in this process takes no locks: programs that other threads start inherit them for a moment.
# environment() gives those programs the value of the user.
LOCKING = "HDF5_USE_FILE_LOCKING"
USERS_LOCKING = {LOCKING: os.environ[LOCKING]} if LOCKING in os.environ else {}
os.environ[LOCKING] = "FALSE"

# For the programs that tests start, also if the tests run under nohup.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def skip(why):
    print("skipped: " + why)
    sys.exit(SKIP)


def environment(threads=1, **extra):
    """Returns the environment for mpirun: root, more ranks than cores, yielding idle ranks, and
    `extra`."""
    env = {key: value for key, value in os.environ.items() if key != LOCKING} | USERS_LOCKING
    env.update(
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMPI_MCA_rmaps_base_oversubscribe="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
        PRTE_MCA_mapby=":oversubscribe",  # the name in Open MPI 5 and 6
        OMPI_MCA_mpi_yield_when_idle="1",
        OMPI_MCA_orte_execute_quiet="1",  # mpirun -q of Open MPI 4, an option that 6 does not have
        OMPI_MCA_hwloc_base_binding_policy="none",
        OMP_NUM_THREADS=str(threads),
        OMP_PROC_BIND="false",
    )
    env.update(extra)
    return env


@functools.cache
def has_hydra():
    """Returns whether the launcher is hydra (MPICH and its derivatives). Otherwise it is Open
    MPI's."""
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
    """Returns the exit code of the launcher if a rank is killed."""
    return 9 if has_hydra() else 137


def ended_by_hdf5(result):
    """Returns whether HDF5 itself ended the process.

    HDF5 2 aborts at a failed write if it is built with assertions, as by some distributions; its
    message names __assert_fail. Otherwise it returns an error.
    """
    if result.returncode in (0, 1, 2) or not re.search(
        r"H5\w+\.c:\d+: \w+: Assertion", result.text
    ):
        return False
    found = re.search(
        r"libhdf5\S* => (\S+)",
        subprocess.run(["ldd", PROGRAM], stdout=subprocess.PIPE, text=True).stdout,
    )
    with open(found.group(1), "rb") as library:
        return b"__assert_fail" in library.read()


def command(*arguments, ranks=1):
    launcher = [MPIEXEC, "-n", str(ranks)] if ranks > 1 else []
    return launcher + [TRIREME, *map(str, arguments)]


def run(*arguments, ranks=1, cwd=None, threads=1, timeout=PATIENCE, env={}):
    """Runs the program to its end. The result has returncode, stdout, stderr, and both together as
    `text`."""
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
    """Starts the program and returns at once."""
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
    """Returns (state, parent) of a process, or None if it does not exist."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return fields[0], int(fields[1])


def ranks_of(process):
    """Returns the process ids of the ranks of a started program.

    They are the children of the launcher (mpirun makes a process group for each), or with hydra
    those of its proxy on this host. Without a launcher it is the process itself.
    """
    if process.args[0] != MPIEXEC:
        return [process.pid]
    states = {int(name): state_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}

    def children(parent):
        return sorted(pid for pid, state in states.items() if state and state[1] == parent)

    started = children(process.pid)
    return (sum(map(children, started), []) if has_hydra() else started) or [process.pid]


def wait_for(condition, what):
    """Waits until the condition holds. Fails after a time limit."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("not within %g s: %s" % (PATIENCE, what))
        time.sleep(0.01)


def start_held(*arguments, step=12, ranks=1, cwd=None, env={}):
    """Starts a run whose rank 0 stops itself at the beginning of a step, and waits for that.

    The other ranks wait for rank 0, so no machine is too slow for this moment. Returns the process,
    the ids of its ranks, and that of rank 0. end_of() lets it continue.
    """
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
    """Lets the stopped rank continue, and returns the output up to the end."""
    os.kill(held, signal.SIGCONT)
    text, _ = process.communicate(timeout=PATIENCE)
    return text


def alive(pids):
    return [pid for pid in pids if (state_of(pid) or ("Z", 0))[0] not in "ZX"]


def processes_in(folder):
    """Returns the processes whose working folder is this one or below it."""

    def is_in(name):
        try:
            return (os.readlink("/proc/%s/cwd" % name) + "/").startswith(folder + "/")
        except OSError:
            return False

    return alive([int(name) for name in os.listdir("/proc") if name.isdigit() and is_in(name)])


def kill(process):
    """Sends SIGKILL to the ranks and their launcher, and waits until all of them are dead."""
    pids = ranks_of(process) + [process.pid]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.communicate()
    while alive(pids):
        time.sleep(0.001)


def run_printed(words, cwd):
    """Runs a command as a page prints it: `trireme` is on the PATH, and `mpirun` is the tests'."""
    words = [MPIEXEC] + words[1:] if words[0] == "mpirun" else words
    return subprocess.run(
        words,
        cwd=cwd,
        env=environment(PATH=os.path.dirname(TRIREME) + ":" + os.environ["PATH"]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE,
    )


class SmallDisk:
    """A disk with a size in bytes, mounted at a folder. Skips the test if this user may not
    mount."""

    def __init__(self, folder, size, read_only=False):
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.libc = ctypes.CDLL(None, use_errno=True)
        words = (b"tmpfs", folder.encode(), b"tmpfs", 1 if read_only else 0, b"size=%d" % size)
        self.mounted = self.libc.mount(*words) == 0

    def __enter__(self):
        if not self.mounted:
            raise unittest.SkipTest("this user may not mount a small disk")
        return self

    def __exit__(self, *_):
        self.libc.umount2(self.folder.encode(), 2)


def write_idx(path, extents, data):
    with open(path, "wb") as file:
        file.write(
            struct.pack(">BBBB", 0, 0, 8, len(extents))
            + struct.pack(">%dI" % len(extents), *extents)
            + bytes(data)
        )


def make_dataset(folder, samples, size=12, classes=5, seed=1, shards=2):
    """Makes shards of noisy images whose brightness pattern depends on their class.

    A small network learns them within a few steps.
    """
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


# A small language model of bytes. make_text() makes its text.
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
    """Makes datasets of bytes in folder/train and folder/validation."""
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
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        rows = [json.loads(line) for line in file]
    return [row for row in rows if kind is None or row["kind"] == kind]


def rows_so_far(folder, kind=None):
    """Returns the rows of a running or killed run. The folder may be missing, the last line
    incomplete."""
    try:
        with open(os.path.join(folder, "metrics.jsonl")) as file:
            # Read at once: between two reads the run may complete a line.
            *lines, _ = file.read().split("\n")
        rows = [json.loads(line) for line in lines]
    except OSError:
        return []
    return [row for row in rows if kind is None or row["kind"] == kind]


def row_count(folder, kind=None):
    return len(rows_so_far(folder, kind))


def last_by_step(rows):
    """Returns the last row of each step. After a restart steps appear again."""
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
    """A test with its own folder, a deck and small datasets."""

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
        """Compiles a library from this source and returns the environment that preloads it."""
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

    def contents(self, folder):
        """Returns the contents of all files of a folder, hidden ones included."""
        contents = {}
        for name in sorted(os.listdir(self.path(folder))):
            with open(self.path(folder, name), "rb") as file:
                contents[name] = file.read()
        return contents


def main(at_once):
    """Runs the tests of the started script, or those named on its command line (Class.test), in
    threads.

    At most `at_once` tests run at the same time. They mostly wait for their own processes, in their
    own folders. No test may see changes of another one. Failures are printed last.
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
