#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the limits of this GPU with PyTorch and prints them as a JSON object.

A line with everything known so far follows each group of measurements.

TFLOP/s of matrix products, convolutions and attention, GB/s of copies in its memory and from the
host, and the gap between kernels of a CUDA graph. measured_machine.py makes a machine file of it.
"""

import json
import os
import statistics

import torch
from torch.nn import functional

# bfloat16 products [m, k] x [k, n], the axes of a grid: rows of a batch, widths of GPT-2.
GRID = {"m": [1024, 8192, 32768], "n": [768, 3072], "k": [768, 3072]}
CONTEXTS, HEAD_WIDTHS = [512, 1024, 2048, 4096], [64, 128]
# Convolutions of ResNet-50 at a batch of 128: channels in and out, size, kernel.
CONVOLUTIONS = [(64, 64, 56, 3), (128, 128, 28, 3), (256, 256, 14, 3), (256, 64, 56, 1)]


def seconds(work, repeats=10):
    """Returns the median of single timings by events, after three runs to warm up."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def random(*shape, kind=torch.bfloat16):
    """Returns random numbers: with zeros, products would be faster than with real data."""
    return torch.randn(*shape, device="cuda").to(kind)


def product(m, n, k, kind, tf32=False):
    """Returns the FLOP/s of a matrix product."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    a, b = random(m, k, kind=kind), random(k, n, kind=kind)
    out = torch.empty(m, n, device="cuda", dtype=kind)
    return 2 * m * n * k / seconds(lambda: torch.matmul(a, b, out=out))


def both_passes(forward, leaves, flops, backward_flops):
    """Returns the FLOP/s of forward, and of backward: the time of both less that of forward."""
    alone = seconds(forward)
    out = forward()
    gradient = torch.randn_like(out)
    backward = seconds(lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True))
    return flops / alone, backward_flops / backward


def convolution(channels, filters, size, kernel, batch=128):
    x = random(batch, channels, size, size).contiguous(memory_format=torch.channels_last)
    w = random(filters, channels, kernel, kernel).contiguous(memory_format=torch.channels_last)
    x.requires_grad_(), w.requires_grad_()
    flops = 2 * batch * size**2 * channels * filters * kernel**2
    forward = lambda: functional.conv2d(x, w, padding=kernel // 2)  # noqa: E731
    return both_passes(forward, [x, w], flops, 2 * flops)


def attention(context, width, tokens=16384, heads=16):
    batch = tokens // context
    q, k, v = (random(batch, heads, context, width).requires_grad_() for _ in range(3))
    flops = 2 * batch * heads * width * context * (context + 1)
    forward = lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    return both_passes(forward, [q, k, v], flops, 2.5 * flops)


def launch_gap(kernels=1000):
    """Returns the seconds of a kernel with next to no work in a CUDA graph."""
    x = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    x.add_(1)
    with torch.cuda.graph(graph):
        for _ in range(kernels):
            x.add_(1)
    return seconds(graph.replay) / kernels


def main():
    torch.backends.cudnn.benchmark = True
    properties = torch.cuda.get_device_properties(0)
    source = torch.randn(1 << 30, device="cuda")  # 4 GiB, far larger than the caches
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / seconds(lambda: target.copy_(source))  # read and written
    host = torch.empty(1 << 28, dtype=torch.uint8).pin_memory()
    on_device = target.view(torch.uint8)[: host.numel()]
    upload = host.nbytes / seconds(lambda: on_device.copy_(host, non_blocking=True))
    del source, target, on_device
    size, bfloat16 = 8192, torch.bfloat16
    found = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", 0),
        "cores": os.cpu_count(),
        "host_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "copy_gb_per_s": copy / 1e9,
        "upload_gb_per_s": upload / 1e9,
    }

    def add(**more):
        found.update(more)
        print(json.dumps(found), flush=True)

    add(
        matmul_bfloat16_tflops=product(size, size, size, bfloat16) / 1e12,
        matmul_float16_tflops=product(size, size, size, torch.float16) / 1e12,
        matmul_tfloat32_tflops=product(size, size, size, torch.float32, tf32=True) / 1e12,
        matmul_float32_tflops=product(4096, 4096, 4096, torch.float32) / 1e12,
        launch_seconds=launch_gap(),
    )
    grid = [(m, n, k) for m in GRID["m"] for n in GRID["n"] for k in GRID["k"]]
    add(grid=GRID, grid_tflops=[product(*shape, bfloat16) / 1e12 for shape in grid])
    heads = [(context, width) for context in CONTEXTS for width in HEAD_WIDTHS]
    add(
        attention={"m": CONTEXTS, "k": HEAD_WIDTHS},
        attention_tflops=[[x / 1e12 for x in attention(*head)] for head in heads],
    )
    add(convolution_tflops=[[x / 1e12 for x in convolution(*case)] for case in CONVOLUTIONS])


if __name__ == "__main__":
    main()
