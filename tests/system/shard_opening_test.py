# SPDX-License-Identifier: Apache-2.0
"""Tests which process opens which shard, and when, on a dataset of 10,000 small shards.

A preloaded library (tests/support/open_count.cpp) logs every opened file. The files that a rank
must read follow from the rules of docs/reference/deck.md: the order of samples, the division of a
step over the ranks, and the number of micro-batches that a rank reads ahead. While files must be
opened, reading is slow, so the system is asked for samples ahead of that.
"""

import collections
import os
import shutil
import tempfile
import time
import unittest

import harness

RANKS, SHARDS, SAMPLES = 4, 10000, 4  # samples of each shard
GLOBAL, MICRO, PREFETCH, SEED = 1600, 100, 4, 7
# Micro-batches that the system is asked for before they are read: 64 samples, rounded up.
AHEAD = -(-64 // MICRO)
MAX_OPEN = 1024  # data files that a rank may have open at once
MAX_SECONDS = 30  # from the command to the end of the first step
READ_WRITE = 1  # H5F_ACC_RDWR
DECK = """
[run]
name = "many"
seed = %d
deterministic = true
stop = "1 epoch"
[model]
kind = "mlp"
widths = [16]
[data]
train = "shards"
workers = 1
prefetch = %d
[batch]
global = %d
micro = %d
[optimizer]
kind = "sgd"
[schedule]
kind = "constant"
rate = 0.01
[monitor]
every = "1 step"
tensorboard = false
""" % (SEED, PREFETCH, GLOBAL, MICRO)
MASK = (1 << 64) - 1


def mix64(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def shuffled(epoch, count):
    """Returns the samples of an epoch with shuffle = "full", in their order.

    It is the permutation of include/trireme/base/permutation.hpp under the key of sampler.cpp.
    """
    name = 0xCBF29CE484222325
    for letter in b"shuffle":
        name = ((name ^ letter) * 0x100000001B3) & MASK
    key = mix64(mix64(mix64(SEED + 0x9E3779B97F4A7C15 & MASK) ^ name) ^ mix64(epoch + 1))
    bits = 1
    while 1 << (2 * bits) < count:
        bits += 1
    half = (1 << bits) - 1

    def at(value):
        while True:
            left, right = value >> bits, value & half
            for number in range(8):
                left, right = right, left ^ (mix64(key ^ mix64(right + (number << 40))) & half)
            value = left << bits | right
            if value < count:
                return value

    return [at(position) for position in range(count)]


def micro_batches(order, rank, steps):
    """Returns the samples of each micro-batch that a rank reads in the first steps of an epoch."""
    share = GLOBAL // RANKS
    return [
        order[first : first + MICRO]
        for step in range(steps)
        for first in range(step * GLOBAL + rank * share, step * GLOBAL + (rank + 1) * share, MICRO)
    ]


class Log:
    """The log of one process."""

    def __init__(self, path):
        with open(path) as file:
            lines = file.read().splitlines()
        _, rank, *self.words = lines[0].split()
        self.rank = int(rank)
        self.events = [line.split(" ", 1) for line in lines[1:]]

    def command(self):
        """Returns the first word behind the program, or nothing for other programs."""
        is_program = len(self.words) > 1 and (
            os.path.basename(self.words[0]) == os.path.basename(harness.TRIREME)
            or self.words[0] == "/proc/self/exe"
        )
        return self.words[1] if is_program else ""

    def by_hdf5(self):
        """Returns (flags, path) of each call of H5Fopen."""
        calls = [rest.split(" ", 1) for kind, rest in self.events if kind == "H5Fopen"]
        return [(int(flags), path) for flags, path in calls]

    def opened(self):
        """Returns the numbers of the shards that the process opened, in order."""
        return [
            int(os.path.basename(path)[6:-3])
            for kind, path in self.events
            if kind == "open" and os.path.basename(os.path.dirname(path)) == "shards"
        ]

    def most_at_once(self):
        now = most = 0
        for kind, path in self.events:
            if os.path.basename(os.path.dirname(path)) == "shards":
                now += {"open": 1, "close": -1}.get(kind, 0)
                most = max(most, now)
        return most


class ShardOpening(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        cls.library = os.environ.get("TRIREME_OPEN_COUNT", "")
        if not cls.library:
            harness.skip("TRIREME_OPEN_COUNT does not name the library")
        cls.folder = tempfile.mkdtemp(prefix="trireme-test-")
        harness.make_dataset(cls.folder + "/one", SAMPLES, size=4, classes=2, shards=1)
        with open(cls.folder + "/one/shard_00000.h5", "rb") as file:
            content = file.read()
        os.mkdir(cls.folder + "/shards")
        for index in range(SHARDS):
            with open("%s/shards/shard_%05d.h5" % (cls.folder, index), "wb") as file:
                file.write(content)
        with open(cls.folder + "/deck.toml", "w") as file:
            file.write(DECK)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def train(self, name, *arguments):
        """Runs training at all ranks. Returns the logs of the ranks, those of the processes that
        index files, and the seconds until the first step was recorded."""
        run, logs = "runs/" + name, os.path.join(self.folder, "logs", name)
        os.makedirs(logs)
        begin = time.monotonic()
        process = harness.start(
            "train",
            "deck.toml",
            *("--set", "run.folder=" + run),
            *arguments,
            ranks=RANKS,
            cwd=self.folder,
            env={"LD_PRELOAD": self.library, "TRIREME_TEST_OPEN_LOG": logs + "/log"},
        )
        rows = os.path.join(self.folder, run)
        while process.poll() is None and not harness.row_count(rows, "train"):
            time.sleep(0.02)
        seconds = time.monotonic() - begin
        text, _ = process.communicate(timeout=harness.PATIENCE)
        self.assertEqual(process.returncode, 0, text)
        print("%s: the first step ended after %.1f s" % (name, seconds), flush=True)
        found = [Log(os.path.join(logs, file)) for file in os.listdir(logs)]
        ranks = {log.rank: log for log in found if log.command() == "train"}
        self.assertEqual(sorted(ranks), list(range(RANKS)))
        return ranks, [log for log in found if log.command() == "index-hdf5"], seconds

    def check_reads_without_hdf5(self, log):
        """Checks that HDF5 opened no file in this process but the checkpoint that it writes."""
        for flags, path in log.by_hdf5():
            self.assertTrue(path.endswith(".h5.tmp"), "rank %d: %s" % (log.rank, path))
            self.assertTrue(flags & READ_WRITE, "rank %d: %s" % (log.rank, path))

    def check_processes(self, ranks, indexers):
        """Checks that HDF5 opened each shard once, in a child of rank 0, and nowhere else."""
        opened = collections.Counter(
            os.path.basename(path) for log in indexers for _, path in log.by_hdf5()
        )
        self.assertEqual(len(opened), SHARDS)
        self.assertEqual(set(opened.values()), {1})
        self.assertEqual({log.rank for log in indexers}, {0})
        for rank, log in ranks.items():
            self.check_reads_without_hdf5(log)
            self.assertLessEqual(log.most_at_once(), MAX_OPEN, "rank %d" % rank)

    def check_epoch(self, name, order, next_order):
        """Runs one epoch. Checks the shards that ranks 1 to 3 open, one by one.

        Rank 0 opens others for their labels. The readers are ahead of the steps, so they open
        shards of the next epoch too.
        """
        ranks, indexers, seconds = self.train(name, "--set", "data.shuffle=" + name)
        self.check_processes(ranks, indexers)
        steps, opens = SHARDS * SAMPLES // GLOBAL, {}
        for rank in range(1, RANKS):
            opened = opens[rank] = ranks[rank].opened()
            needed = micro_batches(order, rank, steps)
            ahead = micro_batches(
                next_order, rank, -(-(PREFETCH + 1 + AHEAD) * MICRO * RANKS // GLOBAL)
            )
            must = {sample // SAMPLES for samples in needed for sample in samples}
            may = {
                sample // SAMPLES for samples in ahead[: PREFETCH + 1 + AHEAD] for sample in samples
            }
            self.assertEqual(must - set(opened), set(), "rank %d" % rank)
            self.assertEqual(set(opened) - must - may, set(), "rank %d" % rank)
        self.assertLess(seconds, MAX_SECONDS)
        return ranks, opens, steps

    def test_in_order(self):
        """Each shard belongs to one micro-batch, so the order of opening is known too."""
        order = list(range(SHARDS * SAMPLES))
        self.assertEqual(MICRO % SAMPLES, 0)
        ranks, opens, steps = self.check_epoch("none", order, order)
        for rank, opened in opens.items():
            # One thread reads, so micro-batches are read one after another.
            batches = [
                [sample // SAMPLES for sample in samples[::SAMPLES]]
                for samples in micro_batches(order, rank, steps)
            ]
            batch_of = {shard: index for index, batch in enumerate(batches) for shard in batch}
            # Files that are opened again belong to the next epoch.
            whole_epoch = list(dict.fromkeys(opened))
            for index, batch in enumerate(batches):
                self.assertEqual(
                    [shard for shard in whole_epoch if batch_of[shard] == index], batch, rank
                )
            # At most AHEAD micro-batches are opened before an earlier one.
            latest = 0
            for shard in whole_epoch:
                latest = max(latest, batch_of[shard])
                self.assertGreaterEqual(batch_of[shard], latest - AHEAD, "rank %d" % rank)
            self.assertLessEqual(
                len(opened) - len(batch_of),
                (PREFETCH + 1 + AHEAD) * MICRO // SAMPLES,
                "rank %d" % rank,
            )
            self.assertEqual(ranks[rank].most_at_once(), MAX_OPEN, "rank %d" % rank)

    def test_shuffled(self):
        """A shard may be read, closed and read again. It is never opened more often than a sample
        of it is read."""
        count = SHARDS * SAMPLES
        ranks, opens, steps = self.check_epoch("full", shuffled(0, count), shuffled(1, count))
        for rank, opened in opens.items():
            most = steps * GLOBAL // RANKS + (PREFETCH + 1 + AHEAD) * MICRO
            self.assertLessEqual(len(opened), most, "rank %d" % rank)
            self.assertEqual(ranks[rank].most_at_once(), MAX_OPEN, "rank %d" % rank)

    def test_other_commands(self):
        """Tests that no command reads files through HDF5 in its own process."""
        for folder in ("/few", "/validation"):
            os.mkdir(self.folder + folder)
            for index in range(8):
                name = "/shard_%05d.h5" % index
                shutil.copy(self.folder + "/shards" + name, self.folder + folder + name)
        deck = ("few.toml", "--set", "run.folder=runs/few")
        with open(self.folder + "/few.toml", "w") as file:
            file.write(
                DECK.replace('"shards"', '"few"\nvalidation = "validation"')
                .replace("global = %d" % GLOBAL, "global = 16")
                .replace("micro = %d" % MICRO, "micro = 4")
            )
        newest = "runs/few/checkpoints/step_000000002.h5"
        for number, (ranks, *command) in enumerate(
            (
                (1, "train", *deck),
                (1, "train", *deck, "--set", "run.stop=2 epochs"),
                (2, "train", *deck, "--set", "run.stop=3 epochs"),
                (1, "train", *deck, "--set", "run.folder=runs/b", "--restart", newest),
                (1, "check", *deck),
                (1, "check", *deck, "--images", "few.png"),
                (2, "evaluate", *deck, "--checkpoint", newest),
                (1, "inspect", newest),
                (1, "inspect", "runs/few/checkpoints"),
                (1, "inspect", "few"),
                (1, "verify", newest),
                (1, "verify", "few"),
                (1, "export", newest, "--out", "few.safetensors"),
                (1, "import", "few.safetensors", *deck, "--out", "few.h5"),
            )
        ):
            with self.subTest(command):
                logs = os.path.join(self.folder, "logs", "command%d" % number)
                os.makedirs(logs)
                env = {"LD_PRELOAD": self.library, "TRIREME_TEST_OPEN_LOG": logs + "/log"}
                result = harness.run(*command, ranks=ranks, cwd=self.folder, env=env)
                self.assertEqual(result.returncode, 0, result.text)
                found = [Log(os.path.join(logs, file)) for file in os.listdir(logs)]
                own = [log for log in found if log.command() == command[0]]
                self.assertEqual(len(own), ranks)
                for log in own:
                    self.check_reads_without_hdf5(log)
                indexed = [
                    path
                    for log in found
                    if log.command() == "index-hdf5"
                    for _, path in log.by_hdf5()
                ]
                self.assertTrue(indexed or command[0] == "import")
                counts = collections.Counter(indexed)
                self.assertLessEqual(max(counts.values(), default=0), 1, counts)


if __name__ == "__main__":
    harness.main(at_once=1)
