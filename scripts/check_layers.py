#!/usr/bin/env python3
"""Holds the arrows of the house: which library may see which, and where third-party headers may be included.

Usage: check_layers.py [ROOT]     exit 0: all holds; 1: each violation on a line of its own (file:line: what, and what would be right)

Read are the #include lines of include/trireme/<library>, src/<library> and kernels/, and the trireme:: names on the link lines of their
CMakeLists.txt. The standard library of Python is enough.
"""

import os
import re
import sys
from pathlib import Path

# Each library and all that it may see beside itself. An arrow points down: whoever is named stands on an earlier line.
ARROWS = {
    "base": [],
    "device": ["base"],
    "io": ["base"],
    "tensor": ["base", "device"],
    "kernels": ["base", "device"],
    "comm": ["base", "device", "kernels"],  # sums in tree order on a device
    "ops": ["base", "device", "tensor", "kernels"],
    "parallel": ["base", "device", "comm", "tensor", "ops"],
    "monitor": ["base", "device", "io"],
    "checkpoint": ["base", "device", "io", "comm", "tensor", "parallel"],
    "data": ["base", "device", "io", "comm", "tensor", "kernels", "ops"],
    "optim": ["base", "device", "tensor", "ops", "parallel"],
    "model": ["base", "device", "tensor", "ops", "parallel"],
    "deck": ["base", "device", "tensor"],  # and the option headers below
    "train": [
        "base",
        "device",
        "io",
        "comm",
        "tensor",
        "ops",
        "parallel",
        "monitor",
        "checkpoint",
        "data",
        "optim",
        "model",
        "deck",
    ],
    "app": [
        "base",
        "device",
        "io",
        "comm",
        "tensor",
        "kernels",
        "ops",
        "parallel",
        "monitor",
        "checkpoint",
        "data",
        "optim",
        "model",
        "deck",
        "train",
    ],
}
# Headers of plain option structs: the deck fills them, so it sees them and what they need, without linking their libraries.
OPTION_HEADERS = re.compile(r"trireme/\w+/options\.hpp$")

# A third-party header, the places that may include it, and how the message calls it.
FOREIGN = [
    (
        r"mpi\.h$",
        ["src/comm/", "src/io/hdf5"],
        "mpi.h is for src/comm (and src/io/hdf5*, which hands a communicator to parallel HDF5)",
    ),
    (r"nccl\.h$", ["src/comm/"], "nccl.h is for src/comm"),
    (r"(hdf5\.h|H5\w+\.h)$", ["src/io/"], "hdf5.h is for src/io"),
    (r"toml\+\+/|toml\.hpp$", ["src/deck/"], "toml++ is for src/deck"),
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
        ["src/data/sentencepiece.cpp"],
        "SentencePiece is for src/data/sentencepiece.cpp",
    ),
    (r"CLI/", ["src/app/command_line.cpp"], "CLI11 is for src/app/command_line.cpp"),
]
LONGEST_FILE = 600  # lines

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCE_SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".h"}


def library_of(path):
    """The library a file of the tree belongs to; None for what stands outside the house (tests)."""
    parts = path.parts
    if parts[:2] == ("include", "trireme") and len(parts) > 3:
        return parts[2]
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[0] == "kernels":
        return "kernels"
    return None


def may_see(library, header):
    other = header.split("/")[1]
    return (
        other == library
        or other in ARROWS[library]
        or (library == "deck" and OPTION_HEADERS.search(header))
    )


def check_source(root, path, option_headers):
    relative = path.relative_to(root)
    name = relative.as_posix()
    library = library_of(relative)
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) > LONGEST_FILE:
        yield f"{name}:{len(lines)}: {len(lines)} lines; split it (at most {LONGEST_FILE})"
    if path.suffix in {".hpp", ".h", ".cuh"} and (not lines or lines[0].strip() != "#pragma once"):
        yield f"{name}:1: a header begins with #pragma once"
    if library not in ARROWS:
        yield f"{name}:1: {library} is no library of the house; known: {', '.join(ARROWS)}"
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
                yield f"{where}: {header}: {other} is no library of the house"
            elif not may_see(library, header) and not (
                OPTION_HEADERS.search(name) and header in option_headers
            ):
                yield f"{where}: {library} includes {header}: not one of its arrows ({', '.join(ARROWS[library]) or 'none'})"
            continue
        is_own = (
            match.group(1) == '"' and (root / relative.parent / header).exists()
        )  # judged where it stands
        for pattern, places, message in FOREIGN:
            if not is_own and re.match(pattern, header) and not name.startswith(tuple(places)):
                yield f"{where}: {header}: {message}"
        aimed_at = Path(os.path.normpath(relative.parent / header))
        if match.group(1) == '"' and ".." in Path(header).parts and library_of(aimed_at) != library:
            yield f"{where}: {header}: a file of another library is reached by its public header, not by its path"


def check_links(root, path):
    """trireme::x on the link line of a library must be one of its arrows."""
    relative = path.relative_to(root)
    library = library_of(relative)
    if library not in ARROWS:
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for other in re.findall(r"trireme::(\w+)", line.split("#")[0]):
            if other in ARROWS and other != library and other not in ARROWS[library]:
                yield f"{relative.as_posix()}:{number}: {library} links trireme::{other}: not one of its arrows ({', '.join(ARROWS[library]) or 'none'})"


def check_arrows():
    """The table itself points downward only."""
    seen = []
    for library, below in ARROWS.items():
        for other in below:
            if other not in seen:
                yield f"check_layers.py: {library} -> {other} points upward or nowhere"
        seen.append(library)


def check(root):
    """All violations of a tree, as lines of text."""
    root = Path(root)
    sources, links = [], []
    for top in ("include/trireme", "src", "kernels"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES:
                sources.append(path)
            elif path.name == "CMakeLists.txt":
                links.append(path)
    option_headers = {
        p.relative_to(root / "include").as_posix()
        for p in sources
        if OPTION_HEADERS.search(p.as_posix())
    }
    found = list(check_arrows())
    for path in sources:
        found += check_source(root, path, option_headers)
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
