# shellcheck shell=bash
# Sourced by the other scripts: what several ranks on one machine need under Open MPI 4, 5 and 6, as root too, with more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_mapby=:oversubscribe # as 4, 5 and 6 call it
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMP_PROC_BIND=false

# Another clone of the same sources finds what this one compiled.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)} CCACHE_NOHASHDIR=1
