# SPDX-License-Identifier: Apache-2.0
"""Runs the program and measures its processor time and memory."""

import subprocess
import sys

import harness


def run(*arguments, cwd):
    """Runs the program in a process that measures it. The result also has `seconds` of processor
    time of the program and its children, and `peak`, the bytes of memory of the largest of them."""
    script = (
        "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode;"
        "use = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print('\\nused', use.ru_utime + use.ru_stime, use.ru_maxrss); sys.exit(code)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *harness.command(*arguments)],
        cwd=cwd,
        env=harness.environment(),
        timeout=harness.PATIENCE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    result.stdout, used = result.stdout.rsplit("\nused ", 1)
    result.text = result.stdout + result.stderr
    seconds, peak = used.split()
    result.seconds, result.peak = float(seconds), int(peak) << 10
    return result
