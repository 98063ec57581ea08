# SPDX-License-Identifier: Apache-2.0
"""Tests `cmake --install`: the installed tree may be moved, trains, and its job scripts find it."""

import os
import pathlib
import shutil
import subprocess
import unittest

import harness

BUILD = os.environ.get("TRIREME_BUILD", "")
CMAKE = os.environ.get("CMAKE", "cmake")
DEPS = str(pathlib.Path(__file__).resolve().parents[2] / ".deps")


class Install(harness.Case):
    @classmethod
    def setUpClass(cls):
        if not BUILD:
            harness.skip("TRIREME_BUILD does not name the build folder")
        super().setUpClass()
        subprocess.run(
            [CMAKE, "--install", BUILD, "--prefix", cls.shared + "/made/here"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        os.makedirs(cls.shared + "/moved to")  # the name has a space
        os.rename(cls.shared + "/made/here", cls.shared + "/moved to/there")
        cls.tree = cls.shared + "/moved to/there"
        cls.program = cls.tree + "/bin/trireme"

    def test_what_is_installed(self):
        for name in (
            "bin/trireme",
            "libexec/trireme",
            "share/trireme/slurm/train_64nodes.sh",
            "share/trireme/slurm/chain.sh",
            "share/trireme/slurm/lib/job.sh",
            "share/trireme/slurm/pbs/chain.sh",
            "share/trireme/slurm/sites/generic.sh",
            "share/trireme/inputs/smoke/mlp.toml",
            "share/trireme/machines/h100.toml",
            "share/trireme/README.md",
            "share/trireme/docs/contract.md",
            "share/trireme/LICENSE",
            "share/man/man1/trireme.1",
            "share/man/man1/trireme-train.1",
            "share/bash-completion/completions/trireme",
            "share/zsh/site-functions/_trireme",
        ):
            self.assertTrue(os.path.isfile(os.path.join(self.tree, name)), name)
        for name in ("train_64nodes.sh", "chain.sh", "pbs/chain.sh", "flux/chain.sh"):
            self.assertTrue(
                os.access(os.path.join(self.tree, "share/trireme/slurm", name), os.X_OK), name
            )

    def test_no_library_is_taken_from_the_place_of_the_build(self):
        libraries = subprocess.run(
            ["ldd", self.tree + "/libexec/trireme"], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        self.assertNotIn("not found", libraries)
        for line in libraries.splitlines():
            self.assertFalse(DEPS + "/" in line or os.path.realpath(DEPS) + "/" in line, line)

    def test_it_trains(self):
        result = subprocess.run(
            [harness.MPIEXEC, "-n", "2", self.program, "train", "deck.toml"],
            cwd=self.folder,
            env=harness.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=harness.PATIENCE,
        )
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertEqual(
            harness.last_by_step(harness.read_rows(self.path("run"), "train")).keys(),
            set(range(1, 21)),
        )

    def test_its_job_scripts_find_its_program(self):
        """Starts chain.sh and the job script, with small programs that replace Slurm's."""
        os.makedirs(self.path("bin"))
        for name, text in {
            "sbatch": 'printf "%s\\n" "$@" >job; echo 7',
            "scancel": "true",
            "scontrol": "false",
            "srun": (
                'while [[ $1 == -* ]]; do shift; done; [ $# -gt 0 ] || exit 1; echo "$1" '
                '>launched; exec "%s" -n 2 "$@"'
            )
            % harness.MPIEXEC,
        }.items():
            pathlib.Path(self.path("bin", name)).write_text("#!/bin/bash\n" + text + "\n")
            os.chmod(self.path("bin", name), 0o755)
        # Open MPI 5 and 6 would ask this Slurm for its nodes.
        environment = harness.environment(PRTE_MCA_ras="^slurm")
        environment.pop("TRIREME", None)
        environment["PATH"] = self.path("bin") + ":" + environment["PATH"]

        def call(*command, **more):
            result = subprocess.run(
                command,
                cwd=self.folder,
                env={**environment, **more},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=harness.PATIENCE,
            )
            self.assertEqual(result.returncode, 0, result.stdout)

        call(self.tree + "/share/trireme/slurm/chain.sh", "1", "deck.toml")
        words = pathlib.Path(self.path("job")).read_text().splitlines()
        at = next(i for i, word in enumerate(words) if word.endswith("train_64nodes.sh"))
        shutil.copy(words[at], self.path("slurm_script"))
        call("bash", self.path("slurm_script"), *words[at + 1 :], SLURM_JOB_ID="7")
        self.assertEqual(pathlib.Path(self.path("launched")).read_text().strip(), self.program)
        self.assertTrue(os.path.exists(self.path("run/checkpoints/step_000000020.h5")))


if __name__ == "__main__":
    unittest.main()
