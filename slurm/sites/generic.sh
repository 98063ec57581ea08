# SPDX-License-Identifier: Apache-2.0
#
# shellcheck shell=bash disable=SC2034
# A template for site files. Copy it, and let TRIREME_SITE name the copy (a name in this folder, or
# a path).

# Options for the submit command (sbatch, qsub, flux batch). Options on the command line follow
# these and override them.
site_submit=()

# Options for the launcher of the ranks (srun, mpiexec, flux run). If the default of srun does not
# fit the MPI library: (--mpi=pmix) for Open MPI, (--mpi=pmi2) for MPICH. `srun --mpi=list` prints
# the choices.
site_launch=()

# Runs in the job before the ranks start: modules, variables.
site_setup() {
  # module load gcc openmpi hdf5
  # export TRIREME_STAGE=${TMPDIR:-/tmp}
  :
}
