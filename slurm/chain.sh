#!/usr/bin/env bash
# chain.sh N DECK [SBATCH OPTIONS...] [-- TRAIN OPTIONS...]: a run that is longer than a job may be: N jobs at most, each going on from the checkpoint of the last.
#
#   slurm/chain.sh 10 deck.toml
#   slurm/chain.sh 10 deck.toml --nodes=4 --account=me -- --set checkpoint.every="30 minutes"
#   TRIREME_SITE=perlmutter TRIREME_NODES=4 slurm/chain.sh 10 deck.toml --account=m1234_g
#
# The jobs are submitted at once, each to start when the one before it has ended in whatever way. What became of that one is read from exit.json in the run folder,
# then from its exit status:
#   0                        the run is done: the rest is taken out of the queue
#   75, 77, killed, lost     goes on, while checkpoints advance: three starts without a new one end the chain
#   1, 2, 76                 the chain ends: a person is needed
# A file STOP in the run folder ends the job with a checkpoint and the chain with it; while it is there nothing is submitted. All of it is in RUN/chain.log.
# Variables: those of train_64nodes.sh, and TRIREME_JOB, the script that is submitted in its place.
set -uo pipefail
case ${1:-} in
  -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
home=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=slurm/lib/submit.sh
. "$home/lib/submit.sh"

submit_one() {
  local previous=$1 id=$2
  shift 2
  sbatch --parsable --job-name="$id" ${previous:+"--dependency=afterany:$previous"} ${TRIREME_NODES:+"--nodes=$TRIREME_NODES"} \
    "${submit_options[@]}" "${TRIREME_JOB:-$home/train_64nodes.sh}" "$@" | sed 's/;.*//' # --parsable: NUMBER;CLUSTER
}
use_site "${TRIREME_SITE:-}"
submit_chain "$@"
