# SPDX-License-Identifier: Apache-2.0
#
# shellcheck shell=bash disable=SC2034
# JUWELS Booster (JSC), partition booster. A node has 4 A100 of 40 GB, two EPYC 7402 of 24 cores (96
# hardware threads in all) and four HDR-200 network cards.
# Sources:
#   https://apps.fz-juelich.de/jsc/hps/juwels/booster-overview.html
#   https://apps.fz-juelich.de/jsc/hps/juwels/batchsystem.html (psslurm replaces slurmd)
# Example:
#   TRIREME_SITE=juwels_booster slurm/chain.sh 10 deck.toml --account=project --nodes=128
site_submit=(--partition=booster --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=12)
site_setup() {
  # Otherwise psslurm may show each rank only one GPU.
  export CUDA_VISIBLE_DEVICES=0,1,2,3
}
