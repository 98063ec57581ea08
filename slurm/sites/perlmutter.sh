# SPDX-License-Identifier: Apache-2.0
#
# shellcheck shell=bash disable=SC2034
# Perlmutter (NERSC), GPU nodes. A node has 4 A100 and one EPYC 7763 of 64 cores (128 hardware
# threads). The account name of a GPU job ends in _g. Sources:
#   https://docs.nersc.gov/jobs/
#   https://docs.nersc.gov/systems/perlmutter/running-jobs/
#   https://github.com/ECP-WarpX/WarpX/blob/development/Tools/machines/perlmutter-nersc/perlmutter_gpu.sbatch
#   (--gpu-bind=none, 16 cores for each rank, MPICH_OFI_NIC_POLICY)
# Example:
#   TRIREME_SITE=perlmutter slurm/chain.sh 10 deck.toml --account=m1234_g --nodes=128
# The nodes have no disks (/tmp is memory): read from $SCRATCH, and do not stage large data.
site_submit=(
  --constraint=gpu --qos=regular --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=32
)
site_launch=(--cpu-bind=cores)
site_setup() {
  # One thread for each core: the 32 CPUs of a task are the two hardware threads of 16 cores.
  export OMP_NUM_THREADS=16 OMP_PLACES=threads
  # Cray MPICH: use the network card next to the GPU of the rank.
  export MPICH_OFI_NIC_POLICY=GPU
}
