#!/usr/bin/env python3
"""Measures the limits of this GPU with PyTorch and prints one JSON object.

TFLOP/s of a large bfloat16 matrix product, GB/s of copies in its memory and from the host.
"""

import json
import statistics

import torch


def seconds(work, repeats=20):
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


def main():
    size = 8192
    # Zeros would be faster than real data.
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    matmul = 2 * size**3 / seconds(lambda: torch.matmul(a, b, out=out)) / 1e12
    source = torch.randn(1 << 30, device="cuda")  # 4 GiB, far larger than the caches
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / seconds(lambda: target.copy_(source)) / 1e9  # read and written
    host = torch.empty(1 << 28, dtype=torch.uint8).pin_memory()
    upload = (
        host.nbytes
        / seconds(lambda: target.view(torch.uint8)[: host.numel()].copy_(host, non_blocking=True))
        / 1e9
    )
    print(
        json.dumps(
            {
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "matmul_bfloat16_tflops": matmul,
                "copy_gb_per_s": copy,
                "upload_gb_per_s": upload,
            }
        )
    )


if __name__ == "__main__":
    main()
