#!/usr/bin/env bash
# train.sh --home SLURM-FOLDER [--chain ID --folder RUN] [--site NAME] DECK [TRAIN OPTIONS...]: one job of a run under PBS Pro, OpenPBS or Torque. chain.sh submits it;
# by hand, inside a job script: slurm/pbs/train.sh --home slurm deck.toml
#
# PBS has no signal before the time limit: the program asks qstat how long the job may run (run.walltime = "auto") and stops in time by its own clock.
# Variables: TRIREME, TRIREME_DECK, TRIREME_SITE, TRIREME_LAUNCH (default: mpiexec with a rank a line of PBS_NODEFILE, thus select=...:mpiprocs=RANKS), TRIREME_STAGE
# together with TRIREME_EACH_NODE (a command that runs another once on every node, as in "mpiexec --map-by ppr:1:node"), OMP_NUM_THREADS.
set -uo pipefail
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ "${1:-}" != --home ] || home=$(cd "$2" && pwd) || exit
# shellcheck source=slurm/lib/job.sh
. "$home/lib/job.sh"

read_arguments "$@"
use_site "$site"
program=$(find_program) || exit
job=${PBS_JOBID:?this is the script of a PBS job}
site_setup
each_node=()
[ -z "${TRIREME_EACH_NODE:-}" ] || read -r -a each_node <<<"$TRIREME_EACH_NODE"
if [ -n "${TRIREME_LAUNCH:-}" ]; then
  read -r -a launch <<<"$TRIREME_LAUNCH"
else
  launch=(mpiexec -n "$(wc -l <"$PBS_NODEFILE")" "${site_launch[@]}")
fi
run_job qdel -- "${launch[@]}"
