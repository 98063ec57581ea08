# SPDX-License-Identifier: Apache-2.0
#
# shellcheck shell=bash disable=SC2034
# Notes for machines like Frontier (OLCF). 8 of the 64 cores are reserved for the system, so each of
# 8 ranks gets 7. A local disk is requested by --constraint=nvme and mounted at /mnt/bb/$USER.
# Sources:
#   https://docs.olcf.ornl.gov/systems/frontier_user_guide.html (low-noise mode, NVMe usage)
#   https://github.com/ECP-WarpX/WarpX/blob/development/Tools/machines/frontier-olcf/submit.sh
# Trireme has no back end for AMD GPUs: on Frontier itself it would train on the CPUs. The file
# serves as an example for local disks.
site_submit=(
  --partition=batch --constraint=nvme --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=7
)
site_setup() {
  export TRIREME_STAGE=/mnt/bb/$USER
}
