#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# chain.sh N DECK [FLUX BATCH OPTIONS...] [-- TRAIN OPTIONS...]: slurm/chain.sh for Flux.
#
#   slurm/flux/chain.sh 10 deck.toml -N64 --exclusive -t 12h
#
# The rules for resuming and ending a chain are those of slurm/chain.sh (slurm/chain.sh --help).
set -uo pipefail
case ${1:-} in
  -h | --help) sed -n '4,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=slurm/lib/submit.sh
. "$home/lib/submit.sh"

submit_one() {
  local previous=$1 id=$2
  shift 2
  flux batch --job-name="$id" --output="$id-{{id}}.out" \
    ${previous:+"--dependency=afterany:$previous"} "${submit_options[@]}" "$home/flux/train.sh" "$@"
}
use_site "${TRIREME_SITE:-}"
submit_chain "$@"
