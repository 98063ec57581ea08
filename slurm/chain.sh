#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# chain.sh N DECK [SBATCH OPTIONS...] [-- TRAIN OPTIONS...]: submits a chain of at most N jobs for a
# run that is longer than one job may be. Each job resumes from the last checkpoint.
#
#   slurm/chain.sh 10 deck.toml
#   slurm/chain.sh 10 deck.toml --nodes=4 --account=me -- --set checkpoint.every="30 minutes"
#   TRIREME_SITE=perlmutter TRIREME_NODES=4 slurm/chain.sh 10 deck.toml --account=m1234_g
#
# All jobs are submitted at once. Each one starts when its predecessor has ended, with any status.
# The result of the predecessor is read from exit.json in the run folder, otherwise from its exit
# status:
#   0                        the run is complete: the remaining jobs are canceled
#   75, 77, killed, lost     the run resumes. Three starts without a new checkpoint end the chain
#   1, 2, 76                 the chain ends: a person has to look at the log
#
# A file STOP in the run folder ends the running job with a checkpoint, and the chain with it. While
# the file exists, nothing is submitted. RUN/chain.log records every event.
#
# Variables: those of train_64nodes.sh, and TRIREME_JOB, the job script to submit instead of it.
set -uo pipefail
case ${1:-} in
  -h | --help) sed -n '4,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
home=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=slurm/lib/submit.sh
. "$home/lib/submit.sh"

submit_one() {
  local previous=$1 id=$2
  shift 2
  # --parsable prints NUMBER;CLUSTER
  sbatch --parsable --job-name="$id" ${previous:+"--dependency=afterany:$previous"} \
    ${TRIREME_NODES:+"--nodes=$TRIREME_NODES"} "${submit_options[@]}" \
    "${TRIREME_JOB:-$home/train_64nodes.sh}" "$@" | sed 's/;.*//'
}
use_site "${TRIREME_SITE:-}"
submit_chain "$@"
