#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Trireme on the CPU of this machine with PyTorch, with itself, and with its predictions.

  training    rate, memory and losses of training: Trireme and PyTorch; with --deck, the
              validation loss that PyTorch reaches with the model and the data of a deck
                V/bin/python scripts/compare.py training --cells resnet18:float32:1x2
  generation  tokens per second of text generation: Trireme and PyTorch
                V/bin/python scripts/compare.py generation --rounds 3 --tokens 128
  loaders     images per second of a processor that are read: Trireme and PyTorch
                V/bin/python scripts/compare.py loaders --crop 160
  ranks       two ranks, one rank with two threads, and two unconnected processes
                scripts/compare.py ranks --cells gpt:all --pieces 3
  prediction  step times that `trireme plan` predicts, and measured ones
                scripts/compare.py prediction --only resnet18,gpt

V is a Python environment with PyTorch. A command that lacks a package says how to install it, and
exits with 2. Other programs must not run while a command measures. `compare.py COMMAND --help` has
the conditions and the options of a command.
"""

import argparse
import pathlib
import sys

from compare import generation, loaders, prediction, processes, ranks, training

PROGRAM = pathlib.Path(__file__).resolve().parent.parent / "build/release/bin/trireme"


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (training, generation, loaders, ranks, prediction):
        name = module.__name__.split(".")[-1]
        command = commands.add_parser(name, description=module.__doc__, formatter_class=raw)
        command.add_argument("--trireme", type=pathlib.Path, default=PROGRAM)
        command.add_argument("--rounds", type=int, default=module.ROUNDS)
        module.add_options(command)
        command.set_defaults(run=module.run, error=command.error)
    given = parser.parse_args()
    if given.rounds is not None and given.rounds < 1:
        given.error(f"--rounds {given.rounds}: at least 1")
    return given.run(given)


if __name__ == "__main__":
    sys.exit(processes.run_script(main))
