#!/usr/bin/env python3
"""Checks how the project is written: widths, lengths, heads, sentences, links, old words.

Usage: check_text.py [--count] [ROOT]    exit 0: all holds; 1: each violation on a line of its own

  width      code, comments and documents have at most 100 columns; tables, code blocks and links in
             documents may be wider
  heads      a .cpp file of over 100 lines opens with a comment
  sentences  no sentence of a comment has over 40 words
  lengths    documents that readers go through from top to bottom stay within LENGTHS
  links      the links of the documents to files and headings resolve
  words      identifiers and messages that scripts/vocabulary.txt lists are not used again

With --count it prints the shares that the project watches instead: comment lines in 100 lines of
code, and the words "what" and "returns" in 10,000 words of comments, of include, src and kernels.
Python's standard library is enough.
"""

import pathlib
import re
import sys

from source_text import comments, cpp_tokens, sentences

WIDTH = 100
LONG_FILE = 100  # lines of a .cpp file that needs a head
MAX_WORDS = 40
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
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def code_files(root):
    """The sources, sorted: what is built, tested or typed."""
    found = [root / "CMakeLists.txt"]
    for folder in CODE_FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.suffix in CODE_FILES or path.name in ("CMakeLists.txt", "run"):
                found.append(path)
    return sorted(path for path in found if path.is_file())


def documents(root):
    return sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md"))


def check_width(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > WIDTH and "http" not in line:
            yield number, f"{len(line)} columns, at most {WIDTH}"


def check_length(name, text):
    lines, limit = text.count("\n"), LENGTHS.get(name)
    if limit and lines > limit:
        yield limit + 1, f"{lines} lines, at most {limit}: drop or move what few readers need"


def check_head(path, text):
    if path.suffix == ".cpp" and text.count("\n") > LONG_FILE and not text.startswith("//"):
        yield 1, f"over {LONG_FILE} lines without a comment at the top that says what the file does"


def check_sentences(path, text):
    for line, words in sentences(comments(path, text)):
        if len(words) > MAX_WORDS:
            begin = " ".join(words[:8])
            yield line, f"a sentence of {len(words)} words, at most {MAX_WORDS}: {begin} ..."


def read_vocabulary(root):
    """Returns the old names, members (class, name) and messages of scripts/vocabulary.txt."""
    names, members, messages = set(), set(), []
    for row in (root / "scripts/vocabulary.txt").read_text(encoding="utf-8").split("\n"):
        message = re.match(r'"(.*)"$', row)
        if message:
            messages.append(message[1])
        elif row and not row.startswith("#"):
            *owner, name = row.split()[0].split("::")
            if owner:
                members.add((owner[-1], name))
            else:
                names.add(name)
    return names, members, messages


def declared_class(tokens, at):
    """Returns the last name of the qualified one that begins at `at`: B of `A::B`."""
    text = " ".join(token for _, token, _ in tokens[at : at + 14])
    match = re.match(r"(?:class )?((?:\w+ : : )*)(\w+)", text)
    return match[2] if match else ""


def class_bodies(tokens):
    """Yields (class, [(name, line)]): the names in each class's own body, outside parentheses."""
    scopes, waiting, parentheses = [], None, 0  # of each open brace its class, or None
    for at, (kind, token, line) in enumerate(tokens):
        if token in ("class", "struct", "enum") and kind == "name":
            waiting = (declared_class(tokens, at + 1), [])
        elif token in "()":
            parentheses += 1 if token == "(" else -1
            waiting = None
        elif token == ";":
            waiting = None
        elif token == "{":
            scopes.append((waiting, parentheses))
            waiting, parentheses = None, 0
        elif token == "}" and scopes:
            done, parentheses = scopes.pop()
            if done:
                yield done
        elif kind == "name" and scopes and scopes[-1][0] and parentheses == 0:
            scopes[-1][0][1].append((token, line))


def check_words(path, text, vocabulary):
    names, members, messages = vocabulary
    tokens = [t for t in cpp_tokens(text) if t[0] not in ("space", "comment")]
    for at, (kind, token, line) in enumerate(tokens):
        if kind == "name" and token in names:
            yield line, f'the old name "{token}"'
        elif kind == "name" and at > 2 and tokens[at - 1][1] == ":" == tokens[at - 2][1]:
            if (tokens[at - 3][1], token) in members:
                yield line, f'the old member "{tokens[at - 3][1]}::{token}"'
        elif kind in ("string", "raw"):
            for message in messages:
                if message in token:
                    yield line, f'the old message "{message}"'
    for owner, inside in class_bodies(tokens):
        for name, line in inside:
            if (owner, name) in members:
                yield line, f'the old member "{owner}::{name}"'


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


def check_document(path, text, names):
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            is_table = line.lstrip().startswith("|")
            if len(LINK.sub("", line)) > WIDTH and not is_table and "http" not in line:
                yield number, f"{len(line)} columns, at most {WIDTH}"
            for span in re.findall(r"`([A-Za-z_:]+)(?:\(\))?`", line):
                if span.split("::")[-1] in names:
                    yield number, f'the old name "{span}"'
            for link in LINK.findall(line):
                if re.match(r"\w+:", link):
                    continue
                file, _, anchor = link.partition("#")
                target = (path.parent / file).resolve() if file else path
                if not target.exists():
                    yield number, f"the link {link} leads to no file"
                elif anchor and target.suffix == ".md":
                    if anchor not in heading_anchors(target.read_text(encoding="utf-8")):
                        yield number, f"the link {link} leads to no heading"


def check(root):
    vocabulary = read_vocabulary(root)
    for path in code_files(root):
        text = path.read_text(encoding="utf-8")
        found = [*check_width(path, text), *check_head(path, text), *check_sentences(path, text)]
        if path.suffix in (".cpp", ".hpp"):
            found += check_words(path, text, vocabulary)
        for line, problem in found:
            yield f"{path.relative_to(root)}:{line}: {problem}"
    for path in documents(root):
        name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        for line, problem in [
            *check_length(name, text),
            *check_document(path, text, vocabulary[0]),
        ]:
            yield f"{name}:{line}: {problem}"


def count(root):
    """Prints the shares of comments and of the watched words."""
    code = commented = 0
    words = []
    for path in code_files(root):
        if path.suffix not in (".cpp", ".hpp") or path.relative_to(root).parts[0] in (
            "tests",
            "scripts",
        ):
            continue
        text = path.read_text(encoding="utf-8")
        rows = [(line, row) for line, row in comments(path, text) if row.strip()]
        commented += len({line for line, _ in rows})
        code += sum(
            1 for line in text.split("\n") if line.strip() and not line.lstrip().startswith("//")
        )
        for _, row in rows:
            words += re.findall(r"[a-z]+", row.lower())
    print(f"comment lines in 100 lines of code: {100 * commented / code:.1f}")
    for word in ("what", "returns"):
        print(f'"{word}" in 10,000 words of comments: {1e4 * words.count(word) / len(words):.1f}')


def main():
    arguments = [word for word in sys.argv[1:] if word != "--count"]
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parents[1]).resolve()
    if "--count" in sys.argv[1:]:
        count(root)
        return 0
    found = list(check(root))
    print("\n".join(found) if found else "check_text: all holds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
