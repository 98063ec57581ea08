# SPDX-License-Identifier: Apache-2.0
#
# shellcheck shell=bash
# Sourced by the other scripts. Sets the variables that let Open MPI 4, 5 and 6 start several ranks
# on one machine: also as root, and more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Oversubscription has another name in each of the versions 4, 5 and 6.
export OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_mapby=:oversubscribe
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMP_PROC_BIND=false

# Lets several clones of these sources share their ccache entries.
CCACHE_BASEDIR=${CCACHE_BASEDIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}
export CCACHE_BASEDIR CCACHE_NOHASHDIR=1
