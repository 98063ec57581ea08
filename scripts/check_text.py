#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks how the project is written: widths, lengths, heads, test names, sentences, links, paths.

Usage: check_text.py [--count] [ROOT]    exit 0: all holds; 1: each violation on a line of its own

  width      code, comments and documents have at most 100 columns; tables, code blocks and links in
             documents may be wider
  heads      a .cpp, .py or .sh file of over 100 lines opens with a comment or a docstring
  names      the name of a C++ test has at most 60 characters and no "What": it states the property
  sentences  no sentence of a comment has over 40 words
  lengths    a source has at most 600 lines; documents that are read from top to bottom stay within
             LENGTHS
  links      the links of the documents to files and headings resolve
  paths      files that documents name in back-ticks exist; one that the reader of a page makes is
             marked there: `src/...` (new)
  license    a source file names its license within its first three lines

With --count it prints the shares that the project watches instead: comment lines in 100 lines of
code, and the words "what" and "returns" in 10,000 words of comments: of include, src and kernels,
and of tests.
Python's standard library is enough.
"""

import pathlib
import re
import sys

from source_text import comments, sentences

WIDTH = 100
LONG_FILE = 100  # lines of a file that needs a head
MAX_LINES = 600
MAX_WORDS = 40
MAX_NAME = 60
LENGTHS = {  # documents and their most lines
    "README.md": 120,
    "CHANGELOG.md": 60,
    "docs/performance.md": 160,
    "docs/reliability.md": 200,
    "docs/correctness.md": 200,
    "docs/design/planning.md": 250,
    "docs/design/gpu.md": 250,
    "docs/guides/use_gpus.md": 100,
}
CODE_FOLDERS = ["include", "src", "kernels", "tests", "scripts", "inputs", "slurm", "cmake", ".ci"]
CODE_FILES = {".cpp", ".hpp", ".c", ".py", ".sh", ".toml", ".cmake"}
LICENSE = "SPDX-License-Identifier: Apache-2.0"
TEST_NAME = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*\w+,\s*(\w+)\s*\)")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
# A path in back-ticks, and its mark; without placeholders: NAME, <name>, *, {a,b}, blanks, "..."
PATH = re.compile(
    r"(?<!`)`(?:\./)?((?:tests|scripts|src|include|kernels|inputs|slurm|machines)/[^`<*{\s]*)`"
    r"(?!`)(\s\(new\))?"
)
PLACEHOLDER = re.compile(r"\.\.\.|(?<![A-Za-z])(?!README|LICENSE)[A-Z]{2,}(?![A-Za-z])")


def code_files(root):
    """The sources, sorted: what is built, tested or typed."""
    found = [root / "CMakeLists.txt"]
    for folder in CODE_FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.suffix in CODE_FILES or path.name in ("CMakeLists.txt", "run"):
                found.append(path)
    return sorted(path for path in found if path.is_file())


def documents(root):
    """The documents, also those beside tests and scripts."""
    folders = [root / name for name in ("docs", "tests", "scripts")]
    return sorted(root.glob("*.md")) + sorted(
        path for folder in folders for path in folder.rglob("*.md")
    )


def check_width(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > WIDTH and "http" not in line:
            yield number, f"{len(line)} columns, at most {WIDTH}"


def check_length(name, text):
    lines, limit = text.count("\n"), LENGTHS.get(name)
    if limit and lines > limit:
        yield limit + 1, f"{lines} lines, at most {limit}: drop or move what few readers need"


def check_lines(path, text):
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield MAX_LINES + 1, f"{lines} lines, at most {MAX_LINES}: split the file"


def check_head(path, text):
    head = re.sub(rf"^(#!.*\n)?(//|#) {LICENSE}\n((//|#)\n)?", "", text)
    marks = {".cpp": "//", ".sh": "#", ".py": ('"""', "#")}.get(path.suffix)
    if marks and head.count("\n") > LONG_FILE and not head.startswith(marks):
        yield 1, f"over {LONG_FILE} lines without a comment at the top that says what the file does"


def check_test_names(path, text):
    if path.suffix != ".cpp":
        return
    for match in TEST_NAME.finditer(text):
        name, line = match[1], text.count("\n", 0, match.start()) + 1
        if len(name) > MAX_NAME:
            yield line, f"a test name of {len(name)} characters, at most {MAX_NAME}: {name}"
        if re.search("What(?![a-z])", name):
            yield line, f'a test name with "What"; name the thing and its property: {name}'


def check_license(path, text):
    if path.suffix != ".toml" and LICENSE not in "\n".join(text.split("\n")[:3]):
        yield 1, f'no comment "{LICENSE}" within the first three lines'


def check_sentences(path, text):
    for line, words in sentences(comments(path, text)):
        if len(words) > MAX_WORDS:
            begin = " ".join(words[:8])
            yield line, f"a sentence of {len(words)} words, at most {MAX_WORDS}: {begin} ..."


def heading_anchors(text):
    """Returns the anchors of a document's headings, as GitHub makes them."""
    anchors = set()
    for heading in re.findall(
        r"^#+ +(.*?) *$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M
    ):
        words = re.sub(
            r"[^\w\- ]", "", LINK.sub(lambda m: m[0][1 : m[0].index("]")], heading).lower()
        )
        anchors.add(words.replace(" ", "-"))
    return anchors


def prose_of(text):
    """Returns a document with blank lines in place of code, so that the numbers of lines stay."""
    return re.sub(r"^ *```.*?^ *```", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)


def check_paths(root, prose):
    new = {match[1] for match in PATH.finditer(prose) if match[2]}
    for match in PATH.finditer(prose):
        name = match[1]
        if name not in new and not PLACEHOLDER.search(name) and not (root / name).exists():
            number = prose.count("\n", 0, match.start()) + 1
            yield number, f"{name} does not exist; if the reader makes it, write `{name}` (new)"


def check_document(path, prose):
    for number, line in enumerate(prose.split("\n"), 1):
        is_table = line.lstrip().startswith("|")
        if len(LINK.sub("", line)) > WIDTH and not is_table and "http" not in line:
            yield number, f"{len(line)} columns, at most {WIDTH}"
    for match in LINK.finditer(prose):
        link = match[1]
        if re.match(r"\w+:", link):
            continue
        number = prose.count("\n", 0, match.start()) + 1
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists():
            yield number, f"the link {link} leads to no file"
        elif anchor and target.suffix == ".md":
            if anchor not in heading_anchors(target.read_text(encoding="utf-8")):
                yield number, f"the link {link} leads to no heading"


def check(root):
    for path in code_files(root):
        text = path.read_text(encoding="utf-8")
        found = []
        for rule in (
            check_width,
            check_lines,
            check_head,
            check_test_names,
            check_sentences,
            check_license,
        ):
            found += rule(path, text)
        for line, problem in found:
            yield f"{path.relative_to(root)}:{line}: {problem}"
    for path in documents(root):
        name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        prose = prose_of(text)
        found = [*check_length(name, text), *check_document(path, prose)]
        # CHANGELOG.md is about earlier versions, too.
        if name != "CHANGELOG.md":
            found += check_paths(root, prose)
        for line, problem in found:
            yield f"{name}:{line}: {problem}"


def count(root, folders):
    """Prints the shares of comments and of the watched words in the folders."""
    code = commented = 0
    words = []
    for path in code_files(root):
        folder = path.relative_to(root).parts[0]
        if path.suffix not in (".cpp", ".hpp") or folder not in folders:
            continue
        text = path.read_text(encoding="utf-8")
        rows = [(line, row) for line, row in comments(path, text) if row.strip()]
        commented += len({line for line, _ in rows})
        code += sum(
            1 for line in text.split("\n") if line.strip() and not line.lstrip().startswith("//")
        )
        for _, row in rows:
            words += re.findall(r"[a-z]+", row.lower())
    print(", ".join(folders))
    print(f"  comment lines in 100 lines of code: {100 * commented / code:.1f}")
    for word in ("what", "returns"):
        share = 1e4 * words.count(word) / len(words)
        print(f'  "{word}" in 10,000 words of comments: {share:.1f}')


def main():
    arguments = [word for word in sys.argv[1:] if word != "--count"]
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parents[1]).resolve()
    if "--count" in sys.argv[1:]:
        count(root, ("include", "src", "kernels"))
        count(root, ("tests",))
        return 0
    found = list(check(root))
    print("\n".join(found) if found else "check_text: all holds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
