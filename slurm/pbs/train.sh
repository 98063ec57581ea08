#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# train.sh --home SLURM-FOLDER [--chain ID --folder RUN] [--site NAME] [DECK] [TRAIN OPTIONS...]:
# runs one job under PBS Pro, OpenPBS or Torque. slurm/pbs/chain.sh submits it. By hand, inside a
# job script:
#   slurm/pbs/train.sh --home slurm deck.toml
#
# PBS sends no signal before the time limit. The program asks qstat for the remaining time
# (run.walltime = "auto") and stops in time.
#
# Variables: TRIREME, TRIREME_DECK, TRIREME_SITE, TRIREME_STAGE, OMP_NUM_THREADS, and
#   TRIREME_LAUNCH     the launcher. Default: mpiexec with one rank for each line of PBS_NODEFILE,
#                      so request select=...:mpiprocs=RANKS
#   TRIREME_EACH_NODE  needed by TRIREME_STAGE: a command that runs another one once on every node,
#                      as in "mpiexec --map-by ppr:1:node"
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
