#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the machine code of two revisions: renames, comments and layout must not change it.

Usage: same_machine_code.py BEFORE [AFTER]       AFTER is HEAD where it is left out
       exit 0: equal; 1: each difference on a line; 2: a revision cannot be built

Each revision is checked out into build/same_machine_code and built as a release without tests,
with TRIREME_FIXED_LOCATIONS and a section a function. Two objects are equal if their sections of
code have, in the same order, the same bytes and the same relocations: place, kind and addend.
Names of symbols may differ, but the same old name must become the same new name everywhere.
An object whose source was renamed is found by its sections.
"""

import argparse
import pathlib
import re
import shutil
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build/same_machine_code"
SHF_EXECINSTR = 4
SHT_SYMTAB, SHT_RELA = 2, 4
STT_SECTION = 3


class Sections:
    """The code of one object file (ELF, 64 bits, little-endian)."""

    def __init__(self, path):
        data = path.read_bytes()
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path}: not an object of 64 bits in ELF")
        start, size, count, names = struct.unpack_from("<Q10xHHH", data, 0x28)
        self.headers = [
            struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)
        ]
        self.data = data
        self.names = self.headers[names][4]
        self.symbols = next((h for h in self.headers if h[1] == SHT_SYMTAB), None)

    def text(self, at):
        return self.data[at : self.data.index(b"\0", at)].decode()

    def symbol(self, number):
        """The symbol's name; of a section, the section's name without that of its function."""
        name, info, _, section = struct.unpack_from(
            "<IBBH", self.data, self.symbols[4] + 24 * number
        )
        if info & 15 == STT_SECTION:
            return "section:" + self.text(self.names + self.headers[section][0])
        return self.text(self.headers[self.symbols[6]][4] + name)

    def code(self):
        """Yields of each section of code: name, bytes, [(place, kind, addend)], [symbol]."""
        relocations = {h[7]: h for h in self.headers if h[1] == SHT_RELA}
        for number, header in enumerate(self.headers):
            if not header[2] & SHF_EXECINSTR or header[5] == 0:
                continue
            shapes, symbols = [], []
            if number in relocations:
                table = relocations[number]
                for at in range(table[4], table[4] + table[5], 24):
                    place, info, addend = struct.unpack_from("<QQq", self.data, at)
                    shapes.append((place, info & 0xFFFFFFFF, addend))
                    symbols.append(self.symbol(info >> 32))
            code = self.data[header[4] : header[4] + header[5]]
            yield self.text(self.names + header[0]), code, tuple(shapes), symbols


def run(words, **options):
    result = subprocess.run(words, capture_output=True, text=True, **options)
    if result.returncode != 0:
        command = " ".join(map(str, words))
        said = (result.stdout + result.stderr)[-2000:]
        print(f"same_machine_code: {command}: {said}", file=sys.stderr)
        sys.exit(2)
    return result.stdout


def build(revision):
    """Checks `revision` out and builds it. Returns the objects by the paths of their sources."""
    name = run(["git", "rev-parse", "--short=12", revision], cwd=ROOT).strip()
    folder = FOLDER / name
    if not (folder / "built").exists():
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "source").mkdir(parents=True)
        archive = subprocess.Popen(["git", "archive", name], cwd=ROOT, stdout=subprocess.PIPE)
        run(["tar", "-x", "-C", folder / "source"], stdin=archive.stdout)
        flags = "-ffunction-sections -Wno-all -Wno-extra"
        run(
            ["cmake", "-S", folder / "source", "-B", folder / "build", "-G", "Ninja"]
            + [
                "-DCMAKE_BUILD_TYPE=Release",
                "-DTRIREME_BUILD_TESTS=OFF",
                "-DTRIREME_FIXED_LOCATIONS=ON",
            ]
            + [f"-DCMAKE_CXX_FLAGS={flags}"]
            + [f"-DCMAKE_PREFIX_PATH={ROOT}/.deps/onednn;{ROOT}/.deps/kokkos"]
        )
        run(["cmake", "--build", folder / "build"])
        (folder / "built").touch()
    print(f"same_machine_code: {revision} ({name}) is built", flush=True)
    objects = {}
    for path in sorted((folder / "build").rglob("*.o")):
        relative = path.relative_to(folder / "build").as_posix()
        objects[re.sub(r"CMakeFiles/[^/]+\.dir/|\.o$", "", relative)] = path
    return objects


def compare(name, before, after, renamed):
    """Yields the differences of two objects; `renamed` collects the new name of each old symbol."""
    old, new = list(Sections(before).code()), list(Sections(after).code())
    if len(old) != len(new):
        yield f"{name}: {len(old)} functions before, {len(new)} after"
        return
    for (old_name, old_code, old_shape, old_symbols), (
        new_name,
        new_code,
        new_shape,
        new_symbols,
    ) in zip(old, new):
        if old_code != new_code:
            yield f"{name}: {new_name}: other instructions (before: {old_name})"
        elif old_shape != new_shape:
            yield f"{name}: {new_name}: other relocations (before: {old_name})"
        else:
            for a, b in zip(old_symbols, new_symbols):
                a, b = (f"{name}:{s}" if s.startswith(".L") else s for s in (a, b))
                if renamed.setdefault(a, b) != b:
                    yield f"{name}: {new_name}: {a} became {b} here and {renamed[a]} elsewhere"


def moved(missing, added):
    """Pairs the objects whose source was renamed by the shapes of their sections."""

    def key(path):
        return tuple((code, shape) for _, code, shape, _ in Sections(path).code())

    by_code = {key(path): name for name, path in missing.items()}
    return {by_code[key(path)]: name for name, path in added.items() if key(path) in by_code}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after", nargs="?", default="HEAD")
    given = parser.parse_args()
    before, after = build(given.before), build(given.after)
    pairs = {name: name for name in before if name in after}
    pairs.update(
        moved(
            {n: p for n, p in before.items() if n not in after},
            {n: p for n, p in after.items() if n not in before},
        )
    )
    differences, renamed, functions, size = [], {}, 0, 0
    for old, new in pairs.items():
        differences += compare(new, before[old], after[new], renamed)
        for _, code, _, _ in Sections(after[new]).code():
            functions, size = functions + 1, size + len(code)
    differences += [
        f"{name}: no object with this code after" for name in before if name not in pairs
    ]
    differences += [
        f"{name}: no object with this code before" for name in after if name not in pairs.values()
    ]
    print("\n".join(differences[:200]))
    others = sum(a != b for a, b in renamed.items())
    print(
        f"same_machine_code: {len(pairs)} objects, {functions} functions, {size} bytes of code, "
        f"{others} renamed symbols, {len(differences)} differences"
    )
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
