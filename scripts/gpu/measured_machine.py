# SPDX-License-Identifier: Apache-2.0
"""Sections `ceilings` and `kernels`: the limits of the GPU, and a machine file of them.

The file machine.toml has the form of machines/*.toml (docs/reference/machine_files.md), so
`trireme plan --machine machine.toml` predicts with the figures of this very machine.
"""

import collections
import os
import re
import statistics
import time

import results
import runs

HERE = os.path.dirname(os.path.abspath(__file__))
# run: (sizes, ops) of `trireme bench ops`. The sizes are those of ResNet-50 with 256 images and of
# GPT-2 with 32 contexts of 1,024 tokens. The rows of a CPU are CPU_PART times fewer.
CPU_PART = 64
OPS = {
    "layers": (
        ("32768x768", "32768x1600", "32768x3072"),
        ("add", "dropout_add", "gelu_forward", "gelu_backward", "swiglu_forward")
        + ("swiglu_backward", "rotary", "column_sums", "embedding_backward")
        + ("row_norm_forward", "row_norm_backward"),
    ),
    "losses": (("4096x50304",), ("softmax_statistics", "softmax_gradient")),
    "images": (
        ("3211264x64", "802816x256", "200704x512", "12544x2048"),
        ("batch_norm_statistics", "batch_norm_apply", "batch_norm_backward", "relu_forward")
        + ("max_pool_forward", "max_pool_backward", "prepare_images"),
    ),
    "updates": (
        ("161792x768",),
        ("copy", "update_sgd", "update_lars", "update_adamw", "lamb_direction")
        + ("row_square_sums",),
    ),
}


def ceilings(section):
    """Measures the limits of this GPU with PyTorch."""
    try:
        section.call("ceilings", [section.python, os.path.join(HERE, "ceilings.py")])
    finally:  # it prints what it has so far
        with open(section.log_of("ceilings"), errors="replace") as file:
            section.result["measured"] = found = (runs.json_lines(file.read()) or [{}])[-1]
    section.result["summary"] = "%.0f TFLOP/s, copy %.0f GB/s" % (
        found["matmul_bfloat16_tflops"],
        found["copy_gb_per_s"],
    )
    write(section.results, found, None)


def kernels(section):
    """Measures the bandwidth of the memory-bound ops relative to a copy by this program."""
    section.result["ops"] = ops = []
    for name, (sizes, words) in OPS.items():
        section.attempt(name, lambda: ops.extend(measure(section, name, sizes, words)))
    if not ops:
        return
    copy = max(op["gb_per_s"] / op["of_copy"] for op in ops)
    slowest = min(ops, key=lambda op: op["of_copy"])
    below = sum(op["of_copy"] < 0.85 for op in ops)
    section.result["summary"] = "copy %.0f GB/s; %d of %d below 0.85 of it, least %.2f: %s" % (
        copy,
        below,
        len(ops),
        slowest["of_copy"],
        title(slowest),
    )
    measured = section.results.of("ceilings")
    if measured and measured["passed"]:
        write(section.results, measured["measured"], ops)


def title(op):
    """Returns the name of a measured op with its size."""
    return "%(op)s %(rows)dx%(columns)d" % op


def bench_ops(section, sizes, words, *more):
    """Returns the command that measures ops of these sizes."""
    command = [section.trireme, "bench", "ops", "--device", section.device, "--type", "bfloat16"]
    return [*command, "--sizes", *sizes, "--op", *words, *more]


def measure(section, name, sizes, words):
    if section.device == "cpu":
        shapes = [[int(extent) for extent in size.split("x")] for size in sizes]
        sizes = ["%dx%d" % (rows // CPU_PART, columns) for rows, columns in shapes]
    output = section.call(name, bench_ops(section, sizes, words, "--json"))
    ops = runs.json_lines(output)
    if not ops:
        raise runs.Failed("no op was measured:\n" + output[-2000:])
    return ops


def write(all_results, measured, ops):
    text = machine_file(measured, ops, time.strftime("%Y-%m-%d", time.gmtime()))
    results.replace(all_results.path("machine.toml"), text)


def machine_file(measured, ops, date):
    """Returns the text of a machine file. `measured`: of ceilings.py. `ops`: of `trireme
    bench ops`, or None."""
    with_torch = "scripts/gpu_session.sh, section ceilings: PyTorch %s, CUDA %s, on one %s" % (
        measured["torch"],
        measured["cuda"],
        measured["device"],
    )
    name = re.sub(r"[^a-z0-9]+", "-", measured["device"].lower()).strip("-")
    lines = ["[machine]", 'name = "%s"' % name]
    lines += ['description = "one %s, as measured"' % measured["device"], "tested = false"]

    def table(path, source=with_torch, **values):
        lines.extend(["", "[%s]" % path, 'source = "%s"' % source, 'date = "%s"' % date])
        for key, value in values.items():
            if isinstance(value, float):
                value = "%.4g" % value
                value += "" if re.search(r"[.e]", value) else ".0"
            elif isinstance(value, list):
                value = "[%s]" % ", ".join(
                    str(x) if isinstance(x, int) else "%.4g" % x for x in value
                )
            elif isinstance(value, str):
                value = '"%s"' % value
            lines.append("%s = %s" % (key, value))

    peak = measured["matmul_bfloat16_tflops"]
    more = {"l2_bytes": measured["l2_bytes"]} if measured["l2_bytes"] else {}
    table("device", kind="gpu", units=measured["multiprocessors"], **more)
    types = ("float32", "tfloat32", "bfloat16", "float16")
    table("peak", **{kind: measured["matmul_%s_tflops" % kind] * 1e12 for kind in types})
    table("memory", bytes=measured["memory_bytes"], bytes_per_s=measured["copy_gb_per_s"] * 1e9)
    table("overhead", launch_seconds=measured["launch_seconds"])
    table(
        "node",
        devices=1,
        cores=measured["cores"],
        memory_bytes=measured["host_bytes"],
        host_copy_bytes_per_s=measured["upload_gb_per_s"] * 1e9,
    )
    # Parts of the peak, which is itself the rate of a large product.
    grid = [rate / peak for rate in measured["grid_tflops"]]
    heads = dict(measured["attention"], n=[1])
    for number, which in enumerate(("forward", "backward")):
        table(
            "efficiency.all.product_" + which, **measured["grid"], compute_grid=grid, bandwidth=1.0
        )
        rate = statistics.median(pair[number] for pair in measured["convolution_tflops"])
        table("efficiency.all.convolution_" + which, compute=rate / peak, bandwidth=1.0)
        parts = [pair[number] / peak for pair in measured["attention_tflops"]]
        table("efficiency.all.attention_" + which, **heads, compute_grid=parts, bandwidth=1.0)
    rates = collections.defaultdict(list)  # by op
    for op in ops or []:
        rates[op["op"]].append(op["gb_per_s"] / measured["copy_gb_per_s"])
    source = "scripts/gpu_session.sh, section kernels: median of %d"
    every = [rate for some in rates.values() for rate in some]
    table(
        "efficiency.all.memory_bound",
        source % len(every) + " ops" if every else with_torch + ": as a copy",
        bandwidth=statistics.median(every) if every else 1.0,
    )
    for name, some in rates.items():
        path = "efficiency.all." + name
        table(path, source % len(some) + " sizes", bandwidth=statistics.median(some))
    return "\n".join(lines) + "\n"
