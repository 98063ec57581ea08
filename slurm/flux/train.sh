#!/usr/bin/env bash
# train.sh [--home SLURM-FOLDER] [--chain ID --folder RUN] [--site NAME] DECK [TRAIN OPTIONS...]: one job of a run under Flux; chain.sh submits it, or
#   flux batch -N64 --exclusive -t 12h slurm/flux/train.sh --home "$PWD/slurm" deck.toml
#
# The program asks `flux job timeleft` (run.walltime = "auto") and stops in time by its own clock.
# Variables: TRIREME, TRIREME_DECK, TRIREME_SITE, TRIREME_TASKS_PER_NODE (8), TRIREME_LAUNCH, TRIREME_STAGE, OMP_NUM_THREADS.
set -uo pipefail
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ "${1:-}" != --home ] || home=$(cd "$2" && pwd) || exit # flux batch runs a copy
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
else # every rank sees all GPUs of its node and takes that of its local rank
  launch=(flux run -N "$nodes" --tasks-per-node="${TRIREME_TASKS_PER_NODE:-8}" --exclusive -o gpu-affinity=off "${site_launch[@]}")
fi
flux_cancel() { FLUX_URI=$(flux getattr parent-uri) flux cancel "$@"; } # the chain's jobs are those of the instance around this one
run_job flux_cancel -- "${launch[@]}"
