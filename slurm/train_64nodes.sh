#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
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
# train_64nodes.sh [--site NAME] [DECK] [TRAIN OPTIONS...]: runs one job of a run on 64 nodes with 8
# GPUs each, with one rank for each GPU. Without a deck it trains ResNet-50 on ImageNet
# (inputs/recipes/resnet50_large_batch.toml beside the folder of this script).
#
# As a batch job:
#   sbatch slurm/train_64nodes.sh
#   sbatch slurm/train_64nodes.sh deck.toml
#   sbatch --nodes=4 --account=me --partition=gpu --time=2:00:00 slurm/train_64nodes.sh deck.toml \
#     --set batch.global=2048
# On a partition without GPUs:
#   sbatch --gpus-per-node=0 --ntasks-per-node=2 slurm/train_64nodes.sh deck.toml
# Outside a job the script submits itself with the options of the site:
#   TRIREME_NODES=4 TRIREME_SITE=perlmutter slurm/train_64nodes.sh deck.toml
# As many jobs as the run needs, ten at most:
#   slurm/chain.sh 10 deck.toml
#
# Options of sbatch on the command line override the #SBATCH lines above, as do Slurm's own
# variables (SBATCH_ACCOUNT, SBATCH_PARTITION, SBATCH_TIMELIMIT, ...).
#
# Variables:
#   TRIREME          path of the program
#   TRIREME_DECK     the deck, if the command line names none
#   TRIREME_NODES    number of nodes
#   TRIREME_SITE     a file of slurm/sites/ (or a path) with options and modules of the machine
#   TRIREME_LAUNCH   another launcher, as in "srun --mpi=pmix"
#   TRIREME_STAGE    a folder on a local disk of each node: the datasets are copied there first
#   TRIREME_DOCTOR   report: trireme doctor examines the nodes first; strict: and a problem ends the
#                    job with 1
#   OMP_NUM_THREADS  threads of each rank
#
# The exit status is that of the program: 0 done; 75 stopped early with a checkpoint, submit the
# same again; 1, 2, 76, 77: see docs/guides/batch_systems.md. If the folder of a dataset is missing,
# the job ends with 2 at once and prints the commands that make it, which the deck names.
#
# GPUs are requested for each node and not bound to tasks. The ranks of a node then see each other's
# GPUs, which NCCL and MPI require, and each uses the GPU of its local rank. --signal=B: signals
# only this script, which passes the signal on once the program can handle it. Slurm may send it up
# to a minute early.
set -uo pipefail

# Slurm runs a copy of this script in its spool folder. chain.sh (--home) or Slurm itself names the
# folder of the original.
home=''
find_home() {
  local place
  for place in "$@"; do
    if [ -e "$place/lib/job.sh" ]; then
      home=$(cd "$place" && pwd)
      return
    fi
  done
  echo "train_64nodes.sh: the folder lib/ beside this script is not found;" \
    "let TRIREME_SLURM name the folder slurm/" >&2
  exit 2
}
[ "${1:-}" != --home ] || TRIREME_SLURM=$2
original=''
if [ -n "${SLURM_JOB_ID:-}" ]; then
  original=$(
    scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/^ *Command=\([^ ]*\).*/\1/p'
  )
fi
find_home "${TRIREME_SLURM:-/nowhere}" "$(dirname "${BASH_SOURCE[0]}")" \
  "$(dirname "${original:-/nowhere/script}")" "${SLURM_SUBMIT_DIR:-.}/slurm"
# shellcheck source=slurm/lib/job.sh
. "$home/lib/job.sh"

read_arguments "$@"
use_site "$site"
if [ -z "${SLURM_JOB_ID:-}" ]; then
  exec sbatch "${site_submit[@]}" ${TRIREME_NODES:+"--nodes=$TRIREME_NODES"} \
    "$home/train_64nodes.sh" --home "$home" "$@"
fi
program=$(find_program) || exit
job=$SLURM_JOB_ID

# With a site's --export=NONE the ranks would not get this environment.
export SLURM_EXPORT_ENV=ALL
# Since Slurm 22.05 srun no longer takes over --cpus-per-task of sbatch.
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then
  export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-$SLURM_CPUS_PER_TASK}
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}
fi
site_setup

launch=(srun)
[ -z "${TRIREME_LAUNCH:-}" ] || read -r -a launch <<<"$TRIREME_LAUNCH"
each_node=(srun --ntasks="${SLURM_JOB_NUM_NODES:-1}" --ntasks-per-node=1)
if [ "${launch[0]}" = srun ]; then
  # A failed rank ends all ranks at once. Otherwise they would wait in a collective until the time
  # limit.
  launch+=(--kill-on-bad-exit=1 --gpu-bind=none "${site_launch[@]}")
fi
run_job scancel -- "${launch[@]}"
