# SPDX-License-Identifier: Apache-2.0
"""Section `profile`: which kernels a training step spends its time in, and what limits them (ncu).

  1. The kernels of the first steps of each network with their times: NETWORK-kernels.csv.
  2. The slowest of them once more with ncu's sections of use, stalls and memory: logs/.
  3. The ops of section `kernels` that are furthest below a copy, in the same way: logs/.

Clocks stay as they are (--clock-control none), so times are those of training.
"""

import collections
import csv
import os
import re

import measured_machine
import networks
import results
import runs

MAX_KERNELS = 800  # of a network: about its first step
KERNELS_SECONDS, SLOWEST_SECONDS = 70, 40
SLOWEST_KERNELS, SLOWEST_OPS = 4, 4
NCU = ["ncu", "--target-processes", "all", "--clock-control", "none"]
DETAILS = []
for detail in (
    "SpeedOfLight",
    "MemoryWorkloadAnalysis",
    "WarpStateStats",
    "Occupancy",
    "LaunchStats",
):
    DETAILS += ["--section", detail]
STEPS = 2
UNITS = {"second": 1, "s": 1, "msecond": 1e-3, "ms": 1e-3, "usecond": 1e-6, "us": 1e-6}
UNITS.update({"nsecond": 1e-9, "ns": 1e-9})


def kernel_times(text):
    """Returns [kernel, launches, seconds], the slowest first, of ncu's CSV output."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise runs.Failed("ncu measured no kernel:\n" + text[-2000:])
    found = collections.OrderedDict()
    for row in csv.DictReader(lines[begin:]):
        if row.get("Metric Name") == "gpu__time_duration.sum":
            entry = found.setdefault(row["Kernel Name"], [0, 0.0])
            entry[0] += 1
            value = float(row["Metric Value"].replace(",", ""))
            entry[1] += value * UNITS[row["Metric Unit"]]
    return sorted(([name, *entry] for name, entry in found.items()), key=lambda row: -row[2])


def exact(names):
    """Returns ncu's filter for kernels with these mangled names."""
    return "regex:^(%s)$" % "|".join(map(re.escape, names))


def profile_network(section, model):
    deck = networks.deck_of(section, model, STEPS, 1)
    path = os.path.join(section.folder, model + ".toml")

    def train(name, options, seconds):
        run = section.run_folder(name)
        with open(path, "w") as file:
            file.write(
                '[run]\nname = "%s"\nfolder = "%s"\ndevice = "cuda"\n%s' % (model, run, deck)
            )
        # Kernels of graphs are profiled as single launches.
        words = ["train", path, "--restart", "none", "--set", "run.graphs=false"]
        return section.call(name, [*NCU, *options, section.trireme, *words], seconds=seconds)

    output = train(
        model + " kernels",
        ["--metrics", "gpu__time_duration.sum", "--csv", "--print-kernel-base", "mangled"]
        + ["--launch-count", MAX_KERNELS],
        KERNELS_SECONDS,
    )
    times = kernel_times(output)
    table = "".join("%s,%d,%.9f\n" % tuple(row) for row in times)
    results.replace(
        section.results.path("%s-kernels.csv" % model), "kernel,launches,seconds\n" + table
    )
    section.result.setdefault("slowest", {})[model] = times[:10]
    names = [name for name, _, _ in times[:SLOWEST_KERNELS]]
    train(
        model + " slowest",
        ["--kernel-name-base", "mangled", "--kernel-name", exact(names)]
        + ["--launch-count", 2 * SLOWEST_KERNELS, *DETAILS],
        SLOWEST_SECONDS,
    )


def profile_op(section, op):
    # The first launches of the op itself follow those that fill its tensors.
    size = "%(rows)dx%(columns)d" % op
    command = measured_machine.bench_ops(section, [size], [op["op"]], "--rounds", 1)
    options = [
        "--kernel-name-base",
        "demangled",
        "--launch-skip",
        20,
        "--launch-count",
        4,
        *DETAILS,
    ]
    section.call("op " + measured_machine.title(op), [*NCU, *options, *command], seconds=30)


def run(section):
    if not os.path.exists(section.results.path("algorithms.txt")):
        section.result["notes"] = ["no algorithms.txt: trials are among the first kernels"]
    for model in networks.NETWORKS:
        section.attempt(model, lambda: profile_network(section, model))
    measured = section.results.of("kernels") or {}
    ops = sorted(measured.get("ops", []), key=lambda op: op["gb_per_s"])[:SLOWEST_OPS]
    for op in ops:
        section.attempt("op " + measured_machine.title(op), lambda: profile_op(section, op))
    section.result["summary"] = "%d networks, %d ops" % (
        len(section.result.get("slowest", {})),
        len(ops),
    )
