#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the dependencies between the libraries, and where third-party headers may be included.

Usage: check_layers.py [ROOT]

Exit status 0: no violations. 1: prints one line for each violation (file:line: the violation and
the right way).

The script reads the #include lines of include/trireme/<library>, src/<library> and kernels/, and
the trireme:: names on the link lines of their CMakeLists.txt. It also finds calls of MPI on
MPI_COMM_WORLD, and families of models that other libraries name. It needs only the standard library
of Python.
"""

import os
import re
import sys
from pathlib import Path

# Each library and the libraries that it may use. Arrows point downward: a library uses only those
# on earlier lines.
ARROWS = {
    "base": [],
    "keys": "base".split(),
    "device": "base".split(),
    "io": "base".split(),
    "tensor": "base device".split(),
    "kernels": "base device".split(),
    "comm": "base device kernels".split(),  # sums in tree order on a device
    "ops": "base device tensor kernels".split(),
    "parallel": "base keys device comm tensor ops".split(),
    "monitor": "base keys device io".split(),
    "checkpoint": "base keys device io comm tensor parallel".split(),
    "data": "base keys device io comm tensor kernels ops".split(),
    "optim": "base keys device tensor kernels ops parallel".split(),
    "model": "base keys device tensor ops parallel".split(),
    "deck": "base keys device tensor parallel monitor checkpoint data optim model".split(),
    "train": (
        "base device io comm tensor ops parallel " "monitor checkpoint data optim model deck"
    ).split(),
    "plan": (
        "base keys device io comm tensor ops parallel "
        "monitor checkpoint data optim model deck train"
    ).split(),
    "report": "base io parallel monitor data deck train".split(),
    "app": (
        "base keys device io comm tensor kernels ops parallel "
        "monitor checkpoint data optim model deck train plan report"
    ).split(),
}

# A pattern of third-party headers, the places that may include them, and the text of the message.
THIRD_PARTY = [
    (
        r"mpi\.h$",
        ["src/comm/", "src/io/hdf5/"],
        "mpi.h is for src/comm (and src/io/hdf5, which hands a communicator to parallel HDF5)",
    ),
    (r"nccl\.h$", ["src/comm/"], "nccl.h is for src/comm"),
    (r"(hdf5\.h|H5\w+\.h)$", ["src/io/"], "hdf5.h is for src/io"),
    (r"toml\+\+/|toml\.hpp$", ["src/keys/"], "toml++ is for src/keys"),
    (
        r"Kokkos_",
        ["kernels/", "src/device/kokkos_scope.cpp"],
        "Kokkos is for kernels/ and src/device/kokkos_scope.cpp",
    ),
    (
        r"(cuda|cublas|cudnn|cufft|curand|nvml|nvtx)\w*(\.h|\.hpp|/.*)$",
        ["src/device/", "src/comm/", "src/ops/cuda", "kernels/"],
        "CUDA headers are for src/device, src/comm, src/ops/cuda and kernels/",
    ),
    (r"(oneapi/dnnl/|dnnl)", ["src/ops/"], "oneDNN is for src/ops"),
    (
        r"sentencepiece_",
        ["src/data/tokens/sentencepiece.cpp"],
        "SentencePiece is for src/data/tokens/sentencepiece.cpp",
    ),
    (
        r"(jpeglib|jerror|png)\.h$",
        [
            "src/data/images/image_decode.cpp",
            "src/data/images/image_encode.cpp",
            "src/data/images/jpeg_errors.hpp",
            "src/data/images/png_errors.hpp",
        ],
        "libjpeg and libpng are for decoding and encoding of images in src/data",
    ),
    (
        r"archive(_entry)?\.h$",
        ["src/data/sources/archive_reader."],
        "libarchive is for src/data/sources/archive_reader.hpp and the files that include it",
    ),
    (
        r"CLI/",
        ["src/app/command_line/command_line.cpp"],
        "CLI11 is for src/app/command_line/command_line.cpp",
    ),
]
# Libraries that own kinds of something: for each, how its files name them, and the message. Other
# libraries ask questions instead of naming a kind.
#   words: a pattern of `files`, whose group is the word of a kind in decks
#   types: a pattern of `files`, whose group is the type of its options; None: it has none
#   removed: names that must not come back
KINDS = {
    "model": {
        "files": "src/model/*/*.?pp",
        "words": r'\.word = "(\w+)"',
        "types": r"^struct (\w+Options) ",
        "removed": ["ModelKind"],
        "message": "is a family of models, which src/model alone names; ask the family "
        "(include/trireme/model/family.hpp)",
    },
    "optim": {
        "files": "src/optim/rules/*.?pp",
        "words": r'\.word = "(\w+)"',
        "types": None,
        "removed": ["OptimizerKind"],
        "message": "is an update rule, which src/optim alone names; ask the rule "
        "(include/trireme/optim/rule.hpp)",
    },
}
# MPI_COMM_WORLD belongs to all libraries of the process: the program duplicates it once.
WORLD = re.compile(r"\bMPI_COMM_WORLD\b")
WORLD_CALLS = {
    "": r"MPI_Abort\(MPI_COMM_WORLD\b",
    "src/comm/mpi_communicator.cpp": r"MPI_Comm_(dup|set_errhandler)\(MPI_COMM_WORLD\b",
}
# Limits: lines of a file, by its first folder; files of a folder, where libraries are.
MAX_FILE_LINES = {"include": 500, "src": 500, "kernels": 500, "tests": 600, "scripts": 600}
MAX_FOLDER_FILES = 25
LIBRARY_FOLDERS = ["include/trireme", "src", "kernels"]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCE_SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".h"}


def library_of(path):
    """Returns the library that a file belongs to, or None for other files (tests)."""
    parts = path.parts
    if parts[:2] == ("include", "trireme") and len(parts) > 3:
        return parts[2]
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[0] == "kernels":
        return "kernels"
    return None


def find_own(root, includer, header):
    """Returns the file of this project that a private #include names, or None: a name is looked up
    in the folder of the includer and in src/ (kernels/ is beside it)."""
    for folder in (includer.parent, Path("src"), Path(".")):
        path = Path(os.path.normpath(folder / header))
        if (root / path).is_file():
            return path
    return None


def check_source(root, path):
    relative = path.relative_to(root)
    name = relative.as_posix()
    library = library_of(relative)
    lines = path.read_text(encoding="utf-8").splitlines()
    code = [line.strip() for line in lines[:2] if "SPDX-License-Identifier" not in line]
    own_header = (
        f"trireme/{'/'.join(relative.parts[relative.parts[0] == 'src':-1])}/{path.stem}.hpp"
    )
    if path.suffix == ".cpp" and (root / "include" / own_header).exists():
        first = next((line for line in lines if INCLUDE.match(line)), "")
        if first != f'#include "{own_header}"':
            # So a header that does not compile alone is found (tests/CMakeLists.txt).
            yield f"{name}:1: a source includes its own header first: {own_header}"
    if path.suffix in {".hpp", ".h", ".cuh"} and code[:1] != ["#pragma once"]:
        yield f"{name}:1: a header begins with #pragma once"
    if library not in ARROWS:
        yield f"{name}:1: {library} is no library of Trireme; known: {', '.join(ARROWS)}"
        return
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(2)
        where = f"{name}:{number}"
        if header.startswith("trireme/"):
            other = header.split("/")[1]
            if other not in ARROWS:
                yield f"{where}: {header}: {other} is no library of Trireme"
            elif other != library and other not in ARROWS[library]:
                arrows = ", ".join(ARROWS[library]) or "none"
                yield f"{where}: {library} includes {header}: not one of its arrows ({arrows})"
            continue
        if match.group(1) == '"' and relative.parts[0] == "include":
            yield f"{where}: {header}: a public header includes public headers only"
            continue
        own_file = find_own(root, relative, header) if match.group(1) == '"' else None
        for pattern, places, message in THIRD_PARTY:
            if not own_file and re.match(pattern, header) and not name.startswith(tuple(places)):
                yield f"{where}: {header}: {message}"
        if own_file and library_of(own_file) != library:
            yield (
                f"{where}: {header}: a file of another library is reached by its public header, "
                "not by its path"
            )


def check_world(root, path):
    """Yields every use of MPI_COMM_WORLD but MPI_Abort and the one that duplicates it."""
    name = path.relative_to(root).as_posix()
    allowed = [call for place, call in WORLD_CALLS.items() if name.startswith(place)]
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        code = line.split("//")[0]
        if WORLD.search(re.sub("|".join(allowed), "", code)):
            yield (
                f"{name}:{number}: MPI_COMM_WORLD is for MPI_Abort alone; use the duplicate, "
                "MpiCommunicator::world() or a part of it"
            )


def kinds_of(root, library):
    """Returns a pattern of the uses of a library's kinds: in code without string literals, and as
    whole literals."""
    rule = KINDS[library]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(root.glob(rule["files"])))
    words = set(re.findall(rule["words"], text))
    types = set(rule["removed"])
    if rule["types"]:
        types |= set(re.findall(rule["types"], text, re.MULTILINE))
    code = rf"\b(?:{'|'.join(sorted(types))})\b"
    if not words:
        return re.compile(code), None
    word = "|".join(sorted(words))
    return re.compile(rf"{code}|(?:\.|->)(?:{word})\b|\b(?:{word})::"), re.compile(
        rf'\\?"(?:{word})\\?"'
    )


def check_kinds(root, sources):
    """Yields every line outside a library that names one of its kinds. Comments are free."""
    for library, rule in KINDS.items():
        in_code, as_literal = kinds_of(root, library)
        for path in sources:
            if library_of(path.relative_to(root)) == library:
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                line = re.sub(r"(^|\s)//.*", "", line)
                code = re.sub(r'"(?:[^"\\]|\\.)*"', '""', line)
                found = in_code.search(code) or (as_literal and as_literal.search(line))
                if found and not INCLUDE.match(line):
                    name = path.relative_to(root).as_posix()
                    yield f"{name}:{number}: {found.group()} {rule['message']}"


def check_links(root, path):
    """Yields every trireme::x on the link line of a library that is not one of its dependencies."""
    relative = path.relative_to(root)
    library = library_of(relative)
    if library not in ARROWS:
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for other in re.findall(r"trireme::(\w+)", line.split("#")[0]):
            if other in ARROWS and other != library and other not in ARROWS[library]:
                where = f"{relative.as_posix()}:{number}"
                arrows = ", ".join(ARROWS[library]) or "none"
                yield f"{where}: {library} links trireme::{other}: not one of its arrows ({arrows})"


def check_arrows():
    """Yields every arrow of the table itself that does not point downward."""
    seen = []
    for library, below in ARROWS.items():
        for other in below:
            if other not in seen:
                yield f"check_layers.py: {library} -> {other} points upward or nowhere"
        seen.append(library)


def check_sizes(root):
    """Yields every source, test or script that is too long, and every folder of too many files."""
    for top, limit in MAX_FILE_LINES.items():
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES | {".py", ".sh"}:
                lines = len(path.read_text(encoding="utf-8").splitlines())
                if lines > limit:
                    name = path.relative_to(root).as_posix()
                    yield f"{name}:{lines}: {lines} lines; split it (at most {limit})"
    for top in LIBRARY_FOLDERS:
        for folder in [root / top, *sorted((root / top).rglob("*/"))]:
            if not folder.is_dir():
                continue
            files = sum(path.is_file() for path in folder.iterdir())
            if files > MAX_FOLDER_FILES:
                name = folder.relative_to(root).as_posix()
                yield (
                    f"{name}: {files} files; divide it into topics (at most {MAX_FOLDER_FILES}; "
                    "docs/design/architecture.md)"
                )


def check(root):
    """Returns all violations in a tree as lines of text, and the number of files."""
    root = Path(root)
    sources, links = [], []
    for top in LIBRARY_FOLDERS:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES:
                sources.append(path)
            elif path.name == "CMakeLists.txt":
                links.append(path)
    found = list(check_arrows())
    found += check_sizes(root)
    for path in sources:
        found += check_source(root, path)
        found += check_world(root, path)
    found += check_kinds(root, sources)
    for path in links:
        found += check_links(root, path)
    return found, len(sources)


def main(arguments):
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0 if len(arguments) == 1 else 2
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    found, files = check(root)
    for line in found:
        print(line)
    if files == 0:
        print(f"{root}: no sources under include/trireme, src or kernels")
        return 1
    print(f"check_layers: {files} files, {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
