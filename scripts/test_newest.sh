#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# test_newest.sh [--build-only] [-j N] [DIR]: builds and tests Trireme on the newest software stack.
# scripts/test.sh --all does this and more on the stack of this machine.
#
#   1. Makes a Debian unstable userland in DIR (default: ~/.cache/trireme/newest) with g++ 16,
#      CMake 4, Kokkos 5, HDF5 2, Open MPI 6 and oneDNN 3. This takes about a minute and 2 GB. An
#      existing one is used again.
#   2. Copies this working tree (tracked and new files) into it and configures without a preset;
#      nothing of .deps/ is used.
#   3. Builds, and runs all tests except those of PyTorch, of Slurm and of .deps/ of this machine.
#
# Must run as root, on a Debian or Ubuntu whose apt reaches a mirror. While the script runs, /proc,
# /sys and /dev/shm are mounted in DIR. Exit status: 0, 1 (failed), 77 (not possible on this
# machine).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tests=yes
jobs=$(nproc)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/trireme/newest
while [ $# -gt 0 ]; do
  word=$1
  shift
  case $word in
    -h | --help) sed -n '4,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --build-only) tests=no ;;
    -j)
      [[ ${1-} =~ ^[1-9][0-9]*$ ]] || {
        echo "test_newest.sh: -j takes a number of processes, as in -j 2" >&2
        exit 2
      }
      jobs=$1
      shift
      ;;
    -*) echo "test_newest.sh: unknown option \"$word\"; known: --build-only, -j N" >&2; exit 2 ;;
    *) dir=$(realpath -m "$word") ;;
  esac
done
say() { echo "test_newest: $*"; }
skip() { say "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "a userland of its own is made as root"
command -v apt-get >/dev/null || skip "no apt on this machine"

if ! command -v debootstrap >/dev/null; then
  apt-get install -y -q --no-install-recommends debootstrap </dev/null ||
    skip "debootstrap cannot be installed"
fi
mounted=()
unmount_all() { for place in "${mounted[@]}"; do umount "$place" || true; done; }
trap unmount_all EXIT
inside() {
  chroot "$dir" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive CCACHE_DIR=/ccache "$@"
}
show_log_and_fail() { tail -n 20 "$dir.log"; exit 1; }

packages="g++ cmake ninja-build ccache pkg-config python3 libkokkos-dev libhdf5-openmpi-dev
  hdf5-tools libopenmpi-dev openmpi-bin libdnnl-dev libtomlplusplus-dev libcli11-dev libfmt-dev
  libxxhash-dev nlohmann-json3-dev zlib1g-dev libsentencepiece-dev libprotobuf-dev libabsl-dev
  libgtest-dev libgmock-dev python3-h5py python3-numpy iproute2"
if [ ! -e "$dir/userland" ]; then
  # shellcheck disable=SC2016 # apt's own words
  target_format='$(ORIGIN)|$(LABEL)|$(REPO_URI)'
  mirror=$(
    apt-get indextargets --format "$target_format" 'Created-By: Packages' |
      awk -F'|' '$1 == "Debian" && $2 == "Debian" { print $3; exit }'
  )
  say "Debian unstable -> $dir"
  if [ -n "$(ls -A "$dir" 2>/dev/null)" ] && [ ! -e "$dir/userland.begun" ]; then
    echo "test_newest.sh: $dir holds something else than a userland of this script;" \
      "give an empty folder" >&2
    exit 2
  fi
  rm -rf --one-file-system "$dir"
  mkdir -p "$dir"
  touch "$dir/userland.begun"
  # Without a mirror of this machine's apt: that of debootstrap.
  debootstrap --variant=minbase --include=ca-certificates sid "$dir" ${mirror:+"$mirror"} \
    >"$dir.log" 2>&1 || {
    tail -n 20 "$dir.log"
    skip "debootstrap failed"
  }
  # Takes over the apt settings of this machine, which may name a proxy.
  [ ! -e /etc/apt/apt.conf.d ] || cp -a /etc/apt/apt.conf.d/. "$dir/etc/apt/apt.conf.d/"
  touch "$dir/userland"
fi
if [ "$(cat "$dir/packages" 2>/dev/null)" != "$packages" ]; then
  inside apt-get -o Acquire::Check-Valid-Until=false -o Acquire::Check-Date=false update -q \
    >>"$dir.log" 2>&1 || show_log_and_fail
  # shellcheck disable=SC2086
  inside apt-get install -y -q --no-install-recommends $packages >>"$dir.log" 2>&1 ||
    show_log_and_fail
  # The CMake targets of Debian's Kokkos name two archives that the package does not contain.
  # shellcheck disable=SC2016
  inside sh -c 'for l in algorithms simd; do
    f=/usr/lib/$(uname -m)-linux-gnu/libkokkos$l.a; [ -e $f ] || ar qc $f
  done'
  echo "$packages" >"$dir/packages"
fi
for name in proc sys dev/shm; do
  mkdir -p "$dir/$name"
  mountpoint -q "$dir/$name" && continue
  case $name in
    proc) mount -t proc proc "$dir/proc" ;;
    sys) mount -t sysfs -o ro sysfs "$dir/sys" ;;
    *) mount -t tmpfs tmpfs "$dir/$name" ;;
  esac || skip "nothing may be mounted here"
  mounted+=("$dir/$name")
done

rm -rf "$dir/source"
mkdir -p "$dir/source"
git ls-files -z --cached --others --exclude-standard |
  while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
  tar -c --null -T - | tar -x -C "$dir/source"

say "$(inside g++ -dumpfullversion | sed 's/^/g++ /'), $(inside cmake --version | head -n 1)"
configure="cmake -S /source -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release"
inside sh -c "$configure >/build.configure.log 2>&1" || {
  cat "$dir/build.configure.log"
  exit 1
}
grep -E '^-- Kokkos ' "$dir/build.configure.log"
# -k 0 reports every file that does not compile.
if ! inside sh -c "cmake --build /build -j $jobs -- -k 0 >/build.log 2>&1"; then
  grep -E -A 3 'error|^FAILED' "$dir/build.log" | head -n 200
  say "the build failed: $dir/build.log"
  exit 1
fi
[ "$tests" = yes ] || exit 0
inside env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
  PRTE_MCA_mapby=:oversubscribe OMPI_MCA_pml=ob1 \
  ctest --test-dir /build -j "$jobs" --output-on-failure -E 'pytorch|^system\.slurm$'
say "passed"
