# SPDX-License-Identifier: Apache-2.0
"""Helpers of the GPU acceptance: commands with a time limit and a log, losses, small datasets.

Uses only the standard library.
"""

import array
import contextlib
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
import threading
import time

RUNNING = set()  # programs that call() has started
ENDING = threading.Event()  # set by stop_all()
# Each program leads a process group, so that its children end with it. It stays in the session:
# whoever ends the whole session also ends the program.
OWN_GROUP = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
LEAST_SECONDS = 30  # of a run, where the section has as much left
MAX_OUTPUT = 64 << 20  # bytes of a program, which is read as a whole


class Failed(Exception):
    """A requirement is not met; the text says which."""


def stop(process):
    """Ends a program and its children: first politely, so that mpirun ends its ranks.

    A program that hangs in the driver of the GPU may survive; it is left alone after some seconds.
    """
    for number, patience in ((signal.SIGTERM, 6), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            pass


def stop_all():
    """Ends all programs that call() has started, and those that it is about to start."""
    ENDING.set()
    for process in list(RUNNING):
        stop(process)


def ask_for_phase(process):
    """Lets a Trireme, or the ranks of an mpirun, print the phase it is in (SIGUSR2)."""
    try:
        process.send_signal(signal.SIGUSR2)
        process.wait(1)
    except subprocess.TimeoutExpired:
        pass


def call(command, seconds, environment=None, accept=(0,), log=None):
    """Runs a command with a time limit and returns its output.

    The output also goes to the file `log`, where it is complete if this program is killed. Raises
    Failed if the exit code is not in `accept`.
    """
    words = " ".join(map(str, command))
    path = log or tempfile.mkstemp(prefix="trireme-output-")[1]
    late = False
    with open(path, "wb") as file:
        process = subprocess.Popen(
            list(map(str, command)),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            **OWN_GROUP,
        )
        RUNNING.add(process)
        if ENDING.is_set():
            stop(process)
        try:
            end = time.monotonic() + max(1, seconds)
            while process.poll() is None and not late:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(0.2, max(0.01, end - time.monotonic())))
                late = process.poll() is None and time.monotonic() >= end
                if os.fstat(file.fileno()).st_size > MAX_OUTPUT:
                    raise Failed("wrote more than %d MiB: %s" % (MAX_OUTPUT >> 20, words))
            if late:
                ask_for_phase(process)
        finally:
            RUNNING.discard(process)
            stop(process)  # also children that the program left behind
    with open(path, encoding="utf-8", errors="replace") as file:
        output = file.read(MAX_OUTPUT)
    if not log:
        os.remove(path)
    if late:
        raise Failed("not done within %d s: %s\n%s" % (seconds, words, output[-2000:]))
    if process.returncode not in accept:
        code = process.returncode
        status = "killed by signal %d" % -code if code < 0 else "exit status %d" % code
        raise Failed("%s: %s\n%s" % (status, words, output[-2000:]))
    return output


def json_lines(output):
    """Returns the JSON objects of a program's output, each on a line; other lines are skipped."""
    found = []
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                pass  # cut off, or not meant as one
    return found


def last_json(output):
    """Returns the last JSON object of a program's output."""
    found = json_lines(output)
    if not found:
        raise Failed("no result in its output:\n" + output[-2000:])
    return found[-1]


def merge_algorithms(table, found):
    """Adds the lines of the file `found` to the file `table` (docs/reference/files.md).

    A line is a checksum, a problem and an algorithm, with tabs between them.
    """
    lines, first = {}, None
    for path in (table, found):
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                first, *rest = file.read().splitlines() or [""]
            lines.update((line.split("\t")[1], line) for line in rest if line.count("\t") == 2)
    if first:
        with open(table + ".new", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write("".join(line + "\n" for line in [first, *map(lines.get, sorted(lines))]))
        os.replace(table + ".new", table)


def file_name(name):
    return re.sub(r"[^\w.-]+", "-", name)


class Runner:
    """Runs programs within a common time limit.

    `folder` has datasets and run folders. `logs` gets the output and the metrics of every run. All
    runs share the algorithms of the file `algorithms`, if one is given.
    """

    def __init__(self, trireme, folder, seconds, logs=None, algorithms=None, environment=()):
        self.trireme, self.folder, self.logs = trireme, folder, logs or folder
        self.algorithms = algorithms
        self.deadline = time.monotonic() + seconds
        self.environment = dict(environment)
        os.makedirs(self.folder, exist_ok=True)
        os.makedirs(self.logs, exist_ok=True)

    def left(self):
        """Returns the seconds until the time limit."""
        return self.deadline - time.monotonic()

    def run_folder(self, name):
        return os.path.join(self.folder, file_name(name))

    def log_of(self, name):
        return os.path.join(self.logs, file_name(name) + ".log")

    def call(self, name, command, environment=(), accept=(0,), seconds=None):
        """Runs a command as call(), with a log of this name."""
        left = self.left()
        if left < 1:
            raise Failed("not run: no time left")
        if ENDING.is_set():
            raise Failed("not run: ended by a signal")
        known = {}
        if self.algorithms and os.path.exists(self.algorithms):
            known["TRIREME_ALGORITHMS"] = self.algorithms
        variables = {**os.environ, **known, **dict(environment), **self.environment}
        return call(command, min(left, seconds or left), variables, accept, self.log_of(name))

    def train(self, name, deck, device, ranks=1, sets=(), environment=(), least=LEAST_SECONDS):
        """Trains in run_folder(name) from the first step on. Returns the metrics' `train` rows.

        A run that hangs leaves the others half of the time, but may take `least` seconds.
        """
        run = self.run_folder(name)
        path = run + ".toml"
        with open(path, "w") as file:
            file.write(
                '[run]\nname = "%s"\nfolder = "%s"\ndevice = "%s"\n%s'
                % (file_name(name), run, device, deck)
            )
        launcher = ["mpirun", "-n", ranks] if ranks > 1 else []
        words = [word for value in sets for word in ("--set", value)]
        metrics, found = (os.path.join(run, file) for file in ("metrics.jsonl", "algorithms.txt"))
        try:
            self.call(
                name,
                [*launcher, self.trireme, "train", path, "--restart", "none", *words],
                environment,
                seconds=max(least, self.left() / 2),
            )
        finally:
            if os.path.exists(metrics):
                shutil.copy(metrics, self.log_of(name)[: -len("log")] + "metrics.jsonl")
            if self.algorithms and os.path.exists(found):
                merge_algorithms(self.algorithms, found)
        with open(metrics) as file:
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
