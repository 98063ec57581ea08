#!/usr/bin/env python3
"""Runs the sections of scripts/gpu_acceptance.sh, which finds the program and the libraries.

Each section has a time limit and writes OUT/SECTION.json. A table is printed at the end. A section
fails if a requirement is not met or the time limit is exceeded. Speeds are only reported. Exit
status: 0 if no section failed, otherwise 1.
"""

import argparse
import concurrent.futures
import ctypes
import json
import os
import re
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import gradients  # noqa: E402
import parity  # noqa: E402
import runs  # noqa: E402
import torch_rate  # noqa: E402

# Seconds of each section. Where a call has a limit of its own, run one section a call.
SECTIONS = {
    "libraries": 20,
    "tests": 105,
    "parity": 70,
    "gradients": 300,
    "sanitizer": 75,
    "layouts": 70,
    "ceilings": 20,
    "kernels": 20,
    "resnet50": 240,
    "gpt2": 240,
}
NEED_A_GPU = ("libraries", "sanitizer", "ceilings", "resnet50", "gpt2")
CONCURRENT_PROGRAMS = 4  # test programs that run at once: one alone leaves most of a GPU idle
ROUNDS = 2  # A B A B


class Section:
    """A section of the acceptance: the arguments, a folder for its runs, and its time limit."""

    def __init__(self, name, arguments):
        self.arguments, self.limit = arguments, SECTIONS[name] * arguments.patience
        self.trireme, self.folder = os.path.join(arguments.bin, "trireme"), os.path.join(
            arguments.out, "work", name
        )
        self.deadline = time.monotonic() + self.limit
        self.result = {"section": name, "passed": False}
        os.makedirs(self.folder, exist_ok=True)

    def left(self):
        return self.deadline - time.monotonic()

    def programs(self, pattern):
        names = sorted(
            name for name in os.listdir(self.arguments.bin) if re.fullmatch(pattern, name)
        )
        if not names:
            raise runs.Failed("no %s in %s" % (pattern, self.arguments.bin))
        return [os.path.join(self.arguments.bin, name) for name in names]


# --- requirements --------------------------------------------------------------------------------


def run_programs(section, programs, before=(), words=(), without_fusions=()):
    """Runs several test programs at once on the device, and those of `without_fusions` once more
    without fused operations.

    Raises Failed with the results of those that failed. A program that exceeds the time limit has
    failed.
    """
    environment = dict(
        os.environ,
        TRIREME_TEST_DEVICE=section.arguments.device,
        OMP_NUM_THREADS="2",
        OMP_PROC_BIND="false",
    )

    def one(job):
        program, more = job
        start = time.monotonic()
        try:
            output, verdict = (
                runs.call(
                    [*before, program, "--gtest_brief=1", *words],
                    section.left(),
                    dict(environment, **more),
                    accept=(0, 77),
                ),
                "passed",
            )
            if output.startswith("skipped"):
                verdict = output.strip()
        except runs.Failed as failure:
            verdict = str(failure)
        name = os.path.basename(program) + (" without fusions" if more else "")
        return name, {"verdict": verdict, "seconds": round(time.monotonic() - start, 1)}

    with concurrent.futures.ThreadPoolExecutor(CONCURRENT_PROGRAMS) as pool:
        jobs = [(program, {}) for program in programs]
        jobs += [(program, {"TRIREME_TEST_FUSIONS": "off"}) for program in without_fusions]
        section.result["programs"] = verdicts = dict(pool.map(one, jobs))
    failed = {
        name: found["verdict"] for name, found in verdicts.items() if found["verdict"] != "passed"
    }
    section.result["summary"] = "%d of %d programs" % (len(verdicts) - len(failed), len(verdicts))
    if failed:
        raise runs.Failed("\n".join("%s: %s" % item for item in failed.items()))


def tests(section):
    """Runs the kernel tests of every op on the device."""
    programs = section.programs("test_ops_.*")
    fused = re.compile(r".*test_ops_(linear|convolution|attention|cuda_products)")
    run_programs(section, programs, without_fusions=filter(fused.fullmatch, programs))


def sanitizer(section):
    """Runs the kernel tests of small tensors under compute-sanitizer's memcheck.

    It detects accesses outside of allocated memory and misaligned ones.
    """
    small = (
        "test_ops_(activation|dropout|elementwise|embedding|image|pooling|rotary|row_norm|"
        "group_norm|update|softmax_loss)"
    )
    slow = (
        "--gtest_filter=-*AnyNumberOfThreads:*Meta*:*LongContext:*WideRows*:*ChunksNorThreads:"
        "*KeepsTheMean:*EqualsTheUnsplitOp"
    )
    checker = [
        "compute-sanitizer",
        "--tool",
        "memcheck",
        "--target-processes",
        "all",
        "--error-exitcode",
        "9",
        "--print-limit",
        "5",
    ]
    run_programs(section, section.programs(small), checker, [slow])


def parity_of_losses(section):
    """Compares fifty steps of two networks in two precisions with the recorded losses of the
    CPU."""
    arguments = argparse.Namespace(
        folder=section.arguments.reference,
        trireme=section.trireme,
        device=section.arguments.device,
        work=section.folder,
        seconds=section.left(),
    )
    section.result["runs"] = compared = parity.compare(arguments)
    section.result["summary"] = "largest difference %.2g of the tolerance" % max(
        run["largest_share_of_bound"] for run in compared
    )


def gradients_of_a_step(section):
    """Compares the loss and all gradients of one step with those of the CPU."""
    gradients.run(section, section.arguments.device)


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
    """Returns a line for each library that can be loaded neither by name nor from a folder."""
    missing = []
    for name, purpose in names.items():
        for path in [name] + [os.path.join(folder, name) for folder in folders]:
            try:
                ctypes.CDLL(path)
                break
            except OSError as problem:
                error = problem
        else:
            missing.append("%s (%s): %s" % (name, purpose, error))
    return missing


def libraries(section):
    """Loads every library that a run needs, so that a missing one is named before the first run."""
    program = os.path.join(section.arguments.bin, "..", "libexec", "trireme")  # of a stage
    linked = runs.call(["ldd", program if os.path.exists(program) else section.trireme], 20)
    major = re.search(r"libcublasLt\.so\.(\d+)", linked)
    if not major:
        raise runs.Failed("%s is not linked with cuBLASLt" % section.trireme)
    names = {
        name.replace("CUDA_MAJOR", major.group(1)): purpose for name, purpose in LIBRARIES.items()
    }
    folders = sorted({os.path.dirname(path) for path in re.findall(r"=> (/\S+)", linked)})
    section.result["optional"] = missing_libraries(OPTIONAL_LIBRARIES, folders)
    if missing := missing_libraries(names, folders):
        raise runs.Failed("cannot be loaded:\n" + "\n".join(missing))
    section.result["summary"] = "%d libraries; missing and optional: %d" % (
        len(names),
        len(section.result["optional"]),
    )


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
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMPI_MCA_mpi_yield_when_idle="1")
    with open(os.path.join(section.arguments.reference, "losses.json")) as file:
        recorded = json.load(file)
    found, wrong = [], []
    for model, those in LAYOUTS.items():
        deck = parity.deck_of(model, section.arguments.reference, LAYOUT_STEPS)
        norm = "model.layers=4" if model == "gpt" else "model.norm=group"
        sets = ["batch.micro=2", "run.deterministic=true", norm]

        def run(name, ranks, more):
            rows = runs.train(
                section.trireme,
                section.folder,
                name,
                deck,
                section.arguments.device,
                section.left(),
                ranks,
                sets + more,
                environment,
            )
            return runs.losses(rows)

        alone = run(model + "-1", 1, [])
        bound = parity.bounds(recorded[model], "float32")
        for number, (ranks, layout) in enumerate(those):
            name = " ".join("%s %s" % item for item in layout.items())
            losses = run(
                "%s-%d-%d" % (model, ranks, number),
                ranks,
                ["parallel.%s=%s" % item for item in layout.items()],
            )
            share = max(abs(a - b) / c for a, b, c in zip(losses, alone, bound))
            found.append(
                {"model": model, "ranks": ranks, "layout": name, "largest_share_of_bound": share}
            )
            if not share <= 1 or len(losses) != LAYOUT_STEPS:
                wrong.append("%s, %s: losses %s, at one rank %s" % (model, name, losses, alone))
    section.result["layouts"] = found
    section.result["summary"] = "%d layouts" % len(found)
    if wrong:
        raise runs.Failed("\n".join(wrong))


# --- speed --------------------------------------------------------------------------------------


def ceilings(section):
    """Measures the limits of this GPU with PyTorch."""
    output = runs.call(
        [section.arguments.python, os.path.join(HERE, "ceilings.py")], section.left()
    )
    section.result.update(json.loads(output.splitlines()[-1]))
    section.result["summary"] = "%.0f TFLOP/s, copy %.0f GB/s" % (
        section.result["matmul_bfloat16_tflops"],
        section.result["copy_gb_per_s"],
    )


def kernels(section):
    """Measures the bandwidth of the memory-bound ops relative to a copy by this program."""
    on_device = ["cuda"] if section.arguments.device == "cuda" else ["cpu", 64]
    lines = runs.call([section.programs("bench_ops")[0], *on_device], section.left()).splitlines()
    section.result["ops"] = ops = [json.loads(line) for line in lines]
    copy = ops[0]["gb_per_s"]
    for op in ops:
        op["of_copy"] = round(op["gb_per_s"] / copy, 3)
    slowest = min(ops, key=lambda op: op["of_copy"])
    below = sum(op["of_copy"] < 0.85 for op in ops)
    section.result["summary"] = "copy %.0f GB/s; %d of %d below 0.85 of it, least %.2f: %s" % (
        copy,
        below,
        len(ops),
        slowest["of_copy"],
        slowest["op"],
    )


PIECE, PIECES, WARMUP_PIECES = 10, 6, 2
SPEED_DECK = """stop = "%d steps"
%%s
[precision]
compute = "bfloat16"
[schedule]
kind = "constant"
rate = 1e-3
[checkpoint]
every = "1000000 steps"
[monitor]
every = "%d steps"
tensorboard = false
""" % (PIECE * PIECES, PIECE)

RESNET50 = """[model]
kind = "resnet"
depth = 50
[data]
train = "%(data)s"
workers = 8
prefetch = 8
[batch]
global = %(batch)d
micro = %(batch)d
[optimizer]
kind = "sgd"
momentum = 0.9
weight_decay = 5e-4"""

GPT2 = """[model]
kind = "gpt"
layers = 12
heads = 12
width = 768
context = 1024
vocabulary = 50304
[data]
train = "%(data)s"
workers = 4
[batch]
global = %(batch)d
micro = %(batch)d
[optimizer]
kind = "adamw"
weight_decay = 0.1
beta2 = 0.95"""


def trireme_rate(section, deck, number):
    """Trains, and returns the rate. The algorithms that the first run has chosen are used again."""
    rows = runs.train(
        section.trireme,
        section.folder,
        "run-%d" % number,
        SPEED_DECK % deck,
        "cuda",
        section.left(),
        like="run-0",
    )
    rates = [row["samples_per_s"] for row in rows][WARMUP_PIECES:]
    return {
        "samples_per_s": statistics.median(rates),
        "least": min(rates),
        "most": max(rates),
        "memory_bytes": rows[-1].get("memory_bytes", 0),
        "loss": rows[-1]["loss"],
    }


def side_by_side(section, model, deck, batch, words, unit, units_per_sample, flops_per_sample):
    """Measures Trireme, PyTorch, Trireme, PyTorch.

    The first round tries as many forms of PyTorch as the time allows. The second round uses the
    best.
    """
    ours, theirs, broken = [], {}, {}
    environment = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=os.path.join(section.folder, "inductor"))
    section.result.update(trireme=ours, pytorch=theirs, left_out=broken, batch=batch)

    def measure_torch(form, seconds):
        output = runs.call(
            [
                section.arguments.python,
                os.path.join(HERE, "torch_rate.py"),
                model,
                form,
                "--batch",
                batch,
                "--seconds",
                8,
                *words,
            ],
            seconds,
            environment,
        )
        theirs.setdefault(form, []).append(json.loads(output.splitlines()[-1]))

    for number in range(ROUNDS):
        ours.append(trireme_rate(section, deck, number))
        best = max(theirs, key=lambda form: theirs[form][0]["samples_per_s"]) if theirs else None
        for form in [best] if best else torch_rate.FORMS[model]:
            try:  # the first round leaves a third of the time for the second
                measure_torch(form, section.left() - (0 if best else section.limit / 3))
            except runs.Failed as failure:
                broken[form] = str(failure)[-500:]
    if not theirs:
        raise runs.Failed("PyTorch: no form worked: %s" % broken)
    rate = statistics.median(run["samples_per_s"] for run in ours)
    form, best = max(
        (
            (form, statistics.median(run["samples_per_s"] for run in measured))
            for form, measured in theirs.items()
        ),
        key=lambda pair: pair[1],
    )
    section.result.update(
        unit=unit,
        rate=rate * units_per_sample,
        pytorch_rate=best * units_per_sample,
        pytorch_form=form,
        ratio=rate / best,
        tflops=rate * flops_per_sample / 1e12,
    )
    section.result["summary"] = "%.0f %s/s, PyTorch %.0f (%s), ratio %.2f; %.0f TFLOP/s" % (
        rate * units_per_sample,
        unit,
        best * units_per_sample,
        form,
        rate / best,
        section.result["tflops"],
    )


def resnet50(section):
    batch = section.arguments.batch or 256
    data = os.path.join(section.folder, "data")
    runs.make_color_images(section.trireme, data, samples=4 * batch, size=224, classes=1000)
    # 4.09 billion multiply-adds for an image forward (He et al. 2016 report 3.8, without v1.5's
    # stride), twice as many backward.
    side_by_side(
        section,
        "resnet50",
        RESNET50 % {"data": data, "batch": batch},
        batch,
        ["--channels", 3],
        "images",
        1,
        3 * 2 * 4.09e9,
    )


def gpt2(section):
    batch, context, layers, width, vocabulary = section.arguments.batch or 32, 1024, 12, 768, 50304
    data = os.path.join(section.folder, "data")
    runs.make_tokens(section.trireme, data, 8 * batch * context + 1, vocabulary)
    products = 12 * layers * width**2 + vocabulary * width  # weights of matrix products
    # Attention takes 2 T C for each token and layer, half of it because of causality.
    flops = 3 * 2 * context * (products + layers * width * context)
    side_by_side(
        section,
        "gpt2",
        GPT2 % {"data": data, "batch": batch},
        batch,
        ["--vocabulary", vocabulary],
        "tokens",
        context,
        flops,
    )


# --- all ----------------------------------------------------------------------------------------

WORK = {
    "libraries": libraries,
    "tests": tests,
    "parity": parity_of_losses,
    "gradients": gradients_of_a_step,
    "sanitizer": sanitizer,
    "layouts": layouts,
    "ceilings": ceilings,
    "kernels": kernels,
    "resnet50": resnet50,
    "gpt2": gpt2,
}


def run_section(name, arguments):
    section, start = Section(name, arguments), time.monotonic()
    result = section.result
    try:
        if arguments.device != "cuda" and name in NEED_A_GPU:
            result["passed"], result["summary"] = None, "left out: needs a GPU"
        else:
            WORK[name](section)
            result["passed"] = True
    except (runs.Failed, OSError, ValueError, KeyError) as failure:
        result["failure"] = "%s: %s" % (type(failure).__name__, failure)
        result["summary"] = " ".join(result["failure"].split())[:160]
    result["seconds"] = round(time.monotonic() - start, 1)
    with open(os.path.join(arguments.out, name + ".json"), "w") as file:
        json.dump(result, file, indent=1)
    print("%s: %s" % (name, result.get("failure") or result["summary"]), flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, help="folder of trireme and the test programs")
    parser.add_argument("--reference", required=True, help="folder that parity.py record made")
    parser.add_argument("--out", required=True)
    parser.add_argument(
        "--sections", default=",".join(SECTIONS), help="with commas; known: %(default)s"
    )
    parser.add_argument(
        "--device",
        default="cuda",
        choices=["cuda", "cpu"],
        help="cpu: what needs no GPU, to try the sections themselves",
    )
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    parser.add_argument("--batch", type=int, default=0, help="of resnet50 and gpt2 (256 and 32)")
    parser.add_argument("--patience", type=float, default=1, help="all time limits times this")
    arguments = parser.parse_args()
    names = arguments.sections.split(",")
    if unknown := [name for name in names if name not in SECTIONS]:
        parser.error("unknown section %s; known: %s" % (", ".join(unknown), ", ".join(SECTIONS)))
    os.makedirs(arguments.out, exist_ok=True)
    results = []
    for name in names:
        results.append(run_section(name, arguments))
        if name == "libraries" and results[-1]["passed"] is False:
            break  # nothing else can pass
    print("\n| section | verdict | seconds | |\n|---|---|---:|---|")
    for result in results:
        verdict = {True: "passed", False: "FAILED", None: "-"}[result["passed"]]
        print(
            "| %s | %s | %.0f | %s |"
            % (result["section"], verdict, result["seconds"], result["summary"].replace("|", "/"))
        )
    return 1 if any(result["passed"] is False for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
