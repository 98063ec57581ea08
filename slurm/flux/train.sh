#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# train.sh [--home SLURM-FOLDER] [--chain ID --folder RUN] [--site NAME] [DECK] [TRAIN OPTIONS...]:
# runs one job under Flux. slurm/flux/chain.sh submits it, or by hand:
#   flux batch -N64 --exclusive -t 12h slurm/flux/train.sh --home "$PWD/slurm" deck.toml
#
# The program asks `flux job timeleft` for the remaining time (run.walltime = "auto") and stops in
# time. Variables: TRIREME, TRIREME_DECK, TRIREME_SITE, TRIREME_TASKS_PER_NODE (8), TRIREME_LAUNCH,
# TRIREME_STAGE, OMP_NUM_THREADS.
set -uo pipefail
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# flux batch runs a copy of this script, so --home names the folder of the original.
[ "${1:-}" != --home ] || home=$(cd "$2" && pwd) || exit
# shellcheck source=slurm/lib/job.sh
. "$home/lib/job.sh"

read_arguments "$@"
use_site "$site"
program=$(find_program) || exit
nodes=$(flux getattr size) || exit
job=$(flux getattr jobid) || exit
site_setup
each_node=(flux run -N "$nodes" --tasks-per-node=1 --exclusive)
if [ -n "${TRIREME_LAUNCH:-}" ]; then
  read -r -a launch <<<"$TRIREME_LAUNCH"
else
  # Every rank sees all GPUs of its node and uses the one with its local rank.
  launch=(
    flux run -N "$nodes" --tasks-per-node="${TRIREME_TASKS_PER_NODE:-8}" --exclusive
    -o gpu-affinity=off "${site_launch[@]}"
  )
fi
# The jobs of the chain belong to the parent of this job's Flux instance.
flux_cancel() { FLUX_URI=$(flux getattr parent-uri) flux cancel "$@"; }
run_job flux_cancel -- "${launch[@]}"
