#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# chain.sh N DECK [QSUB OPTIONS...] [-- TRAIN OPTIONS...]: slurm/chain.sh for PBS Pro, OpenPBS and
# Torque.
#
#   slurm/pbs/chain.sh 10 deck.toml -l select=64:ncpus=64:mpiprocs=8:ngpus=8 \
#     -l walltime=12:00:00 -A account -q queue
#
# The rules for resuming and ending a chain are those of slurm/chain.sh (slurm/chain.sh --help).
set -uo pipefail
case ${1:-} in
  -h | --help) sed -n '4,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=slurm/lib/submit.sh
. "$home/lib/submit.sh"

# qsub passes on neither arguments nor the environment, so it gets a small script that contains
# both.
submit_one() {
  local previous=$1 name value
  shift 2
  {
    echo '#!/bin/bash'
    printf 'cd %q || exit\n' "$PWD"
    for name in TRIREME TRIREME_LAUNCH TRIREME_EACH_NODE TRIREME_STAGE OMP_NUM_THREADS; do
      value=${!name:-}
      [ -z "$value" ] || printf 'export %s=%q\n' "$name" "$value"
    done
    printf 'exec bash'
    printf ' %q' "$home/pbs/train.sh" "$@"
    echo
  } | qsub -N trireme -j oe ${previous:+-W "depend=afterany:$previous"} "${submit_options[@]}"
}
use_site "${TRIREME_SITE:-}"
submit_chain "$@"
