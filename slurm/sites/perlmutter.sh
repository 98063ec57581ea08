# shellcheck shell=bash disable=SC2034
# Perlmutter (NERSC), GPU nodes: 4 A100, one EPYC 7763 of 64 cores, 128 hardware threads; the account of a GPU job ends in _g.
# Sources: https://docs.nersc.gov/jobs/ ; https://docs.nersc.gov/systems/perlmutter/running-jobs/ ;
#   https://github.com/ECP-WarpX/WarpX/blob/development/Tools/machines/perlmutter-nersc/perlmutter_gpu.sbatch (--gpu-bind=none, 16 cores a rank, MPICH_OFI_NIC_POLICY)
#   TRIREME_SITE=perlmutter slurm/chain.sh 10 deck.toml --account=m1234_g --nodes=128
# No disks in the nodes (/tmp is memory): read from $SCRATCH, do not stage large data.
site_submit=(--constraint=gpu --qos=regular --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=32)
site_launch=(--cpu-bind=cores)
site_setup() {
  export OMP_NUM_THREADS=16 OMP_PLACES=threads # a core each: 32 counts both threads of a core
  export MPICH_OFI_NIC_POLICY=GPU              # Cray MPICH: the network card next to a rank's GPU
}
