# SPDX-License-Identifier: Apache-2.0
"""Sections of the GPU acceptance with a requirement: libraries, tests, sanitizer, layouts."""

import concurrent.futures
import ctypes
import json
import os
import re
import time

import parity
import runs

# Libraries of the driver and of CUDA CUDA_MAJOR, with what fails without them. cuDNN and cuBLASLt
# load some of them while they run.
LIBRARIES = {
    "libcuda.so.1": "everything: the driver is missing",
    "libcudart.so.CUDA_MAJOR": "the program",
    "libcublasLt.so.CUDA_MAJOR": "matrix products",
    "libcudnn.so.9": "convolutions and attention",
    "libcudnn_graph.so.9": "convolutions and attention",
    "libcudnn_engines_precompiled.so.9": "convolutions",
    "libcudnn_engines_runtime_compiled.so.9": "attention, and convolutions with sums of channels",
    "libcudnn_heuristic.so.9": "the choice of convolutions",
    "libnvrtc.so.CUDA_MAJOR": "attention, and convolutions with sums of channels",
    "libnccl.so.2": "exchanges between GPUs",
}
# Only reported: the driver needs it on GPUs for which the program has no machine code.
OPTIONAL_LIBRARIES = {"libnvidia-ptxjitcompiler.so.1": "kernels for GPUs newer than sm_90"}


def missing_libraries(names, folders):
    """Returns a line for each library that can be loaded neither by name nor from a folder.

    The reason is that of a file which exists, such as a library that it needs itself.
    """
    missing = []
    for name, purpose in names.items():
        errors = []
        for path in [os.path.join(folder, name) for folder in folders] + [name]:
            try:
                ctypes.CDLL(path)
                break
            except OSError as problem:
                errors.insert(0 if os.path.exists(path) else len(errors), problem)
        else:
            missing.append("%s (%s): %s" % (name, purpose, errors[0]))
    return missing


def libraries(section):
    """Loads every library that a run needs, so that a missing one is named before the first run."""
    tree = os.path.dirname(os.path.dirname(os.path.realpath(section.trireme)))
    program, libraries = os.path.join(tree, "libexec", "trireme"), os.path.join(tree, "lib")
    search = "%s:%s" % (libraries, os.environ.get("LD_LIBRARY_PATH", ""))
    linked = section.call("ldd", ["ldd", program], {"LD_LIBRARY_PATH": search})
    major = re.search(r"libcublasLt\.so\.(\d+)", linked)
    if not major:
        raise runs.Failed("%s is not linked with cuBLASLt" % section.trireme)
    names = {
        name.replace("CUDA_MAJOR", major.group(1)): purpose for name, purpose in LIBRARIES.items()
    }
    folders = sorted({os.path.dirname(path) for path in re.findall(r"=> (/\S+)", linked)})
    section.result["optional"] = missing_libraries(OPTIONAL_LIBRARIES, folders)
    missing = missing_libraries(names, folders)
    missing += [line.strip() for line in linked.splitlines() if line.endswith("not found")]
    section.result["summary"] = "%d libraries; missing: %d, and %d optional" % (
        len(names),
        len(missing),
        len(section.result["optional"]),
    )
    if missing:
        raise runs.Failed("cannot be loaded:\n" + "\n".join(missing))


# --- kernel tests ---------------------------------------------------------------------------------

# These have most cases and choose algorithms; they start first, so that none of them runs alone at
# the end. They also run without fused operations.
PRODUCTS = re.compile(r"test_ops_(linear|convolution|attention|cuda_products)")
# Programs that run at once: one alone leaves most of a GPU idle.
CONCURRENT_PROGRAMS = max(4, min(8, (os.cpu_count() or 1) // 2))


def run_programs(section, jobs):
    """Runs test programs, several at once. `jobs`: (name, command, environment) of each."""
    verdicts = section.result["programs"] = {}
    common = {
        "TRIREME_TEST_DEVICE": section.device,
        "OMP_NUM_THREADS": "2",
        "OMP_PROC_BIND": "false",
    }

    def one(job):
        name, words, more = job
        start = time.monotonic()

        if not section.wanted(name):
            return

        def run():
            output = section.call(name, words, {**common, **more}, accept=(0, 77))
            if output.startswith("skipped"):
                raise runs.Failed(output.strip())
            return "passed"

        verdict = section.attempt(name, run) or "FAILED"
        with section.lock:
            verdicts[name] = {"verdict": verdict, "seconds": round(time.monotonic() - start, 1)}

    with concurrent.futures.ThreadPoolExecutor(CONCURRENT_PROGRAMS) as pool:
        list(pool.map(one, jobs))
    passed = sum(found["verdict"] == "passed" for found in verdicts.values())
    section.result["summary"] = "%d of %d programs" % (passed, len(verdicts))


def tests(section):
    """Runs the kernel tests of every op on the device."""
    programs = section.programs("test_ops_.*")
    first = [path for path in programs if PRODUCTS.fullmatch(os.path.basename(path))]
    jobs = [(os.path.basename(path), [path], {}) for path in first]
    jobs += [
        (os.path.basename(path) + " without fusions", [path], {"TRIREME_TEST_FUSIONS": "off"})
        for path in first
    ]
    jobs += [(os.path.basename(path), [path], {}) for path in programs if path not in first]
    run_programs(section, jobs)


def sanitizer(section):
    """Runs the kernel tests of small tensors under compute-sanitizer.

    memcheck detects accesses outside of allocated memory and misaligned ones. racecheck detects
    threads of a block that use shared memory without a barrier; the kernels that keep rows there.
    """
    checked = {
        "memcheck": "activation|batch_norm|dropout|elementwise|embedding|group_norm|image|"
        "joined_norms|pooling|rotary|row_norm|softmax_loss|update",
        "racecheck": "joined_norms|softmax_loss",
    }
    slow = (
        "--gtest_filter=-*AnyNumberOfThreads:*Meta*:*LongContext:*WideRows*:*ChunksNorThreads:"
        "*KeepsTheMean:*EqualsTheUnsplitOp"
    )
    common = ["--target-processes", "all", "--error-exitcode", "9", "--print-limit", "5"]
    # Calls that return an error are no findings: the program asks, and clears what is refused.
    options = {"memcheck": ["--report-api-errors", "no"], "racecheck": []}
    jobs = []
    for tool, names in checked.items():
        for path in section.programs("test_ops_(%s)" % names):
            words = ["compute-sanitizer", "--tool", tool, *common, *options[tool], path, slow]
            jobs.append(("%s %s" % (os.path.basename(path), tool), words, {}))
    run_programs(section, jobs)


# --- layouts --------------------------------------------------------------------------------------

LAYOUT_STEPS = 10
LAYOUTS = (
    {  # ranks and table [parallel]; all ranks share one GPU, so they exchange through host memory
        "gpt": [
            (2, {"data": 2, "shard": "optimizer"}),
            (2, {"tensor": 2}),
            (2, {"pipeline": 2}),
            (4, {"data": 4, "shard": "parameters"}),
            (4, {"data": 2, "tensor": 2, "sequence": "true"}),
            (8, {"data": 2, "tensor": 2, "pipeline": 2}),
        ],
        "resnet": [(2, {"data": 2}), (4, {"data": 4, "shard": "gradients"})],
    }
)


def layouts(section):
    """Compares layouts of 2, 4 and 8 ranks on one GPU with one rank.

    The losses must be equal up to the rounding errors of that number of steps. Runs are
    deterministic: otherwise NCCL adds gradients in an order that depends on the layout.
    """
    with open(os.path.join(section.data, "losses.json")) as file:
        recorded = json.load(file)
    section.result["layouts"] = found = []

    def losses_of(model, name, ranks, sets):
        deck = parity.deck_of(model, section.data, LAYOUT_STEPS)
        norm = "model.layers=4" if model == "gpt" else "model.norm=group"
        common = ["batch.micro=2", "run.deterministic=true", norm]
        environment = {"OMP_NUM_THREADS": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
        rows = section.train(name, deck, section.device, ranks, common + sets, environment)
        return runs.losses(rows)

    def compare(model, name, ranks, layout, alone):
        losses = losses_of(model, name, ranks, ["parallel.%s=%s" % item for item in layout.items()])
        bound = parity.bounds(recorded[model], "float32")
        share = max(abs(a - b) / c for a, b, c in zip(losses, alone, bound))
        entry = {"model": model, "ranks": ranks, "layout": name, "largest_share_of_bound": share}
        found.append(entry)
        if not share <= 1 or len(losses) != LAYOUT_STEPS:
            raise runs.Failed("losses %s, at one rank %s" % (losses, alone))

    for model, those in LAYOUTS.items():
        name = model + " 1 rank"
        cases = [
            (model, " ".join([model, *("%s %s" % item for item in layout.items())]), ranks, layout)
            for ranks, layout in those
        ]
        needed = any(section.wanted(case[1]) for case in cases)
        alone = section.attempt(name, lambda: losses_of(model, name, 1, []), needed)
        if alone is None:
            continue
        for case in cases:
            section.attempt(case[1], lambda: compare(*case, alone))
    section.result["summary"] = "%d layouts" % len(found)
