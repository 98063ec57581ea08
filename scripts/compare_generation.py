#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares greedy text generation of Trireme and PyTorch on the CPU, in tokens per second.

Both continue the same prompt with the same random weights, in alternating rounds:

  V/bin/python scripts/compare_generation.py [--threads 2 --rounds 5 --prompt 32 --tokens 256]

The default model is GPT-2 124M. The Python that runs the script needs PyTorch:

  python3 -m venv V && V/bin/pip install torch numpy

- PyTorch: the network of torch_gpt.py with a preallocated cache of keys and values. The prompt is
one forward pass, then each token is one, under torch.inference_mode().
- Trireme: `trireme generate --temperature 0 --tokenizer bytes`; its rate is in its log.
- Both draw among the first 256 classes, the tokens of the tokenizer, and must agree in all tokens;
else the exit status is 1. It is 2 if the script cannot measure.
- A rate counts the tokens behind the first: the prompt's pass is not in it, nor is loading.
"""

import argparse
import math
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

try:
    import torch
    from torch.nn import functional
except ImportError:
    torch = None

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import training_bench  # noqa: E402
from safetensors_file import tensors_of, write_safetensors  # noqa: E402

DRAWN = 256  # classes of the tokenizer "bytes"
INSTALL = "python3 -m venv V && V/bin/pip install torch numpy, then V/bin/python " + sys.argv[0]


class CachedGpt2:
    """Greedy generation by a torch_gpt.Gpt2 with cached keys and values."""

    def __init__(self, model, heads, context):
        self.model, self.heads = model, heads
        width = model.wte.weight.shape[1]
        shape = (2, 1, heads, context, width // heads)
        self.cache = [torch.zeros(shape, dtype=model.wte.weight.dtype) for _ in model.h]

    def attend(self, attention, x, first, cache):
        end = first + x.shape[1]
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in attention.c_attn(x).chunk(3, dim=-1)
        )
        cache[0, :, :, first:end], cache[1, :, :, first:end] = k, v
        out = functional.scaled_dot_product_attention(
            q, cache[0, :, :, :end], cache[1, :, :, :end], is_causal=first == 0
        )
        return attention.c_proj(out.transpose(1, 2).flatten(2))

    def next_token(self, tokens, first):
        model = self.model
        x = functional.embedding(tokens, model.wte.weight)
        x = x + model.wpe.weight[first : first + tokens.shape[1]]
        for block, cache in zip(model.h, self.cache):
            x = x + self.attend(block.attn, block.ln_1(x), first, cache)
            x = x + block.mlp(block.ln_2(x))
        logits = functional.linear(model.ln_f(x[:, -1]), model.wte.weight)
        return logits[0, :DRAWN].argmax().item()

    def generate(self, prompt, count):
        """Returns the tokens, and the tokens per second behind the first one."""
        with torch.inference_mode():
            made = [self.next_token(torch.tensor([prompt]), 0)]
            begin = time.perf_counter()
            while len(made) < count:
                first = len(prompt) + len(made) - 1
                made.append(self.next_token(torch.tensor([made[-1:]]), first))
        return made, (count - 1) / (time.perf_counter() - begin)


def run_trireme(settings, *words):
    """Returns standard output and standard error of the program, as bytes. Raises Broken."""
    return training_bench.call([settings.trireme, *words], settings.threads, math.inf)


def trireme_checkpoint(settings, model, folder):
    """Imports the weights and returns the checkpoint."""
    write_safetensors(f"{folder}/model.safetensors", tensors_of(model))
    with open(f"{folder}/deck.toml", "w") as file:
        file.write(f"""[run]
name = "generation"
stop = "1 steps"
[data]
train = "{folder}/none"
[model]
kind = "gpt"
layers = {settings.layers}
heads = {settings.heads}
width = {settings.width}
context = {settings.context}
vocabulary = {settings.vocabulary}
[batch]
global = 1
micro = 1
[optimizer]
kind = "adamw"
[schedule]
rate = 1e-3
[precision]
compute = "{settings.precision}"
""")
    checkpoint = f"{folder}/model.h5"
    words = (f"{folder}/model.safetensors", f"{folder}/deck.toml", "--out", checkpoint)
    run_trireme(settings, "import", *words)
    return checkpoint


def trireme_generate(settings, checkpoint, prompt):
    """Returns the tokens, and the tokens per second behind the first one."""
    words = ["generate", checkpoint, "--prompt", bytes(prompt).decode()]
    words += ["--tokens", str(settings.tokens), "--temperature", "0", "--tokenizer", "bytes"]
    text, log = run_trireme(settings, *words)
    rate = re.search(r"([0-9.]+) tokens/s", log.decode())
    if not rate:
        raise training_bench.Broken("the log of trireme generate has no rate")
    return list(text[len(prompt) : -1]), float(rate.group(1))


def read_options():
    """Returns the options. Ends the script with a message if one is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trireme", type=pathlib.Path, default="build/release/bin/trireme")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=256, help="tokens to generate")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    for name, value in {
        "layers": 12,
        "heads": 12,
        "width": 768,
        "context": 1024,
        "vocabulary": 50257,
    }.items():
        parser.add_argument("--" + name, type=int, default=value)
    settings = parser.parse_args()
    for name in ("threads", "rounds", "prompt", "tokens", "layers", "heads", "width", "context"):
        if getattr(settings, name) < 1:
            parser.error(f"--{name} {getattr(settings, name)}: at least 1")
    if settings.tokens < 2:
        parser.error("--tokens 1: at least 2, since the first one is not in the rate")
    if settings.prompt + settings.tokens > settings.context:
        parser.error(f"--prompt and --tokens: together at most --context {settings.context}")
    if settings.vocabulary < DRAWN:
        parser.error(f"--vocabulary {settings.vocabulary}: at least {DRAWN}, one for each byte")
    if settings.width % settings.heads:
        parser.error(f"--width {settings.width}: not divisible by --heads {settings.heads}")
    settings.trireme = settings.trireme.resolve()
    training_bench.check_program(parser, settings.trireme)
    return settings


def compare(settings):
    """Prints the rates. Returns whether all tokens agree. Raises Broken."""
    import torch_gpt

    torch.set_num_threads(settings.threads)
    torch.manual_seed(1)
    model = torch_gpt.Gpt2(
        settings.layers, settings.heads, settings.width, settings.context, settings.vocabulary
    )
    prompt = [ord("a") + i % 26 for i in range(settings.prompt)]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = trireme_checkpoint(settings, model, folder)
        if settings.precision == "bfloat16":
            model = model.bfloat16()
        network = CachedGpt2(model.eval(), settings.heads, settings.context)
        network.generate(prompt, 8)
        network.generate(prompt, 8)
        rates, agrees = {"PyTorch": [], "Trireme": []}, True
        for round_number in range(settings.rounds):
            expected, rate = network.generate(prompt, settings.tokens)
            rates["PyTorch"].append(rate)
            found, rate = trireme_generate(settings, checkpoint, prompt)
            rates["Trireme"].append(rate)
            equal = sum(a == b for a, b in zip(found, expected))
            agrees = agrees and found == expected
            print(
                f"round {round_number + 1}: PyTorch {rates['PyTorch'][-1]:.2f}, "
                f"Trireme {rate:.2f} tokens/s; {equal} of {len(expected)} tokens are equal"
            )
    for name, all_rates in rates.items():
        print(
            f"{name}: median {statistics.median(all_rates):.2f} tokens/s "
            f"({min(all_rates):.2f} .. {max(all_rates):.2f})"
        )
    return agrees


def main():
    settings = read_options()
    if torch is None:
        print(f"skipped: this Python has no PyTorch; {INSTALL}")
        return 0
    try:
        return 0 if compare(settings) else 1
    except training_bench.Broken as error:
        print(f"compare_generation: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(training_bench.run_script(main, advice=""))
