# SPDX-License-Identifier: Apache-2.0
#
# shellcheck shell=bash disable=SC2034
# Leonardo Booster (CINECA), partition boost_usr_prod, 24 hours at most. A node has 4 A100 of 64 GB,
# one Xeon 8358 of 32 cores and 512 GB of memory. Sources:
#   https://docs.hpc.cineca.it/hpc/leonardo.html
#   https://github.com/ECP-WarpX/WarpX/blob/development/Tools/machines/leonardo-cineca/job.sh
#   (partition, 8 cores for each rank, 494000 MB)
# Example:
#   TRIREME_SITE=leonardo_booster slurm/chain.sh 10 deck.toml --account=project --nodes=128
# The nodes have no disks, so staging would use memory. Read from $FAST or $SCRATCH.
site_submit=(
  --partition=boost_usr_prod --ntasks-per-node=4 --gres=gpu:4 --gpus-per-node=4
  --cpus-per-task=8 --mem=494000
)
