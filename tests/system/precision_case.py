# SPDX-License-Identifier: Apache-2.0
"""What the tests of float16 and of float8 share: runs of twelve steps."""

import harness

DETERMINISTIC = ("--set", "run.deterministic=true")
TWELVE = "checkpoints/step_000000012.h5"
SETTINGS = (
    "schedule.length=12 steps",
    "monitor.every=1 step",
    "checkpoint.every=6 steps",
    "evaluate.every=6 steps",
)


class PrecisionCase(harness.Case):
    """Has a dataset of tokens beside that of images."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        harness.make_text(cls.shared + "/text")

    def rows(self, folder, *more, ranks=1, steps=12, warmup="1 step"):
        """Trains and returns the rows of the steps. Schedules without a warm-up need None."""
        settings = ["run.folder=" + folder, "run.stop=%d steps" % steps, *SETTINGS]
        if warmup:
            settings.append("schedule.warmup=" + warmup)
        words = [word for setting in settings for word in ("--set", setting)]
        self.train(*words, *more, ranks=ranks)
        return harness.read_rows(self.path(folder), "train")

    def digest(self, folder):
        return harness.digest(self.path(folder, TWELVE))
