# SPDX-License-Identifier: Apache-2.0
"""Compares greedy text generation of Trireme and PyTorch on the CPU, in tokens per second.

  V/bin/python scripts/compare.py generation [--threads 2 --rounds 5 --prompt 32 --tokens 256]

Both continue the same prompt with the same random weights, in alternating rounds. The default model
is GPT-2 124M.

- PyTorch: the network of torch_gpt.py with a preallocated cache of keys and values. The prompt is
one forward pass, then each token is one, under torch.inference_mode().
- Trireme: `trireme generate --temperature 0 --tokenizer bytes`; its rate is in its log.
- Both draw among the first 256 classes, the tokens of the tokenizer, and must agree in all tokens;
else the exit status is 1. It is 2 if the command cannot measure.
- A rate counts the tokens behind the first: the prompt's pass is not in it, nor is loading.
"""

import pathlib
import re
import statistics
import tempfile

from compare.models import Tokens, deck_of, draw_network, write_weights
from compare.processes import Broken, call, find_program, require

ROUNDS = 5
DRAWN = 256  # classes of the tokenizer "bytes"
SIZES = {"layers": 12, "heads": 12, "width": 768, "context": 1024, "vocabulary": 50257}


def add_options(parser):
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=256, help="tokens to generate")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    for name, value in SIZES.items():
        parser.add_argument("--" + name, type=int, default=value)


def check(given):
    """Ends the script with a message if an option is wrong."""
    for name in ("threads", "prompt", "tokens", *SIZES):
        if getattr(given, name) < 1:
            given.error(f"--{name} {getattr(given, name)}: at least 1")
    if given.tokens < 2:
        given.error("--tokens 1: at least 2, since the first one is not in the rate")
    if given.prompt + given.tokens > given.context:
        given.error(f"--prompt and --tokens: together at most --context {given.context}")
    if given.vocabulary < DRAWN:
        given.error(f"--vocabulary {given.vocabulary}: at least {DRAWN}, one for each byte")
    if given.width % given.heads:
        given.error(f"--width {given.width}: not divisible by --heads {given.heads}")
    find_program(given)


def import_weights(given, model, network, folder):
    """Returns a checkpoint of the network."""
    weights, deck, checkpoint = (folder / name for name in ("0.safetensors", "deck.toml", "0.h5"))
    write_weights(network, weights)
    values = {"run.name": "generation", "run.stop": "1 steps", "data.train": "none"}
    values |= {"batch.global": 1, "batch.micro": 1, "precision.compute": given.precision}
    deck.write_text(deck_of(model, values))
    call([given.trireme, "import", weights, deck, "--out", checkpoint], given.threads)
    return checkpoint


def generate(given, checkpoint, prompt):
    """Returns Trireme's tokens, and the tokens per second behind the first one."""
    words = [given.trireme, "generate", checkpoint, "--prompt", bytes(prompt).decode()]
    words += ["--tokens", given.tokens, "--temperature", 0, "--tokenizer", "bytes"]
    text, log = call(words, given.threads)
    rate = re.search(r"([0-9.]+) tokens/s", log.decode())
    if not rate:
        raise Broken("the log of trireme generate has no rate")
    return list(text[len(prompt) : -1]), float(rate.group(1))


def run(given):
    """Prints the rates. Returns 0 if all tokens agree."""
    check(given)
    require("torch", "numpy")
    import torch

    from compare.torch_gpt import CachedGpt2

    torch.set_num_threads(given.threads)
    sizes = (getattr(given, name) for name in SIZES)
    model = Tokens("generation", "", *sizes, batch=1, piece=1, pieces=1)
    network = draw_network(model)
    prompt = [ord("a") + i % 26 for i in range(given.prompt)]
    rates, agree = {"PyTorch": [], "Trireme": []}, True
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = import_weights(given, model, network, pathlib.Path(folder))
        if given.precision == "bfloat16":
            network = network.bfloat16()
        cached = CachedGpt2(network.eval(), given.heads, given.context, DRAWN)
        for _ in range(2):
            cached.generate(prompt, 8)
        for number in range(1, given.rounds + 1):
            expected, theirs = cached.generate(prompt, given.tokens)
            found, ours = generate(given, checkpoint, prompt)
            rates["PyTorch"].append(theirs)
            rates["Trireme"].append(ours)
            equal = sum(a == b for a, b in zip(found, expected))
            agree = agree and found == expected
            print(
                f"round {number}: PyTorch {theirs:.2f}, Trireme {ours:.2f} tokens/s; "
                f"{equal} of {len(expected)} tokens are equal"
            )
    for name, values in rates.items():
        print(
            f"{name}: median {statistics.median(values):.2f} tokens/s "
            f"({min(values):.2f} .. {max(values):.2f})"
        )
    return 0 if agree else 1
