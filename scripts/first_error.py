#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""first_error.py LOG...: prints the first error in the output of a build, with the lines around it.

The end of such an output is no help: after the error it has warnings, of the same and other files.
Knows the messages of compilers, linkers, CMake and pip. An output without any of them is shown from
its first failed step (of Ninja), or by its last lines.
"""

import pathlib
import re
import sys

BEFORE, AFTER, LAST = 6, 12, 20  # lines before and after the error; lines if there is no error
COLUMNS = 400  # of a line: commands and names of templates are longer

ERROR = re.compile(
    r"\b(error|Error|ERROR) ?:"  # compilers, collect2, ninja, pip
    r"|^CMake Error"
    r"|undefined reference|multiple definition|\bld(\.\w+)?: cannot find"
)
STEP = re.compile(r"\[\d+/\d+\] ")  # Ninja's line of a step
FAILED = "FAILED: "  # Ninja's line of a failed step; the next line is its command


def first_error(lines):
    """Returns the lines to show: the failed step if Ninja names it, then the error."""
    at = next((i for i, line in enumerate(lines) if ERROR.search(line)), None)
    if at is None:
        at = next((i for i, line in enumerate(lines) if line.startswith(FAILED)), None)
        return lines[-LAST:] if at is None else until_next_step(lines, at)
    begin = at
    while begin > 0 and not STEP.match(lines[begin - 1]) and not lines[begin].startswith(FAILED):
        begin -= 1
    if not lines[begin].startswith(FAILED):
        return lines[max(begin, at - BEFORE) : at] + until_next_step(lines, at)
    command = begin + 1
    before = lines[max(command + 1, at - BEFORE) : at]
    return [lines[begin]] + before + until_next_step(lines, at)


def until_next_step(lines, begin):
    """Returns the lines from `begin` on that belong to the same step, at most AFTER more."""
    end = begin + 1
    while end < min(len(lines), begin + 1 + AFTER) and not (
        STEP.match(lines[end]) or lines[end].startswith((FAILED, "ninja: "))
    ):
        end += 1
    return lines[begin:end]


if __name__ == "__main__":
    for path in sys.argv[1:]:
        text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
        for line in first_error(text.splitlines()):
            print(line if len(line) <= COLUMNS else line[:COLUMNS] + " ...")
