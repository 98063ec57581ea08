# SPDX-License-Identifier: Apache-2.0
"""Tests the file of library algorithms that runs share, with the stand-in for CUDA.

The libraries propose their algorithms, and cuDNN builds its plans. All of them are equally fast
here, so the first one of a problem is chosen.
"""

import os
import pathlib
import shutil

import harness
from cuda_stand_in import BFLOAT16, GPT, RESNET, StandInCase


class CudaAlgorithms(StandInCase):
    def choices(self, path):
        """Returns the lines of a file of algorithms, except those of own kernels."""
        lines = pathlib.Path(path).read_text().splitlines()
        return {line for line in lines if "own kernel" not in line}

    def test_runs_share_a_file_of_algorithms(self):
        """Tests that a new run takes the algorithms of other runs, without a trial."""
        shared = self.path("shared.txt")

        def train(folder, *arguments, file=shared, stop=2):
            (steps,) = self.trained(
                RESNET,
                *BFLOAT16,
                *("--set", "run.stop=%d steps" % stop, "--set", "run.folder=" + folder),
                *arguments,
                length=2,
                TRIREME_ALGORITHMS=file,
            )
            return steps

        def try_all(folder, **how):
            first = train(folder, **how)
            self.try_the_rest(folder, 2, lambda step: train(folder, stop=step, **how))
            return first

        def start_from(folder):
            """Makes a run folder with the algorithms of the first run."""
            os.mkdir(self.path(folder))
            shutil.copy(self.path("one/algorithms.txt"), self.path(folder))

        one = try_all("one")
        found = self.choices(self.path("one/algorithms.txt"))
        self.assertGreater(len(found), 20)
        self.assertIn(shared + " (TRIREME_ALGORITHMS): ", self.log("one"))
        self.assertEqual(self.choices(shared), found)
        with self.subTest("another run"):
            two = train("two")
            self.assertGreater(one[0]["graphs"], two[0]["graphs"])
            self.assertEqual(two[0]["graphs"], two[1]["graphs"])
            self.assertNotIn("were chosen in", self.log("two"))
            self.assertEqual(self.choices(self.path("two/algorithms.txt")), found)
        with self.subTest("one thread builds all plans and chooses the same"):
            # Of equally fast algorithms, as all are here, the first one counts.
            cores = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {min(cores)})
            try:
                try_all("alone", file="")
            finally:
                os.sched_setaffinity(0, cores)
            self.assertEqual(self.choices(self.path("alone/algorithms.txt")), found)
            self.assertNotIn("TRIREME_ALGORITHMS", self.log("alone"))
        with self.subTest("a deterministic run ignores it"):
            pathlib.Path(shared).write_text("damaged")
            train("fixed", "--set", "run.deterministic=true")
            self.assertEqual(pathlib.Path(shared).read_text(), "damaged")
            self.assertNotIn(shared, self.log("fixed"))
        with self.subTest("another file is neither used nor replaced"):
            start_from("again")
            train("again")
            self.assertEqual(pathlib.Path(shared).read_text(), "damaged")
            self.assertIn(
                "(TRIREME_ALGORITHMS) was not written, other runs search these algorithms again: "
                + shared
                + ": line 1: not a list of algorithms",
                self.log("again"),
            )
        with self.subTest("a damaged line is written again"):
            lines = pathlib.Path(self.path("one/algorithms.txt")).read_text().splitlines(True)
            damaged = [lines[0], "x" + lines[1], *lines[2:]]
            pathlib.Path(shared).write_text("".join(damaged))
            start_from("damaged")
            train("damaged")
            self.assertEqual(self.choices(shared), found)
        with self.subTest("a file that cannot be written"):
            start_from("unwritable")
            train("unwritable", file=self.path("missing/shared.txt"))
            self.assertEqual(
                self.log("unwritable").count("(TRIREME_ALGORITHMS) was not written"), 1
            )
        with self.subTest("two runs at the same time"):
            os.remove(shared)
            start_from("first")
            runs = []
            for folder, deck in (("first", RESNET), ("second", GPT)):
                pathlib.Path(self.path(folder + ".toml")).write_text(deck)
                runs.append(
                    harness.start(
                        *("train", folder + ".toml", *BFLOAT16, "--set", "run.device=cuda"),
                        *("--set", "run.stop=2 steps", "--set", "run.folder=" + folder),
                        cwd=self.folder,
                        env={
                            "LD_PRELOAD": os.environ["STAND_IN_CUDA"],
                            "TRIREME_ALGORITHMS": shared,
                        },
                    )
                )
            for process in runs:
                text, _ = process.communicate(timeout=harness.PATIENCE)
                self.assertEqual(process.returncode, 0, text)
            found_by_second = self.choices(self.path("second/algorithms.txt"))
            self.assertGreater(len(found_by_second - found), 5)
            self.assertEqual(self.choices(shared), found | found_by_second)


if __name__ == "__main__":
    harness.main(at_once=2)
