#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares short runs of two builds: a change of structure must not change any of them.

Usage: same_runs.py OLD-PROGRAM NEW-PROGRAM [WORK-FOLDER]     programs: two builds of `trireme`
       exit 0: all equal; 1: each difference on a line; 2: a run failed

Each case trains the decks of inputs/smoke with both programs, on 1, 2 or 4 ranks, on the CPU and on
the emulated device. These are compared:

- digests of all tensors of the last checkpoint, the loss and the gradient norm of every step,
  and the results of evaluations
- the lines of `check` about memory: the bytes of every arena
- on the emulated device, the kernel launches: all, and those replayed by graphs
- from trace.json, the number of actions and of messages by name and rank

Needs mpirun for more than one rank. WORK-FOLDER is made, and kept for inspection; by default a
temporary folder is used.
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
IMAGES, TEXT = "resnet.toml", "gpt.toml"
EMULATED = ["debug.device=emulated"]
# deck, ranks, settings
CASES = [
    (IMAGES, 1, []),
    (IMAGES, 1, ["optimizer.ema=0.9", "precision.compute=bfloat16"]),
    (IMAGES, 1, EMULATED),
    (IMAGES, 2, []),
    (IMAGES, 2, ["parallel.shard=optimizer", *EMULATED]),
    (IMAGES, 2, ["parallel.sync=every 2 steps", "parallel.outer_momentum=0.5"]),
    (IMAGES, 2, ["parallel.sync=delayed"]),
    (IMAGES, 2, ["parallel.pipeline=2", *EMULATED]),
    (IMAGES, 4, ["parallel.shard=parameters"]),
    (IMAGES, 4, ["parallel.pipeline=2", "parallel.pipeline_schedule=gpipe"]),
    (TEXT, 1, ["parallel.recompute=all"]),
    (
        TEXT,
        1,
        [
            "parallel.shard=parameters",
            "parallel.offload=[\"activations\", \"optimizer\", \"parameters\"]",
            *EMULATED,
        ],
    ),
    (TEXT, 1, ["precision.compute=float16", *EMULATED]),
    (TEXT, 1, ["precision.compute=float8", "model.width=32", *EMULATED]),
    (TEXT, 2, ["parallel.tensor=2", *EMULATED]),
    (TEXT, 2, ["parallel.tensor=2", "parallel.sequence=true", "batch.micro=2"]),
    (
        TEXT,
        2,
        [
            "model.layers=4",
            "parallel.pipeline=2",
            "parallel.pipeline_schedule=interleaved",
            "parallel.pipeline_chunks=2",
        ],
    ),
    (TEXT, 4, ["parallel.shard=gradients", "checkpoint.async=true"]),
    (TEXT, 4, ["parallel.tensor=2", "parallel.pipeline=2", *EMULATED]),
]
STEPS = "1..8"  # recorded in trace.json: all steps of the decks


def run(*words, ranks=1, cwd=None):
    """Returns the output of a command; ends the script with exit 2 if it fails."""
    command = [str(word) for word in words]
    if ranks > 1:
        command = ["mpirun", "--oversubscribe", "-n", str(ranks), *command]
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMPI_MCA_mpi_yield_when_idle="1")
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)
    if done.returncode != 0:
        print(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        sys.exit(2)
    return done.stdout


def make_data(program, folder):
    """Makes both datasets with the program: images of random numbers, and a text."""
    idx = folder / "idx"
    idx.mkdir(parents=True)
    seed = 12345

    def values(count, limit):
        nonlocal seed
        made = bytearray()
        for _ in range(count):
            seed = (1103515245 * seed + 12345) % 2**31
            made.append((seed >> 16) % limit)
        return bytes(made)

    for name, count in (("train", 64), ("t10k", 32)):
        header = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (count, 12, 12))
        (idx / f"{name}-images-idx3-ubyte").write_bytes(header + values(count * 144, 256))
        header = b"\0\0\x08\x01" + count.to_bytes(4, "big")
        (idx / f"{name}-labels-idx1-ubyte").write_bytes(header + values(count, 5))
    for split, name in (("train", "train"), ("validation", "t10k")):
        run(
            program,
            "shard",
            "idx",
            idx / f"{name}-images-idx3-ubyte",
            idx / f"{name}-labels-idx1-ubyte",
            "--out",
            folder / "images" / split,
        )
    run(
        program,
        "shard",
        "text",
        ROOT / "tests/data/text.txt",
        "--out",
        folder / "text/train",
        "--hold-out",
        "0.1",
        "--hold-out-out",
        folder / "text/validation",
    )


def count_events(trace):
    """Returns the number of actions and messages by rank and name."""
    counts = collections.Counter()
    for event in json.loads(trace.read_text(encoding="utf-8")):
        # Reports of ranks travel beside the steps, so they may end where nothing is recorded.
        is_message = event.get("cat") == "exchange" and event["name"] != "rank_reports"
        # Before lanes existed, a message was a pair of events.
        if event["ph"] in "Xb" and (is_message or event["name"] in ("forward", "backward")):
            counts[f"rank {event['pid']}: {event['name']}"] += 1
    return dict(sorted(counts.items()))


def results_of(program, case, data, folder):
    """Trains one case. Returns all that is compared, by name."""
    deck, ranks, settings = case
    kind = "text" if deck == TEXT else "images"
    settings = [
        *settings,
        f"data.train={data / kind / 'train'}",
        f"data.validation={data / kind / 'validation'}",
        f"run.folder={folder}",
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    path = ROOT / "inputs/smoke" / deck
    check = run(program, "check", path, "--ranks", ranks, *words)
    run(
        program,
        "train",
        path,
        "--allow-faults",
        *words,
        "--set",
        f"monitor.trace={STEPS}",
        ranks=ranks,
    )
    log = (folder / "log.txt").read_text(encoding="utf-8")
    last = max((folder / "checkpoints").glob("step_*.h5"))
    rows = [
        {key: row.get(key) for key in ("kind", "step", "split", "loss", "top1", "grad_norm")}
        for row in map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
        if "loss" in row
    ]
    return {
        "digest": run(program, "inspect", "--digest", last).split()[-1],
        "losses": rows,
        "memory": re.findall(r"^memory .*", check, re.M) + re.findall(r"memory per rank: .*", log),
        "launches": re.findall(r"CUDA graphs: .*", log),
        "messages": count_events(folder / "trace.json"),
    }


def main():
    if len(sys.argv) not in (3, 4):
        print(__doc__)
        return 2
    programs = [pathlib.Path(word).resolve() for word in sys.argv[1:3]]
    if len(sys.argv) == 3:
        with tempfile.TemporaryDirectory() as work:
            return compare(programs, pathlib.Path(work))
    work = pathlib.Path(sys.argv[3]).resolve()
    if work.exists():
        print(f"{work}: exists already; name a folder that does not")
        return 2
    work.mkdir(parents=True)
    return compare(programs, work)


def compare(programs, work):
    """Runs all cases in a folder. Returns the exit status."""
    make_data(programs[0], work / "data")
    differences = 0
    for number, case in enumerate(CASES):
        name = f"{case[0]}, {case[1]} ranks, {', '.join(case[2]) or 'as it is'}"
        before, after = (
            results_of(program, case, work / "data", work / f"{side}{number}")
            for side, program in zip(("old", "new"), programs)
        )
        different = [key for key in before if before[key] != after[key]]
        events = sum(before["messages"].values())
        print(
            f"{name}: {'DIFFERENT' if different else 'equal'} (digest {before['digest']}, "
            f"{len(before['losses'])} rows, {len(before['memory'])} lines of memory, {events} "
            f"events; {'; '.join(before['launches']) or 'no device'})",
            flush=True,
        )
        for key in different:
            differences += 1
            print(f"  {key}: before {before[key]}\n  {key}: after  {after[key]}")
    print(f"same_runs: {len(CASES)} cases, {differences} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
