# shellcheck shell=bash disable=SC2034
# What a site file says; copy it, and let TRIREME_SITE name the copy (a name in this folder, or a path).

# For the command that submits (sbatch, qsub, flux batch). Words on the command line come after these and rule.
site_submit=()

# For the launcher of the ranks (srun, mpiexec, flux run). Where srun's default is not the way the MPI library needs: (--mpi=pmix) for Open MPI, (--mpi=pmi2) for MPICH; `srun --mpi=list` tells the ways.
site_launch=()

# In the job, before the ranks start: modules, variables.
site_setup() {
  # module load gcc openmpi hdf5
  # export TRIREME_STAGE=${TMPDIR:-/tmp}
  :
}
