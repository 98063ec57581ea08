# SPDX-License-Identifier: Apache-2.0
"""Tests malicious files (hostile_files.py, hostile_storage.py, hostile_costs.py).

Each is refused with one line that names file and place, quickly, in bounded memory, and without
opening any other file.
"""

import ctypes
import multiprocessing
import os
import re
import unittest
from concurrent.futures import ThreadPoolExecutor

import harness
from hostile_costs import SLOW
from hostile_encoded import ENCODED, ENCODED_INDEXED, ENCODED_VERIFIED, PACKED, encoded
from hostile_files import (
    CHECKPOINTS,
    HostileCase,
    IMAGES,
    IMAGES_SUMMED,
    IMAGES_VERIFIED,
    MAX_BYTES,
    OUTSIDE,
    PLAIN,
    PLAIN_VERIFIED,
    SAFETENSORS,
    TOKENS,
    TOKENS_VERIFIED,
    VERIFIED,
    checkpoint,
    images,
    run_measured,
    tokens,
)
from hostile_storage import MANY_CHUNKS, MAX_CHUNKS, REFUSED, many_images, spoilt
from storage_files import IMAGES_DECK, TOKENS_DECK

# Processor time of a command: 4 s at most for the child that reads HDF5, and 1 s for the lists that
# it reports. Beside other work on the same core the latter took 1.1 s, so it has twice the time.
MAX_SECONDS = 6
# What a message says if a file is refused for its cost, or because HDF5 fails on it.
REASON = (
    r"\d+ s of processor time|\d+ MiB|up to \d+|more than \d+|crashes on this file|: HDF5: "
    r"|a version that HDF5 |the seal is damaged"
)


class OpenWatch:
    """Records every opening of a file in a folder (inotify), by any process."""

    IN_OPEN = 0x20

    def __init__(self, folder):
        libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = libc.inotify_init1(os.O_NONBLOCK)
        if (
            self.descriptor < 0
            or libc.inotify_add_watch(self.descriptor, folder.encode(), self.IN_OPEN) < 0
        ):
            raise OSError(ctypes.get_errno(), "inotify")

    def opened(self):
        try:
            return bool(os.read(self.descriptor, 1 << 16))
        except BlockingIOError:
            return False


class Hostile(HostileCase):
    def setUp(self):
        super().setUp()
        self.write_deck(IMAGES_DECK, "only_images.toml")
        self.write_deck(TOKENS_DECK, "only_tokens.toml")
        crops = "[data.augment]\nrandom_resized_crop = { size = 8 }\n"
        self.write_deck(IMAGES_DECK + crops, "only_encoded.toml")

    def refused(self, case):
        """Returns None, or a description of the program's wrong reaction."""
        name, place, words, arguments = case
        words = (words,) if isinstance(words, str) else words
        code, _, text, most, seconds = run_measured(*arguments, cwd=self.folder)
        # The log of an existing run precedes it.
        lines = [line for line in text.splitlines() if arguments[0] != "train" or "error: " in line]
        faults = [
            what
            for what, wrong in (
                ("exit %s" % code, code != 2),
                ("%d lines" % len(lines), len(lines) != 1),
                ("does not name " + place, place not in text),
                ("does not say " + ", ".join(words), not all(word in text for word in words)),
                ("%d MiB" % (most >> 20), most > MAX_BYTES),
                ("%.1f s" % seconds, seconds > MAX_SECONDS),
            )
            if wrong
        ]
        return (
            "%s, %s: %s: %s" % (name, arguments[0], ", ".join(faults), text[:600])
            if faults
            else None
        )

    def try_all(self, cases):
        watch = OpenWatch(OUTSIDE)
        with ThreadPoolExecutor(2) as pool:
            faults = [fault for fault in pool.map(self.refused, cases) if fault]
        self.assertEqual(faults, [], "\n".join(faults))
        self.assertFalse(watch.opened(), "a file outside was opened")
        open(OUTSIDE + "raw.bin", "rb").close()
        self.assertTrue(watch.opened(), "the watch is deaf")

    def made(self, kind, tables, maker):
        """Yields (name, path in a folder of its own, words) of each case."""
        for index, (name, (spoil, words)) in enumerate(
            (item for table in tables for item in table.items())
        ):
            folder = "%s%d" % (kind, index)
            os.mkdir(folder)
            path = folder + "/spoilt.h5"
            with maker(path) as file:
                spoil(file)
            yield name, path, words

    def test_checkpoints(self):
        cases = []
        for name, path, words in self.made("checkpoint", [CHECKPOINTS], checkpoint):
            cases += [(name, path, words, (command, path)) for command in ("inspect", "verify")]
        for name, path, words in self.made("verified", [VERIFIED], checkpoint):
            cases.append((name, path, words, ("verify", path)))
        for index, (name, make) in enumerate((PLAIN | PLAIN_VERIFIED).items()):
            path = "plain%d.h5" % index
            content = make()
            with open(path, "wb") as file:
                file.write(content)
            cases += [
                (name, path, "", (command, path))
                for command in ("inspect", "verify")
                if name in PLAIN or command == "verify"
            ]
        os.mkfifo("pipe.h5")
        cases += [
            ("a pipe", "pipe.h5", "", (command, "pipe.h5")) for command in ("inspect", "verify")
        ]
        self.try_all(cases)

    def test_checkpoints_to_go_on_from(self):
        cases = []
        for name in (
            "a tensor that is a link into another file",
            "a virtual dataset",
            "a petabyte in one small chunk",
            "a group within itself",
            "a step below zero",
        ):
            path = "start%d.h5" % len(cases)
            with checkpoint(path) as file:
                CHECKPOINTS[name][0](file)
            cases.append(
                (
                    name,
                    path,
                    CHECKPOINTS[name][1],
                    (
                        "train",
                        "deck.toml",
                        "--restart",
                        path,
                        "--set",
                        "run.folder=run%d" % len(cases),
                    ),
                )
            )
        names = ("a cache image", "an unused link into another file", "too many chunks of a tensor")
        table = {name: REFUSED["checkpoint"][name] for name in names}
        for name, path, words in self.written("start", table):
            folder = "run.folder=run%d" % len(cases)
            train = ("train", "deck.toml", "--restart", path, "--set", folder)
            cases.append((name, path, words, train))
        self.try_all(cases)

    def test_shards_of_images(self):
        cases = []
        for name, path, words in self.made("images", [IMAGES], images):
            train = ("check", "deck.toml", "--set", "data.train=" + os.path.dirname(path))
            cases += [
                (name, path, words, arguments)
                for arguments in (("inspect", path), ("verify", path), train)
            ]
        for name, path, words in self.made("labelled", [IMAGES_VERIFIED], images):
            train = ("check", "deck.toml", "--set", "data.train=" + os.path.dirname(path))
            cases += [(name, path, words, arguments) for arguments in (("verify", path), train)]
        cases += [
            (name, path, words, ("verify", path))
            for name, path, words in self.made("summed", [IMAGES_SUMMED], images)
        ]
        self.try_all(cases)

    def test_shards_of_encoded_images(self):
        cases = []
        for kind, table, first in (
            ("encoded", ENCODED, 0),
            ("indexed", ENCODED_INDEXED, 1),
            ("decoded", ENCODED_VERIFIED, 1),
        ):
            for name, path, words in self.made(kind, [table], encoded):
                commands = self.commands_of("encoded", path)[first:]
                cases += [
                    (name, path, words, command)
                    for command in commands
                    if kind != "decoded" or command[0] == "verify"
                ]
        self.try_all(cases)

    def test_packed_lists(self):
        makers = {"encoded": encoded, "images": images, "tokens": tokens}
        cases = []
        for kind, table in PACKED.items():
            written = {
                name: (spoilt(makers[kind], spoil), words) for name, (spoil, words) in table.items()
            }
            for name, path, words in self.written(kind + "_packed", written):
                self.assertLess(os.path.getsize(path), 21 << 20)
                _, verify, check = self.commands_of(kind, path)
                cases.append((name, path, words, verify))
                cases.append((name, path, words, check + ("--set", "data.verify=1")))
        self.try_all(cases)

    def test_shards_of_tokens(self):
        cases = []
        for name, path, words in self.made("tokens", [TOKENS], tokens):
            train = ("check", "gpt.toml", "--set", "data.train=" + os.path.dirname(path))
            cases += [
                (name, path, words, arguments)
                for arguments in (("inspect", path), ("verify", path), train)
            ]
        cases += [
            (name, path, words, ("verify", path))
            for name, path, words in self.made("read", [TOKENS_VERIFIED], tokens)
        ]
        self.try_all(cases)

    def test_safetensors(self):
        cases = []
        for index, (name, (content, words)) in enumerate(SAFETENSORS.items()):
            path = "weights%d.safetensors" % index
            with open(path, "wb") as file:
                file.write(content)
            cases.append(
                (name, path, words, ("import", path, "deck.toml", "--out", "made%d.h5" % index))
            )
        self.try_all(cases)

    def written(self, kind, table):
        """Yields (name, path in a folder of its own, the rest of the entry) of each case."""
        for index, (name, entry) in enumerate(table.items()):
            folder = "%s_storage%d" % (kind, index)
            os.mkdir(folder)
            make, *rest = entry if isinstance(entry, tuple) else (entry,)
            # In a process of its own: a started program inherits the peak memory of this one.
            writer = multiprocessing.get_context("fork").Process(
                target=make, args=(folder + "/spoilt.h5",)
            )
            writer.start()
            writer.join()
            self.assertEqual(writer.exitcode, 0, name)
            yield (name, folder + "/spoilt.h5", *rest)

    def commands_of(self, kind, path):
        """Returns the commands that read a file, or its folder as a dataset."""
        commands = [("inspect", path), ("verify", path)]
        if kind != "checkpoint":
            folder = "data.train=" + os.path.dirname(path)
            commands.append(("check", "only_%s.toml" % kind, "--set", folder))
        return commands

    def is_of_labels(self, words):
        """Returns whether a case is about labels, which `inspect` does not need."""
        return any("labels" in word for word in words)

    def test_storage(self):
        self.try_all(
            [
                (name, path, words, arguments)
                for kind, table in REFUSED.items()
                for name, path, words in self.written(kind, table)
                for arguments in self.commands_of(kind, path)
                if arguments[0] != "inspect" or not self.is_of_labels(words)
            ]
        )

    def bounded(self, case):
        """Returns None, or a description of a reaction that is late, or silent about its limit."""
        name, path, arguments = case
        code, _, text, most, seconds = run_measured(*arguments, cwd=self.folder)
        faults = [
            what
            for what, wrong in (
                ("exit %s" % code, code not in (0, 2)),
                ("%d lines" % len(text.splitlines()), code == 2 and text.count("\n") != 1),
                ("does not name " + path, code == 2 and path not in text),
                ("does not name a reason", code == 2 and not re.search(REASON, text)),
                ("%d MiB" % (most >> 20), most > MAX_BYTES),
                ("%.1f s" % seconds, seconds > MAX_SECONDS),
            )
            if wrong
        ]
        print(
            "%s, %s: exit %d, %.1f s, %d MiB%s"
            % (name, arguments[0], code, seconds, most >> 20, ": " + text[:200] if code else ""),
            flush=True,
        )
        return "%s, %s: %s: %s" % (name, arguments[0], faults, text[:600]) if faults else None

    def test_slow_files(self):
        # `inspect` lists everything of a checkpoint.
        cases = [
            (name, path, arguments)
            for kind, table in SLOW.items()
            for name, path in self.written(kind, table)
            for arguments in self.commands_of(kind, path)
            if arguments[0] in {"checkpoint": ("inspect",), "images": ("verify", "check")}[kind]
        ]
        for _, path, _ in cases:
            self.assertLess(512 * os.stat(path).st_blocks, 16 << 20, path)
        with ThreadPoolExecutor(2) as pool:
            faults = [fault for fault in pool.map(self.bounded, cases) if fault]
        self.assertEqual(faults, [], "\n".join(faults))

    def test_the_largest_chunk_tables_are_read(self):
        newest = {"libver": "latest"}
        for count, options in ((MANY_CHUNKS, {}), (MANY_CHUNKS, newest), (MAX_CHUNKS, newest)):
            spoilt(images, many_images(count), **options)("whole.h5")
            result = harness.run("verify", "whole.h5", cwd=self.folder)
            self.assertEqual(result.returncode, 0, "%s: %s" % (options, result.text))

    def test_untouched_ones_are_taken(self):
        for maker in (checkpoint, images, encoded, tokens):
            for options in ({}, {"libver": "latest"}):
                maker("whole.h5", **options).close()
                for command in ("inspect", "verify"):
                    result = harness.run(command, "whole.h5", cwd=self.folder)
                    self.assertEqual(
                        result.returncode, 0, "%s %s: %s" % (maker.__name__, options, result.text)
                    )


if __name__ == "__main__":
    unittest.main()
