# SPDX-License-Identifier: Apache-2.0
"""Writes decks, for scripts that start the program."""

import json


def deck_text(values):
    """Returns the deck of dotted keys as TOML."""
    tables = {}
    for key, value in values.items():
        table, name = key.rsplit(".", 1)
        tables.setdefault(table, []).append(f"{name} = {json.dumps(value)}")
    return "\n\n".join(f"[{table}]\n" + "\n".join(lines) for table, lines in tables.items()) + "\n"
