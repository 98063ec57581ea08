# SPDX-License-Identifier: Apache-2.0
"""The run that tests disturb with faults and hangs: short, with few evaluations."""

STEPS = 20
LAST = "checkpoints/step_%09d.h5" % STEPS  # in the folder of the run
ARGUMENTS = (
    "--set",
    "run.stop=%d steps" % STEPS,
    "--set",
    "evaluate.every=10 steps",
    "--set",
    "checkpoint.best=none",
)
