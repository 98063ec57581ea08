#!/usr/bin/env bash
# test_newest.sh [--build-only] [-j N] [DIR]: builds and tests on the newest stack beside this machine's own, which scripts/test.sh is for.
#
#   1. a Debian unstable userland in DIR (default: ~/.cache/trireme/newest): g++ 16, CMake 4, Kokkos 5, HDF5 2, Open MPI 6, oneDNN 3; about a minute and 2 GB. One that is there is used again.
#   2. a copy of this working tree (tracked and new files) in it, configured without a preset: nothing of .deps/
#   3. build; all tests that are not about PyTorch, of Slurm or of this machine's .deps
#
# As root, on a Debian or Ubuntu whose apt reaches a mirror. /proc, /sys and /dev/shm are mounted in DIR for the length of the script. Exit 0, 1 (failed), 77 (not possible here).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tests=yes
jobs=$(nproc)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/trireme/newest
while [ $# -gt 0 ]; do
  word=$1
  shift
  case $word in
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --build-only) tests=no ;;
    -j) [[ ${1-} =~ ^[1-9][0-9]*$ ]] || { echo "test_newest.sh: -j takes a number of processes, as in -j 2" >&2; exit 2; }; jobs=$1; shift ;;
    -*) echo "test_newest.sh: unknown option \"$word\"; known: --build-only, -j N" >&2; exit 2 ;;
    *) dir=$(realpath -m "$word") ;;
  esac
done
say() { echo "test_newest: $*"; }
impossible() { say "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || impossible "a userland of its own is made as root"
command -v apt-get >/dev/null || impossible "no apt on this machine"

if ! command -v debootstrap >/dev/null; then
  apt-get install -y -q --no-install-recommends debootstrap </dev/null || impossible "debootstrap cannot be installed"
fi
mounted=()
leave() { for place in "${mounted[@]}"; do umount "$place" || true; done; }
trap leave EXIT
inside() { chroot "$dir" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive CCACHE_DIR=/ccache "$@"; }

packages="g++ cmake ninja-build ccache pkg-config python3 libkokkos-dev libhdf5-openmpi-dev hdf5-tools libopenmpi-dev openmpi-bin libdnnl-dev libtomlplusplus-dev libcli11-dev libfmt-dev
  libxxhash-dev nlohmann-json3-dev zlib1g-dev libsentencepiece-dev libprotobuf-dev libabsl-dev libgtest-dev python3-h5py python3-numpy iproute2"
if [ ! -e "$dir/userland" ]; then
  # shellcheck disable=SC2016 # apt's own words
  mirror=$(apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' | awk -F'|' '$1 == "Debian" && $2 == "Debian" { print $3; exit }')
  say "Debian unstable -> $dir"
  if [ -n "$(ls -A "$dir" 2>/dev/null)" ] && [ ! -e "$dir/userland.begun" ]; then
    echo "test_newest.sh: $dir holds something else than a userland of this script; give an empty folder" >&2
    exit 2
  fi
  rm -rf --one-file-system "$dir"
  mkdir -p "$dir"
  touch "$dir/userland.begun"
  debootstrap --variant=minbase --include=ca-certificates sid "$dir" "${mirror:-http://deb.debian.org/debian}" >"$dir.log" 2>&1 || { tail -n 20 "$dir.log"; impossible "debootstrap failed"; }
  [ ! -e /etc/apt/apt.conf.d ] || cp -a /etc/apt/apt.conf.d/. "$dir/etc/apt/apt.conf.d/" # a proxy
  touch "$dir/userland"
fi
if [ "$(cat "$dir/packages" 2>/dev/null)" != "$packages" ]; then
  inside apt-get -o Acquire::Check-Valid-Until=false -o Acquire::Check-Date=false update -q >>"$dir.log" 2>&1 || { tail -n 20 "$dir.log"; exit 1; }
  # shellcheck disable=SC2086
  inside apt-get install -y -q --no-install-recommends $packages >>"$dir.log" 2>&1 || { tail -n 20 "$dir.log"; exit 1; }
  # Debian's Kokkos names two archives in its CMake targets that it does not ship.
  # shellcheck disable=SC2016
  inside sh -c 'for l in algorithms simd; do f=/usr/lib/$(uname -m)-linux-gnu/libkokkos$l.a; [ -e $f ] || ar qc $f; done'
  echo "$packages" >"$dir/packages"
fi
for name in proc sys dev/shm; do
  mkdir -p "$dir/$name"
  mountpoint -q "$dir/$name" && continue
  case $name in proc) mount -t proc proc "$dir/proc" ;; sys) mount -t sysfs -o ro sysfs "$dir/sys" ;; *) mount -t tmpfs tmpfs "$dir/$name" ;; esac || impossible "nothing may be mounted here"
  mounted+=("$dir/$name")
done

rm -rf "$dir/source"
mkdir -p "$dir/source"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done | tar -c --null -T - | tar -x -C "$dir/source"

say "$(inside g++ -dumpfullversion | sed 's/^/g++ /'), $(inside cmake --version | head -n 1)"
inside sh -c 'cmake -S /source -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release >/build.configure.log 2>&1' || { cat "$dir/build.configure.log"; exit 1; }
grep -E '^-- Kokkos ' "$dir/build.configure.log"
if ! inside sh -c "cmake --build /build -j $jobs -- -k 0 >/build.log 2>&1"; then # all that does not compile, not the first alone
  grep -E -A 3 'error|^FAILED' "$dir/build.log" | head -n 200
  say "the build failed: $dir/build.log"
  exit 1
fi
[ "$tests" = yes ] || exit 0
inside env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_mapby=:oversubscribe OMPI_MCA_pml=ob1 \
  ctest --test-dir /build -j "$jobs" --output-on-failure -E 'pytorch|^system\.slurm$'
say "passed"
