#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how fast PyTorch trains the networks of the acceptance: one form, one JSON object.

  torch_rate.py resnet50|gpt2 FORM [--batch N --channels 3 --classes 1000 --vocabulary 50304
      --device cuda --settle 4 --timed 8]

Everything in bfloat16 by autocast, weights and optimizer in float32, the batch on the device,
gradients set to none, optimizers fused. Forms:

  resnet50  eager, compile, max-autotune
            (channels last, SGD with momentum)
  gpt2      eager, compile, "compile cudnn", max-autotune
            (network and loss compiled together, AdamW; attention: PyTorch's choice, which is flash
            attention, or cuDNN's)

Steps are timed in pieces of 10. The rate is the median over the pieces of at least --timed seconds,
after --settle seconds in which the clocks of the GPU settle. Compilation precedes both.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

PIECE = 10  # steps
SETTLE_SECONDS, TIMED_SECONDS = 4, 8
FORMS = {
    "resnet50": ["eager", "compile", "max-autotune"],
    "gpt2": ["eager", "compile", "compile cudnn", "max-autotune"],
}


def resnet50(torch, settings):
    from compare.torch_resnet import ResNet

    network = ResNet(50, 64, "imagenet", settings.channels, settings.classes).to(
        settings.device, memory_format=torch.channels_last
    )
    x = torch.rand(settings.batch, settings.channels, 224, 224, device=settings.device).contiguous(
        memory_format=torch.channels_last
    )
    y = torch.randint(0, settings.classes, (settings.batch,), device=settings.device)
    return (
        network,
        x,
        y,
        torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4, fused=True),
    )


def gpt2(torch, settings):
    from compare.torch_gpt import Gpt2

    layers, heads, width = settings.size
    network = Gpt2(layers, heads, width, settings.context, settings.vocabulary).to(settings.device)
    tokens = torch.randint(
        0, settings.vocabulary, (settings.batch, settings.context + 1), device=settings.device
    )
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    return network, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), optimizer


def measure(torch, settings):
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    network, x, y, optimizer = {"resnet50": resnet50, "gpt2": gpt2}[settings.model](torch, settings)

    def loss_of(x, y):
        return torch.nn.functional.cross_entropy(network(x).float().flatten(0, -2), y.flatten())

    forward = loss_of
    if "compile" in settings.form:
        forward = torch.compile(loss_of)
    elif "max-autotune" in settings.form:
        forward = torch.compile(loss_of, mode="max-autotune")
    attention = contextlib.nullcontext()
    if "cudnn" in settings.form:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        attention = sdpa_kernel([SDPBackend.CUDNN_ATTENTION])

    def wait():
        if settings.device == "cuda":
            torch.cuda.synchronize()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(settings.device, dtype=torch.bfloat16):
            loss = forward(x, y)
        loss.backward()
        optimizer.step()
        return loss

    def seconds_of_piece():
        wait()
        start = time.perf_counter()
        for _ in range(PIECE):
            loss = step()
        wait()
        return time.perf_counter() - start, loss

    seconds = []
    with attention:
        start = time.perf_counter()
        step()
        wait()
        first = time.perf_counter() - start
        settle = time.perf_counter() + settings.settle
        while time.perf_counter() < settle:
            seconds_of_piece()
        while sum(seconds) < settings.timed:
            taken, loss = seconds_of_piece()
            seconds.append(taken)
    memory = torch.cuda.max_memory_allocated() if settings.device == "cuda" else 0
    timed = [PIECE * settings.batch / taken for taken in seconds]
    return {
        "model": settings.model,
        "form": settings.form,
        "batch": settings.batch,
        "samples_per_s": statistics.median(timed),
        "least": min(timed),
        "most": max(timed),
        "timed_seconds": sum(seconds),
        "first_step_s": first,
        "memory_bytes": memory,
        "loss": loss.item(),
        "torch": torch.__version__,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=list(FORMS))
    parser.add_argument("form")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument(
        "--size", type=int, nargs=3, default=[12, 12, 768], metavar=("LAYERS", "HEADS", "WIDTH")
    )
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS, help="seconds")
    parser.add_argument("--timed", type=float, default=TIMED_SECONDS, help="seconds")
    parser.add_argument("--device", default="cuda")
    settings = parser.parse_args()
    if settings.form not in FORMS[settings.model]:
        parser.error("%s has the forms %s" % (settings.model, ", ".join(FORMS[settings.model])))
    import torch

    print(json.dumps(measure(torch, settings)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
