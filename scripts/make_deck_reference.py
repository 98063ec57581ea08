#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of keys in docs/reference/deck.md: make_deck_reference.py TRIREME [--check]

TRIREME is the program; the tables come from its `check --keys --json`. A table of the page is the
text between the lines `<!-- keys: run -->` and `<!-- end of keys -->`, one for each table of the
deck. All other text of the page is written by hand and stays.

With --check the page is not written: the script exits with 1 if it differs.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "deck.md"
SECTION = re.compile(r"<!-- keys: (\S+) -->\n(.*?)<!-- end of keys -->\n", re.DOTALL)


def read_keys(program):
    """Returns the keys of the program as a list of objects."""
    result = subprocess.run(
        [program, "check", "--keys", "--json"], stdout=subprocess.PIPE, check=True
    )
    return json.loads(result.stdout.decode("utf-8"))


def cell(text):
    """Returns the text for a cell of a Markdown table."""
    return re.sub(r"([|<*])", r"\\\1", text) if text else "-"


def code(text):
    """Returns the text as code for a cell of a Markdown table."""
    return "`%s`" % text.replace("|", r"\|") if text else "-"


def table_of(keys):
    """Returns the Markdown table of these keys."""
    rows = [
        "| key | type and range | default | belongs to | restart | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for key in keys:
        values = [
            code(key["key"]),
            cell("; ".join(text for text in (key["type"], key["range"]) if text)),
            "required" if key["required"] else code(key["default"]),
            cell(key["owner"]),
            key["restart"],
            cell(key["meaning"]),
        ]
        rows.append("| %s |" % " | ".join(values))
    return "\n".join(rows) + "\n"


def fill(page, keys):
    """Returns the page with all its tables of keys renewed."""
    tables = {}
    for key in keys:
        tables.setdefault(key["table"], []).append(key)
    sections = [match.group(1) for match in SECTION.finditer(page)]
    if sorted(sections) != sorted(tables):
        wrong = sorted(set(sections) ^ set(tables)) or sections
        sys.exit(
            "%s: each table of the deck needs one line `<!-- keys: NAME -->` and one "
            "`<!-- end of keys -->`; look at: %s" % (PAGE, ", ".join(wrong))
        )
    return SECTION.sub(
        lambda match: "<!-- keys: %s -->\n\n%s\n<!-- end of keys -->\n"
        % (match.group(1), table_of(tables[match.group(1)])),
        page,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trireme", metavar="TRIREME", help="the program")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the page differs")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    filled = fill(page, read_keys(arguments.trireme))
    if not arguments.check:
        PAGE.write_text(filled, encoding="utf-8")
    elif page != filled:
        pairs = zip(page.splitlines(), filled.splitlines())
        line = next((i for i, (old, new) in enumerate(pairs, 1) if old != new), 0)
        sys.exit(
            "%s:%d: the tables of keys differ from the program; "
            "run scripts/make_deck_reference.py %s" % (PAGE, line, arguments.trireme)
        )


if __name__ == "__main__":
    main()
