"""Writes the results of the GPU acceptance: OUT/results.tar.gz and OUT/summary.md.

Both are replaced before and after each section by complete files, so they are readable whenever the
acceptance is killed. The archive holds SECTION.json, the logs and metrics of all runs,
algorithms.txt and the machine file; also those of earlier parts, if their archive was given.
"""

import json
import os
import re
import shutil
import tarfile

MAX_BYTES = 15 << 20  # of the archive; more than 16 MiB may not come back
MAX_LOG_BYTES = 192 << 10  # of a log: its first quarter and its end are kept
VERDICTS = {True: "passed", False: "FAILED", None: "-"}


def replace(path, text):
    """Writes a file completely or not at all."""
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)


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
        self.notes, self.running, self.dropped = [], None, []
        os.makedirs(self.folder)
        os.makedirs(out, exist_ok=True)
        for archive in earlier:
            self.read(archive)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def read(self, archive):
        """Adds the files of an earlier archive; later ones replace earlier ones."""
        with tarfile.open(archive) as packed:
            for entry in packed.getmembers():
                name = os.path.normpath(entry.name)
                if not entry.isfile() or os.path.isabs(name) or name.startswith(".."):
                    continue
                os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
                with open(self.path(name), "wb") as file:
                    shutil.copyfileobj(packed.extractfile(entry), file)

    def of(self, section):
        """Returns the result of a section; None if there is none."""
        try:
            with open(self.path(section + ".json")) as file:
                return json.load(file)
        except OSError:
            return None

    def begin(self, section):
        self.running = section
        self.publish()

    def end(self, result):
        replace(self.path(result["section"] + ".json"), json.dumps(result, indent=1))
        self.running = None
        self.publish()

    def summary(self):
        lines = ["# GPU acceptance", "", *("- " + note for note in self.notes), ""]
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
                failures += [(section, *one) for one in result.get("failed", {}).items()]
        for section, run, text in failures:
            lines += ["", "## %s: %s" % (section, run), "", "```", *text.splitlines()[:20], "```"]
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
            (name for name in found if not name.endswith(".new")),
            key=lambda name: (
                name.count("/") > 0,
                rank.get(os.path.splitext(name)[1], 4),
                os.path.getsize(self.path(name)),
            ),
        )

    def pack(self, names):
        """Writes the archive; returns the files that fit into it."""
        path, kept = os.path.join(self.out, "results.tar.gz"), []
        with open(path + ".new", "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as packed:
                for name in names:
                    # A file may be as large as it is unpacked: random data do not shrink.
                    if file.tell() + os.path.getsize(self.path(name)) <= MAX_BYTES:
                        packed.add(self.path(name), arcname=name)
                        kept.append(name)
        os.replace(path + ".new", path)
        return kept

    def publish(self):
        """Replaces OUT/results.tar.gz and OUT/summary.md."""
        for name in self.files():
            shorten(self.path(name))
        names = self.files()
        kept = set(self.pack(names))
        self.dropped = [name for name in names if name not in kept]
        replace(os.path.join(self.out, "summary.md"), self.summary())


def last_lines(path, count):
    """Returns the end of a log without terminal codes."""
    try:
        with open(path, errors="replace") as file:
            lines = re.sub(r"\x1b\[[0-9;]*m", "", file.read()).splitlines()
    except OSError:
        return []
    return lines[-count:]
