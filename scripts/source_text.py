# SPDX-License-Identifier: Apache-2.0
"""Reads the comments, code and strings of source files, for the scripts that check text.

C++ is split into tokens; of Python and shell the comments (and docstrings) are found.
"""

import io
import re
import tokenize

CPP_TOKEN = re.compile(
    r"""
     (?P<comment>//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/)
    |(?P<raw>(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)")
    |(?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
    |(?P<char>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
    |(?P<number>\.?[0-9](?:'[0-9a-zA-Z_]|[eEpP][+-]|[0-9a-zA-Z_.])*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<space>\s+|\\\n)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)


def cpp_tokens(text):
    """Yields (kind, text, line) of each token, comments and white space included."""
    line = 1
    for match in CPP_TOKEN.finditer(text):
        yield match.lastgroup, match[0], line
        line += match[0].count("\n")


def cpp_comments(text):
    """Yields (line, text) of each line of a comment, without its marker.

    An empty row stands before a comment that follows code on its line: it continues no sentence.
    """
    for kind, token, line in cpp_tokens(text):
        if kind == "comment":
            if token.startswith("///<"):
                yield line, ""
            for number, row in enumerate(token.split("\n")):
                yield line + number, re.sub(r"^\s*(///?<?|/\*+|\*/|\*)|\*/$", "", row)


def python_comments(text):
    """The same of Python, docstrings included."""
    previous = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield token.start[0], token.string[1:]
        elif token.type == tokenize.STRING and previous in (
            None,
            tokenize.INDENT,
            tokenize.NEWLINE,
        ):
            for number, row in enumerate(token.string.strip("\"'rf").split("\n")):
                yield token.start[0] + number, row
        if token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.DEDENT, tokenize.ENCODING):
            previous = token.type


def hash_comments(text):
    """The same of shell, TOML and CMake: a line's end behind # at its begin or behind a blank."""
    for number, row in enumerate(text.split("\n"), 1):
        match = re.match(
            r"""((?:[^#"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*'|(?<=\S)#)*)#(?!!)(.*)""", row
        )
        if match and (not match[1] or match[1][-1].isspace()):
            yield number, match[2]


def comments(path, text):
    """Returns [(line, text)] of the comments of a file of any known kind."""
    if path.suffix in (".cpp", ".hpp", ".c", ".cu"):
        return list(cpp_comments(text))
    if path.suffix == ".py":
        return list(python_comments(text))
    if path.suffix in (".sh", ".toml", ".cmake") or path.name in ("CMakeLists.txt", "run"):
        return list(hash_comments(text))
    return []


# A row of a table, a timeline, a list of commands or a formula is no part of a sentence.
DRAWN = re.compile(r"^\s{3,}\S|^\s*([-*|+<>=]|\d+\.|@\w+)|  +\S+.*  +|[|─│]|->\s|^\s*\S+\(.*\)\s*$")
ABBREVIATIONS = {"e.g.", "i.e.", "vs.", "cf.", "approx.", "et", "al."}


def sentences(rows):
    """Yields (line, words) of each sentence in comment rows [(line, text)]."""
    begin, words, previous = None, [], None
    for line, row in rows + [(-1, "")]:
        ends = previous is None or line != previous + 1 or not row.strip() or DRAWN.search(row)
        if ends and words:
            yield begin, words
            words = []
        previous = line
        if not row.strip():
            continue
        for word in row.split():
            if not words:
                begin = line
            words.append(word)
            if re.search(r"[.!?][)\"'`]*$", word) and word not in ABBREVIATIONS:
                yield begin, words
                words = []
