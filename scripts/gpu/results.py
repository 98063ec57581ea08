# SPDX-License-Identifier: Apache-2.0
"""Writes the results of the GPU acceptance: OUT/results.tar.gz and OUT/summary.md.

Both are replaced by complete files before and after each section, and after its runs every
PUBLISH_SECONDS, so they are readable whenever the acceptance is killed. The archive holds
SECTION.json, the logs and metrics of all runs, algorithms.txt, notes.txt and the machine file; also
those of earlier parts, if their archive was given.
"""

import contextlib
import io
import json
import lzma
import os
import re
import shutil
import tarfile
import time
import zlib

MAX_BYTES = 15 << 20  # of the archive; more than 16 MiB may not come back
MAX_LOG_BYTES = 192 << 10  # of a log: its first quarter and its end are kept
PUBLISH_SECONDS = 15
SUMMARY_LINES = 20  # of a failure: its first line and its last ones
VERDICTS = {True: "passed", False: "FAILED", None: "-"}


@contextlib.contextmanager
def replaced(path):
    """Opens a file for writing that replaces `path` completely, or not at all if that fails."""
    new = "%s.new%d" % (path, os.getpid())
    try:
        with open(new, "wb") as file:
            yield file
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(new)
        raise


def replace(path, text):
    with replaced(path) as file:
        file.write(text.encode())


def is_result(found):
    """Returns whether the content of a SECTION.json has what the summary needs."""
    return (
        isinstance(found, dict)
        and found.get("passed") in (True, False, None)
        and isinstance(found.get("summary"), str)
        and isinstance(found.get("seconds"), (int, float))
        and isinstance(found.get("failed", {}), dict)
        and all(isinstance(text, str) for text in found.get("failed", {}).values())
    )


def shorten(path):
    """Cuts the middle out of a long log."""
    size = os.path.getsize(path)
    if not path.endswith(".log") or size <= MAX_LOG_BYTES:
        return
    with open(path, "rb") as file:
        first = file.read(MAX_LOG_BYTES // 4)
        file.seek(size - MAX_LOG_BYTES * 3 // 4)
        last = file.read()
    with open(path, "wb") as file:
        file.write(first + b"\n[... %d bytes left out ...]\n" % (size - MAX_LOG_BYTES) + last)


class Results:
    """The results of this part and of earlier ones. `order`: all sections."""

    def __init__(self, out, scratch, order, earlier=()):
        self.out, self.folder, self.order = out, os.path.join(scratch, "results"), order
        self.running, self.dropped, self.published = None, [], 0.0
        os.makedirs(self.folder)
        os.makedirs(out, exist_ok=True)
        for archive in earlier:
            self.read(archive)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def read(self, archive):
        """Adds the files of an earlier archive; later ones replace earlier ones.

        A damaged archive, or a file in it that cannot be used, costs a note: a GPU may be waiting.
        """
        try:
            with tarfile.open(archive) as packed:
                for entry in packed:
                    name = os.path.normpath(entry.name)
                    inside = not os.path.isabs(name) and name.split("/")[0] not in ("..", ".")
                    if entry.isfile() and inside:
                        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
                        with open(self.path(name), "wb") as file:
                            shutil.copyfileobj(packed.extractfile(entry), file)
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError) as bad:
            self.note("--earlier %s: not all of it can be used: %s" % (archive, bad))
        for section in self.order:
            path = self.path(section + ".json")
            if os.path.isfile(path) and not self.of(section):
                os.remove(path)
                self.note("--earlier %s: %s.json cannot be used" % (archive, section))

    def of(self, section):
        """Returns the result of a section; None if there is none, or none that can be used."""
        try:
            with open(self.path(section + ".json")) as file:
                found = json.load(file)
        except (OSError, ValueError, RecursionError):
            return None
        return found if is_result(found) else None

    def note(self, text):
        """Adds a line to the summary, below the lines of earlier parts."""
        replace(self.path("notes.txt"), "".join(line + "\n" for line in [*self.notes(), text]))

    def notes(self):
        try:
            with open(self.path("notes.txt"), errors="replace") as file:
                return file.read().splitlines()
        except OSError:
            return []

    def begin(self, section):
        self.running = section
        self.publish()

    def note_progress(self, result):
        """Writes what is known of the running section, unless it was written just before."""
        if time.monotonic() - self.published >= PUBLISH_SECONDS:
            self.write(result)
            self.publish()

    def end(self, result):
        self.write(result)
        self.running = None
        for name in self.files():
            shorten(self.path(name))
        self.publish()

    def write(self, result):
        replace(self.path(result["section"] + ".json"), json.dumps(result, indent=1))

    def summary(self):
        lines = ["# GPU acceptance", "", *("- " + note for note in self.notes()), ""]
        lines += ["| section | verdict | seconds | |", "|---|---|---:|---|"]
        failures = []
        for section in self.order:
            result = self.of(section)
            if section == self.running:
                lines.append("| %s | RUNNING when this was written | | |" % section)
            elif result:
                words = (section, VERDICTS[result["passed"]], result["seconds"])
                summary = " ".join(result["summary"].split()).replace("|", "/")
                lines.append("| %s | %s | %.0f | %s |" % (*words, summary[:300]))
            if result:
                failures += [(section, *one) for one in result.get("failed", {}).items()]
        for section, run, text in failures:
            lines += ["", "## %s: %s" % (section, run), "", "```", *both_ends(text), "```"]
        if self.dropped:
            lines += ["", "Left out of results.tar.gz, which was too large:"]
            lines += ["- " + name for name in self.dropped]
        return "\n".join(lines) + "\n"

    def files(self):
        """Returns the files of the archive, those that matter most first."""
        found = []
        for folder, _, names in os.walk(self.folder):
            found += [os.path.relpath(os.path.join(folder, name), self.folder) for name in names]
        rank = {".json": 0, ".txt": 1, ".toml": 1, ".csv": 2, ".jsonl": 3}
        return sorted(
            (name for name in found if not re.search(r"\.new\d*$", name)),
            key=lambda name: (
                name.count("/") > 0,
                rank.get(os.path.splitext(name)[1], 4),
                os.path.getsize(self.path(name)),
            ),
        )

    def pack(self, names):
        """Writes the archive; returns the files that fit into it."""
        kept = []
        with replaced(os.path.join(self.out, "results.tar.gz")) as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as packed:
                for name in names:
                    with open(self.path(name), "rb") as one:  # it may grow meanwhile
                        data = one.read(MAX_BYTES)
                    # A file may be as large as it is unpacked: random data do not shrink.
                    if file.tell() + len(data) <= MAX_BYTES:
                        entry = tarfile.TarInfo(name)
                        entry.size, entry.mtime = len(data), int(time.time())
                        packed.addfile(entry, io.BytesIO(data))
                        kept.append(name)
        return kept

    def publish(self):
        """Replaces OUT/results.tar.gz and OUT/summary.md. A failure is printed."""
        self.published = time.monotonic()
        names = self.files()
        try:
            kept = set(self.pack(names))
            self.dropped = [name for name in names if name not in kept]
            replace(os.path.join(self.out, "summary.md"), self.summary())
        except OSError as failure:
            print("the results cannot be written: %s" % failure, flush=True)


def both_ends(text):
    """Returns the lines of a failure: the first one, which says what was run, and the last ones."""
    lines = text.splitlines()
    if len(lines) <= SUMMARY_LINES:
        return lines
    return [lines[0], "...", *lines[2 - SUMMARY_LINES :]]


def last_lines(path, count):
    """Returns the end of a log without terminal codes."""
    try:
        with open(path, errors="replace") as file:
            lines = re.sub(r"\x1b\[[0-9;]*m", "", file.read()).splitlines()
    except OSError:
        return []
    return lines[-count:]
