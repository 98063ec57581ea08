# SPDX-License-Identifier: Apache-2.0
"""The fixture of the tests of the job scripts under slurm/.

Small programs replace the batch system and trireme, so no scheduler is needed.
"""

import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
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
  echo "$*" >>"$LOG/checks"
  grep -q bad "$2" && { echo "deck.toml:1:1: bad deck" >&2; exit 2; }
  printf 'run     tiny in %s\nmodel   none\n' "$RUN"
  exit 0
fi
if [ "$1" = doctor ]; then
  printf '%s\n' "$*" >>"$LOG/examinations"
  echo "problem  cores"
  exit "${SICK:-0}"
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


class Case(unittest.TestCase):
    """A test with its own folder, a deck with empty datasets, and the small programs."""

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
        for name in ("train", "validation"):
            os.makedirs(self.path("data", name))
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
