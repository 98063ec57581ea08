# shellcheck shell=bash disable=SC2034
# Notes for machines like Frontier (OLCF): 64 cores of which 8 are kept for the system, so 7 a rank of eight; a local disk that is asked for by --constraint=nvme
# and stands at /mnt/bb/$USER. Sources: https://docs.olcf.ornl.gov/systems/frontier_user_guide.html (low-noise mode, NVMe usage) ;
#   https://github.com/ECP-WarpX/WarpX/blob/development/Tools/machines/frontier-olcf/submit.sh
# Trireme has no back end for AMD's GPUs: on Frontier itself it would train on the processors. What is worth copying is the disk.
site_submit=(--partition=batch --constraint=nvme --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=7)
site_setup() {
  export TRIREME_STAGE=/mnt/bb/$USER
}
