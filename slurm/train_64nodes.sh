#!/usr/bin/env bash
#SBATCH --job-name=trireme
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
#
# train_64nodes.sh [--site NAME] DECK [TRAIN OPTIONS...]: one job of one run on 64 nodes of 8 GPUs; a rank a GPU.
#
#   sbatch slurm/train_64nodes.sh deck.toml
#   sbatch --nodes=4 --account=me --partition=gpu --time=2:00:00 slurm/train_64nodes.sh deck.toml --set batch.global=2048
#   sbatch --gpus-per-node=0 --ntasks-per-node=2 ...                     # a partition without GPUs
#   TRIREME_NODES=4 TRIREME_SITE=perlmutter slurm/train_64nodes.sh deck.toml     # outside a job: submits itself with the options of the site
#   slurm/chain.sh 10 deck.toml                                          # as many jobs as it takes, ten at most
#
# Whatever sbatch is told on its command line rules over the lines above, as do Slurm's own variables (SBATCH_ACCOUNT, SBATCH_PARTITION, SBATCH_TIMELIMIT, ...).
# Ours: TRIREME (the program), TRIREME_DECK, TRIREME_NODES, TRIREME_SITE, TRIREME_LAUNCH ("srun --mpi=pmix": another launcher), TRIREME_STAGE (a folder on a disk
# of each node: the data are copied there first), OMP_NUM_THREADS.
# Ends with the program's exit status: 0 done; 75 stopped early with a checkpoint, submit the same again; 1, 2, 76, 77: docs/slurm.md.
#
# Why these options: GPUs are asked for by node and not bound to tasks, since the ranks of a node then see each other's (NCCL and MPI want that) and the program
# takes the one of its local rank. B: signals this script alone, which passes it on when the program can act on it; Slurm may be up to a minute early.
set -uo pipefail

# Slurm runs a copy of this script from its spool folder: where the original is, chain.sh or Slurm itself says.
home=''
find_home() {
  local place
  for place in "$@"; do
    if [ -e "$place/lib/job.sh" ]; then
      home=$(cd "$place" && pwd)
      return
    fi
  done
  echo "train_64nodes.sh: the folder lib/ beside this script is not found; let TRIREME_SLURM name the folder slurm/" >&2
  exit 2
}
[ "${1:-}" != --home ] || TRIREME_SLURM=$2
original=''
[ -z "${SLURM_JOB_ID:-}" ] || original=$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/^ *Command=\([^ ]*\).*/\1/p')
find_home "${TRIREME_SLURM:-/nowhere}" "$(dirname "${BASH_SOURCE[0]}")" "$(dirname "${original:-/nowhere/script}")" "${SLURM_SUBMIT_DIR:-.}/slurm"
# shellcheck source=slurm/lib/job.sh
. "$home/lib/job.sh"

read_arguments "$@"
use_site "$site"
if [ -z "${SLURM_JOB_ID:-}" ]; then
  exec sbatch "${site_submit[@]}" ${TRIREME_NODES:+"--nodes=$TRIREME_NODES"} "$home/train_64nodes.sh" --home "$home" "$@"
fi
program=$(find_program) || exit
job=$SLURM_JOB_ID

export SLURM_EXPORT_ENV=ALL                                # a site's --export=NONE would leave the ranks without our environment
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then                 # srun stopped taking it over from sbatch with Slurm 22.05
  export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-$SLURM_CPUS_PER_TASK}
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}
fi
site_setup

launch=(srun)
[ -z "${TRIREME_LAUNCH:-}" ] || read -r -a launch <<<"$TRIREME_LAUNCH"
each_node=(srun --ntasks="${SLURM_JOB_NUM_NODES:-1}" --ntasks-per-node=1)
if [ "${launch[0]}" = srun ]; then # one rank that fails ends all at once, instead of leaving the others in a collective until the time is up
  launch+=(--kill-on-bad-exit=1 --gpu-bind=none "${site_launch[@]}")
fi
run_job scancel -- "${launch[@]}"
