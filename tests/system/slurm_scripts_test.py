"""Tests the decisions of the job scripts under slurm/.

Small programs replace the batch system and trireme, so no scheduler is needed.
"""

import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

SLURM = os.environ.get("TRIREME_SLURM_FOLDER") or str(
    pathlib.Path(__file__).resolve().parents[2] / "slurm"
)

# Each line of the file `plan` is one start of the program. CODE [STEP]: writes a checkpoint of that
# step first. `kill`: killed during training. `early CODE`: exits before the run folder is opened.
# `stop STEP`: stopped by a file STOP. `taken`: refused, while another job uses the folder and
# writes to its log. `torn STEP`: exit.json is cut short.
TRIREME = r"""#!/bin/bash
if [ "$1" = check ]; then
  grep -q bad "$2" && { echo "deck.toml:1:1: bad deck" >&2; exit 2; }
  printf 'run     tiny in %s\nmodel   none\n' "$RUN"
  exit 0
fi
printf '%s\n' "$*" >>"$LOG/starts"
read -r code step <"$LOG/plan"
sed -i 1d "$LOG/plan"
[ "$code" = early ] && exit "$step"
[ "$code" = taken ] && { echo "of another job" >>"$RUN/log.txt"; exit 2; }
mkdir -p "$RUN/checkpoints"
rm -f "$RUN/exit.json"
echo started >>"$RUN/log.txt"
[ -z "$step" ] || touch "$(printf '%s/checkpoints/step_%09d.h5' "$RUN" "$step")"
case $code in
  kill) kill -9 $$ ;;
  torn) printf '{\n  "start": "no' >"$RUN/exit.json"; exit 75 ;;
  stop) touch "$RUN/STOP"; code=75 ;;
  wait)
    trap 'code=75' USR1
    trap 'touch "$LOG/reported"' USR2
    touch "$LOG/waiting"
    until [ "$code" = 75 ] || [ ! -e "$LOG" ]; do sleep 0.05; done
    ;;
esac
printf '{\n  "start": "now",\n  "code": %d,\n  "reason": "test"\n}\n' "$code" >"$RUN/exit.json.tmp"
mv "$RUN/exit.json.tmp" "$RUN/exit.json"
exit "$code"
"""
SUBMIT = r"""#!/bin/bash
n=$(($(cat "$LOG/jobs" 2>/dev/null || echo 0) + 1))
[ "$n" != "${REFUSED:-}" ] || { echo "error: too many jobs" >&2; exit 1; }
[ "$n" != "${SILENT:-}" ] || exit 0
[ -z "${GREETING:-}" ] || echo "$GREETING"
echo $n >"$LOG/jobs"
printf '%q ' "$@" >"$LOG/job.$n"
[ "$(basename "$0")" != qsub ] || cat >"$LOG/script.$n"
echo "$n$SUFFIX"
"""
CANCEL = '#!/bin/bash\nprintf "%s\\n" "$@" >>"$LOG/cancelled"\n'
LAUNCH = r"""#!/bin/bash
printf '%s\n' "$*" >>"$LOG/launches"
while [ $# -gt 0 ] && [[ $1 == -* || $1 =~ ^[0-9]+$ || $1 == run || $1 == gpu-affinity=off ]]; do
  shift
done
exec "$@"
"""


class Scripts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="trireme-test-")
        self.run_folder = self.path("runs/tiny")
        os.makedirs(self.path("bin"))
        for name, text in {
            "trireme": TRIREME,
            "sbatch": SUBMIT,
            "qsub": SUBMIT,
            "scancel": CANCEL,
            "qdel": CANCEL,
            "srun": LAUNCH,
            "mpiexec": LAUNCH,
            "scontrol": "#!/bin/bash\nexit 1\n",
        }.items():
            with open(self.path("bin", name), "w") as file:
                file.write(text)
            os.chmod(self.path("bin", name), 0o755)
        with open(self.path("deck.toml"), "w") as file:
            file.write(
                '[data]\ntrain = "data/train" # a comment\nvalidation = \'data/validation\'\n'
            )
        self.environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SLURM_", "SBATCH_", "TRIREME", "PBS_", "FLUX_"))
        }
        self.environment.update(
            PATH=self.path("bin") + ":" + os.environ["PATH"],
            LOG=self.folder,
            RUN=self.run_folder,
            TRIREME=self.path("bin/trireme"),
            SUFFIX="",
        )

    def tearDown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def text(self, name):
        return pathlib.Path(self.path(name)).read_text() if os.path.exists(self.path(name)) else ""

    def call(self, *command, expect=0, **environment):
        result = subprocess.run(
            command,
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        if expect is not None:
            self.assertEqual(result.returncode, expect, result.stdout)
        return result

    def plan(self, *starts):
        pathlib.Path(self.path("plan")).write_text("".join(start + "\n" for start in starts))

    def chain(self, jobs, *options, expect=0, deck="deck.toml", **environment):
        return self.call(
            SLURM + "/chain.sh", str(jobs), deck, *options, expect=expect, **environment
        )

    def jobs(self):
        """Returns the command-line words of each submitted job."""
        return [
            shlex.split(self.text("job.%d" % n)) for n in range(1, int(self.text("jobs") or 0) + 1)
        ]

    def run_chain(self, *starts, jobs=8):
        """Submits a chain and runs its jobs one after another, like a scheduler. Returns their exit
        statuses."""
        self.plan(*starts)
        self.chain(jobs)
        return self.run_jobs()

    def run_jobs(self, first=1, last=1000):
        statuses = []
        for number, words in enumerate(self.jobs(), 1):
            if not first <= number <= last or str(number) in self.text("cancelled").split():
                continue
            at = next(i for i, word in enumerate(words) if word.endswith("train_64nodes.sh"))
            copy = self.path("slurm_script")  # Slurm runs a copy
            shutil.copy(words[at], copy)
            statuses.append(
                self.call(
                    "bash",
                    copy,
                    *words[at + 1 :],
                    expect=None,
                    SLURM_JOB_ID=str(number),
                    SLURM_CPUS_PER_TASK="3"
                ).returncode
            )
        return statuses

    def starts(self):
        return len(self.text("starts").splitlines())

    def test_a_chain_goes_on_until_the_run_is_done(self):
        self.assertEqual(self.run_chain("75 100", "kill 200", "77 300", "0 400"), [75, 137, 77, 0])
        self.assertEqual(self.starts(), 4)
        self.assertEqual(self.text("cancelled").split(), ["5", "6", "7", "8"])
        log = self.text("runs/tiny/chain.log")
        self.assertEqual(
            [line.split("code=")[1] for line in log.splitlines() if " end " in line],
            ["75", "lost", "77", "0"],
        )

    def test_a_launchers_status_for_a_killed_rank_is_a_loss(self):
        """The rank may also be killed before it opened the log."""
        self.assertEqual(self.run_chain("75 100", "early 9", "early 137", "0 200"), [75, 9, 137, 0])

    def test_each_job_waits_for_the_one_before_it(self):
        result = self.chain(3, "--nodes=2", "--", "--set", "batch.global=64")
        words = self.jobs()
        self.assertEqual(
            [[word for word in job if word.startswith("--dependency")] for job in words],
            [[], ["--dependency=afterany:1"], ["--dependency=afterany:2"]],
        )
        for job in words:
            self.assertIn("--nodes=2", job)
            self.assertEqual(job[-3:], ["deck.toml", "--set", "batch.global=64"])
        self.assertIn("touch %s/STOP" % self.run_folder, result.stdout)

    def test_what_needs_a_person_ends_the_chain(self):
        for code in (1, 2, 76):
            with self.subTest(code=code):
                self.tearDown()
                self.setUp()
                self.assertEqual(self.run_chain("75 100", str(code)), [75, code])
                self.assertEqual(self.text("cancelled").split(), ["3", "4", "5", "6", "7", "8"])

    def test_a_file_written_anew_within_the_second_is_a_new_one(self):
        """The file system reuses the inode of a removed file at once."""
        marks = self.call(
            "bash",
            "-c",
            ". %s/lib/chain.sh; for at in 25 75; do touch -d 2026-01-01T00:00:00.$at exit.json; "
            "chain_mark exit.json; done" % SLURM,
        ).stdout.split()
        self.assertEqual(len(set(marks)), 2, marks)

    def test_a_program_that_does_not_get_to_the_run_folder_is_judged_by_its_status(self):
        """exit.json is then that of an earlier start, and is ignored."""
        self.assertEqual(self.run_chain("75 100", "early 2"), [75, 2])
        self.assertEqual(self.starts(), 2)

    def test_an_exit_record_that_says_nothing_counts_as_none(self):
        self.assertEqual(self.run_chain("torn 100", "0 200"), [75, 0])

    def test_a_start_that_another_job_refuses_ends_its_own_chain(self):
        """The log grows meanwhile, but the other job writes it: the program was not lost."""
        self.assertEqual(self.run_chain("75 100", "taken"), [75, 2])
        self.assertEqual(self.starts(), 2)

    def test_a_run_folder_that_was_moved_is_not_begun_anew(self):
        self.plan("75 100", "0 200")
        self.chain(4)
        self.assertEqual(self.run_jobs(1, 1), [75])
        os.rename(self.run_folder, self.run_folder + ".old")
        self.assertEqual(self.run_jobs(2, 2), [2])
        self.assertFalse(os.path.exists(self.run_folder))
        os.rename(self.run_folder + ".old", self.run_folder)
        self.assertEqual(self.run_jobs(3, 3), [0])

    def test_a_log_of_the_chain_that_cannot_be_written_starts_nothing(self):
        self.plan("0 100")
        self.chain(1)
        chain = self.text("runs/tiny/chain.log").split("chain=")[1].split()[0]
        script = (
            '. %s/lib/chain.sh; chain_write() { return 1; }; chain_begin "$1" "$2" 1 || echo '
            '"$chain_code: $chain_reason"'
        )
        self.assertRegex(
            self.call("bash", "-uc", script % SLURM, "begin", self.run_folder, chain).stdout,
            r"^1: .*chain.log cannot be written",
        )

    def test_other_names_beside_the_checkpoints_do_not_count(self):
        os.makedirs(self.path("runs/tiny/checkpoints"))
        for name in (
            "step_000000900_copy.h5",
            "step_last.h5",
            "step_.h5",
            "step_000000008.h5.damaged",
        ):
            pathlib.Path(self.path("runs/tiny/checkpoints", name)).touch()
        self.assertEqual(
            self.run_chain("75 8", "75 999999999", "75 1000000000", "0 1000000001"), [75, 75, 75, 0]
        )
        begun = [
            line.split("newest=")[1].split()[0]
            for line in self.text("runs/tiny/chain.log").splitlines()
            if " begin " in line
        ]
        self.assertEqual(begun, ["none", "8", "999999999", "1000000000"])

    def test_names_with_blanks(self):
        self.run_folder = self.environment["RUN"] = self.path("runs/zwei Wörter")
        os.rename(self.path("deck.toml"), self.path("my deck.toml"))
        self.plan("75 100", "0 200")
        self.chain(3, "--", "--set", "run.folder=" + self.run_folder, deck="my deck.toml")
        self.assertEqual(self.run_jobs(), [75, 0])
        self.assertIn("code=0", self.text("runs/zwei Wörter/chain.log"))
        self.assertEqual(self.text("cancelled").split(), ["3"])

    def test_jobs_that_the_batch_system_does_not_take_are_told(self):
        self.assertIn("nothing is submitted", self.chain(3, expect=1, REFUSED="1").stdout)
        self.assertIn("nothing is submitted", self.chain(3, expect=1, SILENT="1").stdout)
        for reason in ("REFUSED", "SILENT"):
            with self.subTest(reason):
                self.tearDown()
                self.setUp()
                self.assertIn(
                    "no more than 2 of 5 jobs", self.chain(5, expect=1, **{reason: "3"}).stdout
                )
                self.plan("75 100", "75 200")
                self.assertEqual(self.run_jobs(), [75, 75])  # these two are in the queue

    def test_what_a_site_prints_before_the_number_of_a_job_is_none(self):
        self.chain(2, GREETING="Welcome to the machine")
        self.assertIn("--dependency=afterany:1", self.jobs()[1])

    def test_three_starts_without_a_checkpoint_end_the_chain(self):
        self.assertEqual(
            self.run_chain("75 100", "kill", "kill", "kill", "kill"), [75, 137, 137, 137, 1]
        )
        self.assertEqual(self.starts(), 4)
        self.assertEqual(self.text("cancelled").split(), ["6", "7", "8"])

    def test_three_starts_without_a_checkpoint_end_a_chain_that_never_had_one(self):
        self.assertEqual(self.run_chain("kill", "77", "kill", "kill"), [137, 77, 137, 1])
        self.assertEqual(self.starts(), 3)

    def test_a_checkpoint_in_between_is_a_new_beginning(self):
        self.assertEqual(
            self.run_chain("kill", "kill 10", "kill", "kill", "kill 20", "0 30"),
            [137, 137, 137, 137, 137, 0],
        )

    def test_a_job_that_vanished_with_its_script_is_lost(self):
        """Nobody logged its end: the next job finds a `begin` without an `end`."""
        self.plan("75 100", "0 200")
        self.chain(3)
        chain = self.text("runs/tiny/chain.log").split("chain=")[1].split()[0]
        with open(self.path("runs/tiny/chain.log"), "a") as file:
            file.write(
                "2000-01-01T00:00:00Z chain=%s begin job=0 newest=none exit=- log=-\n" % chain
            )
        self.assertEqual(self.run_jobs(), [75, 0])

    def test_a_job_that_vanished_after_the_last_step_starts_nothing_more(self):
        self.plan()
        self.chain(2)
        chain = self.text("runs/tiny/chain.log").split("chain=")[1].split()[0]
        with open(self.path("runs/tiny/chain.log"), "a") as file:
            file.write(
                "2000-01-01T00:00:00Z chain=%s begin job=0 newest=none exit=- log=-\n" % chain
            )
        pathlib.Path(self.path("runs/tiny/exit.json")).write_text(
            json.dumps({"start": "x", "code": 0, "reason": ""}, indent=2)
        )
        self.assertEqual(self.run_jobs(), [0])
        self.assertEqual(self.starts(), 0)

    def test_a_stop_file_ends_the_chain_and_refuses_another(self):
        self.assertEqual(self.run_chain("75 100", "stop 200"), [75, 75])
        self.assertEqual(self.text("cancelled").split(), ["3", "4", "5", "6", "7", "8"])
        submitted = self.text("jobs")
        self.assertIn("STOP", self.chain(2, expect=2).stdout)
        self.assertEqual(self.text("jobs"), submitted)

    def test_a_stop_file_made_in_the_queue_starts_nothing(self):
        self.plan("0 100")
        self.chain(2)
        pathlib.Path(self.path("runs/tiny/STOP")).touch()
        self.assertEqual(self.run_jobs(), [75])
        self.assertEqual(self.starts(), 0)

    def test_an_older_chain_in_the_same_folder_does_not_count(self):
        self.run_chain("kill", "kill", "kill", "kill")
        for name in ("jobs", "cancelled", "starts"):
            os.remove(self.path(name))
        self.assertEqual(self.run_chain("0 10"), [0])

    def test_a_bad_deck_is_found_before_the_queue(self):
        pathlib.Path(self.path("deck.toml")).write_text("bad")
        self.assertIn("bad deck", self.chain(2, expect=2).stdout)
        self.assertEqual(self.text("jobs"), "")

    def test_wrong_words_are_told(self):
        for words, part in (
            (("many", "deck.toml"), "how many jobs"),
            (("3",), "which deck"),
            (("3", "nodeck.toml"), "no such deck"),
        ):
            self.assertIn(part, self.call(SLURM + "/chain.sh", *words, expect=2).stdout)
        self.assertIn(
            "perlmutter",
            self.call(
                SLURM + "/chain.sh", "3", "deck.toml", expect=2, TRIREME_SITE="nowhere"
            ).stdout,
        )

    def test_the_job_asks_srun_for_what_it_needs(self):
        self.assertEqual(self.run_chain("0 100", jobs=1), [0])
        launch = self.text("launches")
        for word in ("--kill-on-bad-exit=1", "--gpu-bind=none"):
            self.assertIn(word, launch)

    def test_a_signal_to_the_job_reaches_the_program(self):
        self.plan("wait 100")
        process = subprocess.Popen(
            [SLURM + "/train_64nodes.sh", "deck.toml"],
            cwd=self.folder,
            env={**self.environment, "SLURM_JOB_ID": "7"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while not os.path.exists(self.path("waiting")) and process.poll() is None:
            time.sleep(0.01)
        # SIGUSR2 is passed on and ends nothing.
        process.send_signal(signal.SIGUSR2)
        while not os.path.exists(self.path("reported")) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGUSR1)
        text, _ = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 75, text)

    def test_a_site_gives_options_that_the_command_line_overrides(self):
        self.call(
            SLURM + "/chain.sh",
            "1",
            "deck.toml",
            "--cpus-per-task=4",
            TRIREME_SITE="perlmutter",
            TRIREME_NODES="3",
        )
        words = self.jobs()[0]
        self.assertIn("--constraint=gpu", words)
        self.assertIn("--nodes=3", words)
        # Sbatch uses the last of equal options.
        self.assertLess(words.index("--cpus-per-task=32"), words.index("--cpus-per-task=4"))
        self.assertEqual(words[words.index("--site") + 1], "perlmutter")

    def test_outside_a_job_the_job_script_submits_itself(self):
        self.call(
            SLURM + "/train_64nodes.sh",
            "deck.toml",
            TRIREME_NODES="2",
            TRIREME_SITE="leonardo_booster",
        )
        words = self.jobs()[0]
        self.assertIn("--nodes=2", words)
        self.assertIn("--partition=boost_usr_prod", words)
        self.assertEqual(words[-1], "deck.toml")

    def test_data_are_staged_and_the_run_reads_them_there(self):
        for name in ("train", "validation"):
            os.makedirs(self.path("data", name))
            pathlib.Path(self.path("data", name, "a.h5")).write_text(name)
        self.plan("0 100")
        stage = self.path("disk")
        seen = self.path("seen")
        program = self.path("bin/trireme")
        text = (
            pathlib.Path(program)
            .read_text()
            .replace(
                "read -r code", 'cat "%s"/trireme-9/*/a.h5 >"%s"\nread -r code' % (stage, seen), 1
            )
        )
        pathlib.Path(program).write_text(text)
        self.call(
            SLURM + "/train_64nodes.sh",
            "deck.toml",
            "--set",
            "data.train=data/train",
            "--set",
            "run.seed=3",
            SLURM_JOB_ID="9",
            TRIREME_STAGE=stage,
        )
        self.assertEqual(self.text("seen"), "trainvalidation")
        self.assertEqual(
            self.text("starts").split(),
            [
                "train",
                "deck.toml",
                "--set",
                "run.seed=3",
                "--set",
                "data.train=%s/trireme-9/train" % stage,
                "--set",
                "data.validation=%s/trireme-9/validation" % stage,
            ],
        )
        self.assertFalse(os.path.exists(stage + "/trireme-9"))

    def test_a_signal_while_data_are_copied_ends_the_job_in_order(self):
        os.makedirs(self.path("data/train"))
        pathlib.Path(self.path("data/train/a.h5")).touch()
        launch = pathlib.Path(self.path("bin/srun"))
        launch.write_text(
            launch.read_text().replace("exec ", '[ "$4" != stage ] || kill -USR1 $PPID\nexec ', 1)
        )
        self.plan("0 100")
        result = self.call(
            SLURM + "/train_64nodes.sh",
            "deck.toml",
            expect=75,
            SLURM_JOB_ID="9",
            TRIREME_STAGE=self.path("disk"),
        )
        self.assertIn("before the program has started", result.stdout)
        self.assertEqual(self.starts(), 0)
        self.assertEqual(os.listdir(self.path("disk")), [])

    def test_data_that_do_not_fit_stay_where_they_are(self):
        os.makedirs(self.path("data/train"))
        self.plan("0 100")
        pathlib.Path(self.path("bin/df")).write_text("#!/bin/sh\nprintf 'Avail\\n5\\n'\n")
        os.chmod(self.path("bin/df"), 0o755)
        result = self.call(
            SLURM + "/train_64nodes.sh",
            "deck.toml",
            SLURM_JOB_ID="9",
            TRIREME_STAGE=self.path("disk"),
        )
        self.assertIn("stays where it is", result.stdout)
        self.assertEqual(self.text("starts").split(), ["train", "deck.toml"])

    def test_pbs(self):
        pathlib.Path(self.path("nodes")).write_text("a\na\nb\nb\n")
        self.plan("75 100", "0 200")
        self.call(
            SLURM + "/pbs/chain.sh",
            "3",
            "deck.toml",
            "-l",
            "select=2:mpiprocs=2",
            "-l",
            "walltime=1:00:00",
            "--",
            "--set",
            "run.name=a b",
            SUFFIX=".server",
        )
        self.assertIn("depend=afterany:1.server", self.jobs()[1])
        self.assertIn("walltime=1:00:00", self.jobs()[0])
        statuses = []
        for number in (1, 2):
            statuses.append(
                self.call(
                    "bash",
                    self.path("script.%d" % number),
                    expect=None,
                    PBS_JOBID="%d.server" % number,
                    PBS_NODEFILE=self.path("nodes"),
                ).returncode
            )
        self.assertEqual(statuses, [75, 0])
        self.assertEqual(self.text("launches").split()[:2], ["-n", "4"])
        self.assertIn("--set run.name=a b", self.text("starts"))
        self.assertEqual(self.text("cancelled").split(), ["3.server"])

    def test_flux(self):
        pathlib.Path(self.path("bin/flux")).write_text(r"""#!/bin/bash
case "$1 $2" in
  "getattr size") echo 2 ;;
  "getattr jobid") echo "$FLUX_TEST_JOB" ;;
  "getattr parent-uri") echo local:///parent ;;
  cancel*) echo "$FLUX_URI" >>"$LOG/parent"; shift; exec scancel "$@" ;;
  batch*) shift; exec sbatch "$@" ;;
  run*) exec srun "$@" ;;
esac
""")
        os.chmod(self.path("bin/flux"), 0o755)
        self.plan("75 100", "0 200")
        self.call(SLURM + "/flux/chain.sh", "3", "deck.toml", "-N2", "-t", "1h", SUFFIX="f")
        jobs = self.jobs()
        self.assertIn("--dependency=afterany:1f", jobs[1])
        statuses = []
        for number in (1, 2):
            words = jobs[number - 1]
            at = next(i for i, word in enumerate(words) if word.endswith("train.sh"))
            statuses.append(
                self.call(
                    "bash",
                    words[at],
                    *words[at + 1 :],
                    expect=None,
                    FLUX_TEST_JOB="%df" % number,
                    FLUX_URI="local:///job",
                    TRIREME_TASKS_PER_NODE="4"
                ).returncode
            )
        self.assertEqual(statuses, [75, 0])
        self.assertIn("run -N 2 --tasks-per-node=4", self.text("launches"))
        self.assertEqual(self.text("cancelled").split(), ["3f"])
        self.assertEqual(self.text("parent").split(), ["local:///parent"])


if __name__ == "__main__":
    unittest.main()
