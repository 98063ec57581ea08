#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the runs behind the figures of large batches, and writes them into the documents.

large_batch_table.py             trains all missing runs, for hours on 2 cores; started by hand.
large_batch_table.py --missing   prints the rows of the table that are not done.
large_batch_table.py --pages     writes tables and pictures of the documents from the results.
large_batch_table.py --check     exits with 1 if a table of the documents differs from the results.

Results are rows of docs/figures/data/large_batch.jsonl, one for each finished run. So the script
can be stopped at any time, and the same command resumes it. A started run continues from its
checkpoint in WORK (default: runs/large_batch). A run that several cells need is trained once.
Tables and pictures of the documents follow each result; commit them together.

The data are the shards that scripts/quickstart.sh makes in data/fashion, with this command for
train, and with 50000:60000 for validation and t10k for test:
  trireme shard idx train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz --shards 4 \\
    --range 0:50000 --out data/fashion/train

Unattended, at the lowest priority:
  setsid nohup nice -n 19 scripts/large_batch_table.py >> runs/large_batch.log 2>&1 &
"""

import argparse
import concurrent.futures
import fcntl
import json
import pathlib
import signal
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "large_batch"))

import pages  # noqa: E402
import plan  # noqa: E402
import study  # noqa: E402
import training  # noqa: E402

DOCUMENTS = HERE.parent / "docs"
RESULTS = DOCUMENTS / "figures/data/large_batch.jsonl"
# What --small changes in the deck.
SMALL_DECK = {"batch.micro": 16, "data.augment.random_crop": 1, "monitor.noise_scale": "1 step"}


def read_rows(path):
    """Returns the rows of the results file. An incomplete last line is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def write_pages(documents, chosen, results):
    """Writes the tables, and of the project's own documents the pictures. Returns the exit code."""
    code = pages.update(documents, chosen, results, write=True)
    if documents == DOCUMENTS:
        subprocess.run([sys.executable, HERE / "figures/make.py"], check=True)
    return code


class File:
    """The results file. Rows are appended by one write each.

    The documents follow the project's own results at once, so that they never differ.
    """

    def __init__(self, path, chosen):
        self.path, self.study = path, chosen
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text and not text.endswith("\n"):
            path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")

    def append(self, row, results):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        results.add(row)
        if self.path == RESULTS:
            write_pages(DOCUMENTS, self.study, results)


def one_driver(work):
    """Locks the work folder; a second driver ends here."""
    work.mkdir(parents=True, exist_ok=True)
    file = open(work / "lock", "w", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"{work}: another large_batch_table.py works here")
    return file


def work_on(program, action, run, trained):
    """Returns the rows of one job. `trained` is the row of the training that is to be tested. If
    its last checkpoint is gone, the run is trained again."""
    if action != "test":
        return [program.train(run, action)]
    row = program.test(run, trained["steps"])
    if row:
        return [row]
    again = program.train(run)
    return [again, program.test(run, again["steps"])]


def drive(rows, results, file, program, jobs, limit):
    """Does job after job, `jobs` at once, until nothing is missing, `limit` jobs are done, or a
    signal comes. Returns the exit code."""
    running, started = {}, 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        while True:
            while len(running) < jobs and started < limit and not program.stopping:
                job = plan.next_job(rows, results, {run.key for _, run in running.values()})
                if job is None:
                    break
                started += 1
                trained = results.train.get(job[1].key)
                running[pool.submit(work_on, program, *job, trained)] = job
            if not running:
                return 75 if program.stopping else 0
            done, _ = concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                action, run = running.pop(future)
                try:
                    done_rows = future.result()
                except training.Stopped:
                    print(f"{run.key}: stopped; the same command resumes it", flush=True)
                    continue
                except SystemExit:
                    program.stop()
                    raise
                for row in done_rows:
                    file.append(row, results)
                    value = row["test"] if row["row"] == "test" else row["validation"]
                    said = "diverged" if value is None else f"{100 * value:.2f} %"
                    print(f"{row['date']} {run.key}: {row['row']} {said}", flush=True)


def print_missing(rows, results):
    for row in rows:
        if row.is_complete(results):
            continue
        known = sum(1 for _ in row.jobs(results))
        print(f"{row.name}: not done; {known} jobs are known now")


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--pages", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--trireme", default="build/release/bin/trireme", help="the program")
    parser.add_argument("--data", default="data/fashion", help="has train, validation and test")
    parser.add_argument("--work", default="runs/large_batch", help="folder of the runs")
    parser.add_argument("--results", default=RESULTS, type=pathlib.Path)
    parser.add_argument("--documents", default=DOCUMENTS, type=pathlib.Path)
    parser.add_argument("--jobs", default=1, type=int, help="trainings at once, a thread each")
    parser.add_argument("--row", default="", help="a word in the names of the rows to train")
    parser.add_argument("--limit", default=sys.maxsize, type=int, help="ends after so many jobs")
    parser.add_argument("--small", action="store_true", help="a study of seconds, for tests")
    return parser.parse_args()


def main():
    given = arguments()
    chosen = study.SMALL if given.small else study.FULL
    rows = [row for name, row in chosen.rows().items() if given.row in name]
    if not rows:
        names = "; ".join(chosen.rows())
        raise SystemExit(f"--row {given.row}: no row has this word; the rows: {names}")
    results = plan.Results(read_rows(given.results))
    if given.pages:
        return write_pages(given.documents, chosen, results)
    if given.check:
        return pages.update(given.documents, chosen, results, write=False)
    if given.missing:
        print_missing(rows, results)
        return 0
    for split in ("train", "validation", "test"):
        if not (pathlib.Path(given.data) / split).is_dir():
            raise SystemExit(f"{given.data}/{split}: missing; scripts/quickstart.sh makes it")
    work = pathlib.Path(given.work)
    lock = one_driver(work)  # held until the end
    program = training.Program(given.trireme, given.data, work, SMALL_DECK if given.small else None)
    others = [
        row["key"]
        for row in {**results.quarter, **results.train}.values()
        if row["form"] != program.form
    ]
    if others:
        raise SystemExit(
            f"{given.results}: {others[0]} was made with another deck than this script's"
        )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: program.stop())
    code = drive(rows, results, File(given.results, chosen), program, given.jobs, given.limit)
    lock.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
