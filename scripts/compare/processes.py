# SPDX-License-Identifier: Apache-2.0
"""Runs programs for the scripts that compare: their environment, cores, outputs and ends.

Also a program, which on_cores() starts for each rank:

  processes.py PEAK-FILES FIRST-CORE THREADS COMMAND...

It runs COMMAND on THREADS cores of its own and writes the largest resident set in bytes into the
file PEAK-FILES followed by the rank. The cores are those from FIRST-CORE + rank * THREADS of the
cores that it may use, in the order of their numbers. Two of them may be threads of one core: choose
others with `taskset -c`.

MPIEXEC names the launcher of the ranks: mpirun without it, or mpiexec or srun. Under srun the job
needs two tasks, or a task with two cores. The script may be a task of srun itself.
"""

import contextlib
import importlib
import math
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

LAUNCHER = os.environ.get("MPIEXEC") or "mpirun"
END_SECONDS = 10  # after a request to end, before a process is killed
LAST_LINES = 20  # of a failed program that are printed
# Names of Python packages that differ from those of their modules
PACKAGES = {"skimage": "scikit-image", "sklearn": "scikit-learn"}


class Broken(Exception):
    """A program failed, or printed or wrote something wrong.

    `code`: its exit code, None if no process failed. `lines`: those that it printed.
    """

    def __init__(self, message, code=None, lines=()):
        super().__init__(message)
        self.code, self.lines = code, lines


class OutOfTime(Exception):
    """A program has not ended in time."""


def run_script(main):
    """Runs the main function of a script. Returns its exit code; 130 if it is interrupted, also by
    SIGTERM or SIGHUP, and 2 if a program fails or cannot be started, or a file cannot be written.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        return main()
    except KeyboardInterrupt as interruption:
        print("interrupted", *interruption.args, sep="; ", file=sys.stderr)
        return 130
    except (OSError, Broken, OutOfTime) as error:
        lines = [*getattr(error, "lines", ())[-LAST_LINES:-1]]
        lines.append(f"{os.path.basename(sys.argv[0])}: {error}")
        print("\n".join(lines), file=sys.stderr)
        return 2


def require(*modules):
    """Raises Broken, which says how to install the modules, if this Python lacks one of them."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            missing = PACKAGES.get(module, module)
            install = " ".join(PACKAGES.get(name, name) for name in modules)
            raise Broken(
                f"this Python has no {missing} ({error}); python3 -m venv V && "
                f"V/bin/pip install {install}, then V/bin/python {' '.join(sys.argv[:2])}"
            ) from None


def version_of(program):
    """Returns the first line of what a program prints with --version. Raises OSError."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, errors="replace")
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return lines[0] if lines else ""


def find_program(given):
    """Makes --trireme absolute. Ends the script with a message if it is no program `trireme`."""
    given.trireme = given.trireme.resolve()
    if not os.access(given.trireme, os.X_OK) or given.trireme.is_dir():
        given.error(f"--trireme {given.trireme}: is not built")
    try:
        version = version_of(given.trireme)
    except OSError as error:
        version = error.strerror
    if not version.startswith("trireme "):
        given.error(f'--trireme {given.trireme}: is no trireme; --version: "{version}"')


def find_launcher(given):
    """Ends the script with a message if the launcher of ranks is missing."""
    if not shutil.which(LAUNCHER):
        given.error(f"{LAUNCHER}: not found; install MPI, or name its launcher in MPIEXEC")


# --- starting and ending ------------------------------------------------------------------------


def launched_rank():
    """Returns the rank of this process by the variables in which the program finds its own."""
    names = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"]
    if "SLURM_STEP_ID" in os.environ:  # a job script has SLURM_PROCID, too
        names.append("SLURM_PROCID")
    return int(next(filter(None, map(os.environ.get, names)), 0))


def environment(threads):
    """Returns the environment of a program: ranks are not bound by their launcher. A script may be
    a task of srun, but a program that it starts is not."""
    task = ("PMI_", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(task)},
        "OMP_NUM_THREADS": str(threads),
        "OMP_PROC_BIND": "false",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_mapby": ":oversubscribe",  # the name in Open MPI 5 and 6
        "SLURM_CPU_BIND": "none",
        "SLURM_OVERLAP": "1",  # the script's own task has all cores of the job
    }


def end_group(child):
    """Ends a process and those that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all have ended
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)  # mpirun ends its ranks
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(END_SECONDS)
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@contextlib.contextmanager
def interruptions_later():
    """Raises KeyboardInterrupt at the end of the block if a signal to end came within it. Only the
    main thread receives signals; in others it does nothing."""
    came, before = [], {}
    is_main = threading.current_thread() is threading.main_thread()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ():
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            before[number] = signal.signal(number, lambda *_: came.append(True))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def call_together(commands, threads=1, seconds=math.inf, variables=None):
    """Runs commands at once. Returns what each wrote to standard output and to standard error, as
    bytes. `variables`: more of their environment. Raises OSError, Broken, and OutOfTime after some
    seconds. No process of the commands is left, however it ends."""
    end = time.monotonic() + max(1, seconds)
    children = []
    with contextlib.ExitStack() as stack:
        for words in commands:
            out, errors = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            with interruptions_later():  # until the end of the child is arranged
                child = subprocess.Popen(
                    [str(word) for word in words],
                    env=environment(threads) | (variables or {}),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=errors,
                    start_new_session=True,
                )
                stack.callback(end_group, child)
            children.append((words, child, out, errors))
        outputs = []
        for words, child, *files in children:
            try:
                child.wait(max(0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise OutOfTime(f"{words[0]}: {seconds:.0f} s are over") from None
            for file in files:
                file.seek(0)
            out, errors = (file.read() for file in files)
            if child.returncode != 0:
                lines = (errors.strip() or out.strip()).decode(errors="replace").splitlines()
                last = lines[-1] if lines else "no message"
                raise Broken(f"exit {child.returncode}: {last}", child.returncode, lines)
            outputs.append((out, errors))
    return outputs


def call(words, threads=1, seconds=math.inf, variables=None):
    """Returns standard output and standard error of one command, as call_together() does."""
    return call_together([words], threads, seconds, variables)[0]


# --- cores --------------------------------------------------------------------------------------


def on_cores(peak_files, first, threads):
    """Returns the words in front of a command that run it as the head of this file says."""
    return [sys.executable, pathlib.Path(__file__).resolve(), peak_files, first, threads]


def main():
    peak_files, first, threads, *command = sys.argv[1:]
    rank, threads = launched_rank(), int(threads)
    cores = sorted(os.sched_getaffinity(0))
    mine = cores[int(first) + rank * threads :][:threads]
    os.sched_setaffinity(0, cores if len(mine) < threads else mine)  # all if there are too few
    code = subprocess.run(command).returncode
    peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    pathlib.Path(f"{peak_files}{rank}").write_text(str(peak))
    return code


if __name__ == "__main__":
    sys.exit(main())
