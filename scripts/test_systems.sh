#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# test_systems.sh [--system NAME] [--command NAME] [--keep] [DIR]: tests the two commands of
# README.md on the systems that it names, each in a new userland.
#
#   --system NAME    debian-12, debian-13 or ubuntu-24.04 (default: all three)
#   --command NAME   quickstart, test or test-all, which is test.sh --all (default: the first two)
#   --keep           keeps the userland of a command that passed; that of a failed one always stays
#
#   1. Makes a minimal userland of each system in DIR (default: ~/.cache/trireme/systems) with
#      debootstrap. It has only the packages that the system itself needs, and is kept.
#   2. For each command copies this userland, clones HEAD into the copy and runs the command there
#      as root. Uncommitted changes are not tested. Nothing of this machine is used except its
#      kernel, host names, proxies and additional CA certificates.
#   3. Prints a table for docs/guides/install.md.
#
# If the archive of Ubuntu is out of reach, Debian 13 with g++ 13 stands in for Ubuntu 24.04, and
# the table says so. Debian has no Python 3.12; the stand-in has 3.13.
#
# Must run as root, on a Debian or Ubuntu. DEBIAN_MIRROR and UBUNTU_MIRROR name mirrors in place of
# debootstrap's own. Exit status: 0, 1 (a command failed), 2 (usage), 77 (not possible on this
# machine).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
known_systems=(debian-12 debian-13 ubuntu-24.04)
known_commands=(quickstart test test-all)
systems=("${known_systems[@]}")
commands=(quickstart test)
keep=no
dir=${XDG_CACHE_HOME:-$HOME/.cache}/trireme/systems
wrong() { echo "test_systems.sh: $*" >&2; exit 2; }

# choose OPTION WORD KNOWN...: sets `chosen` to the word after an option, which must be known.
choose() {
  local option=$1 word=$2
  shift 2
  for chosen in "$@"; do [ "$chosen" != "$word" ] || return 0; done
  wrong "$option \"$word\" is unknown; known: $*"
}
while [ $# -gt 0 ]; do
  word=$1
  shift
  case $word in
    -h | --help) sed -n '4,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --system) choose --system "${1-}" "${known_systems[@]}"; systems=("$chosen"); shift ;;
    --command) choose --command "${1-}" "${known_commands[@]}"; commands=("$chosen"); shift ;;
    --keep) keep=yes ;;
    -*) wrong "unknown option \"$word\"; known: --system, --command, --keep" ;;
    *) dir=$(realpath -m "$word") ;;
  esac
done
say() { echo "test_systems: $*"; }
skip() { say "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "a userland is made as root"
if ! command -v debootstrap >/dev/null; then
  apt-get install -y -q --no-install-recommends debootstrap </dev/null ||
    skip "debootstrap cannot be installed"
fi
revision=$(git rev-parse --short HEAD)
[ -z "$(git status --porcelain --untracked-files=no)" ] ||
  say "uncommitted changes are not tested: only $revision is"

# Settings of the site that a new machine needs too: proxies and the Python package index.
site=()
for name in http_proxy https_proxy no_proxy PIP_INDEX_URL; do
  [ -z "${!name-}" ] || site+=("$name=${!name}")
done

# inside USERLAND COMMAND...: runs a command in a userland. Its mounts and processes end with it.
inside() {
  # shellcheck disable=SC2016 # the words of the inner shell
  unshare --mount --pid --fork --kill-child sh -ec '
    userland=$1
    shift
    mount -t proc proc "$userland/proc"
    mount -t sysfs -o ro sysfs "$userland/sys"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$userland/dev/pts"
    mount -t tmpfs tmpfs "$userland/dev/shm"
    exec chroot "$userland" /usr/bin/env -i "$@"
  ' sh "$1" HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive "${site[@]}" "${@:2}"
}

# bootstrap SYSTEM: makes the minimal userland DIR/SYSTEM.base, which appears once it is complete.
# That of Ubuntu does not appear if its archive is out of reach.
bootstrap() {
  local base=$dir/$1.base options=(--variant=minbase)
  [ ! -e "$base" ] || return 0
  local words=(trixie "$base.partial" "${DEBIAN_MIRROR-}") # none: that of debootstrap
  case $1 in
    debian-12) words[0]=bookworm ;;
    ubuntu-24.04)
      ubuntu_keys
      options+=("--components=main,universe" "--keyring=$ubuntu_keyring")
      # An older debootstrap does not know this version; the script is that of all since 2007.
      words=(noble "$base.partial" "${UBUNTU_MIRROR-}" /usr/share/debootstrap/scripts/gutsy)
      ;;
  esac
  say "$1 -> $base"
  mkdir -p "$dir"
  rm -rf --one-file-system "$base.partial"
  debootstrap "${options[@]}" "${words[@]}" >"$base.log" 2>&1 || {
    tail -n 20 "$base.log"
    if [ "$1" = ubuntu-24.04 ] && grep -q 'Failed getting release' "$base.log"; then return 0; fi
    skip "debootstrap failed"
  }
  apt-config dump --format '%F "%v";%n' Acquire::http Acquire::https \
    >"$base.partial/etc/apt/apt.conf.d/site"
  local certificates=/usr/local/share/ca-certificates
  if [ -d "$certificates" ]; then
    mkdir -p "$base.partial$certificates"
    cp -a "$certificates/." "$base.partial$certificates"
  fi
  mv "$base.partial" "$base"
}

# ubuntu_keys: finds the keys of Ubuntu's archive: on this machine, or in a package of Debian 13.
ubuntu_keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg
ubuntu_keys() {
  [ ! -e "$ubuntu_keyring" ] || return 0
  bootstrap debian-13
  ubuntu_keyring=$dir/debian-13.keys$ubuntu_keyring
  [ ! -e "$ubuntu_keyring" ] || return 0
  copy_userland debian-13.base debian-13.keys
  inside "$dir/debian-13.keys" sh -ec '
    apt-get update -q
    apt-get install -y -q --no-install-recommends ubuntu-keyring
  ' >"$dir/debian-13.keys.log" 2>&1 </dev/null || {
    tail -n 20 "$dir/debian-13.keys.log"
    skip "the keys of Ubuntu cannot be installed"
  }
}

copy_userland() { # BASE COPY
  rm -rf --one-file-system "${dir:?}/$2"
  cp -a "$dir/$1" "$dir/$2"
  cp -L /etc/resolv.conf /etc/hosts "$dir/$2/etc"
}

# test_command SYSTEM COMMAND: runs a command in a new copy of the system and adds a row to the
# table.
table=()
all_passed=yes
test_command() {
  local system=$1 command=$2 name=$1.$2 base=$1 title=${1/-/ } compilers=() words
  local userland=$dir/$name log=$dir/$name.log
  bootstrap "$base"
  if [ ! -e "$dir/$base.base" ]; then
    base=debian-13
    title="ubuntu 24.04 (stand-in: Debian 13 with g++ 13)"
    compilers=(CC=gcc-13 CXX=g++-13)
    bootstrap "$base"
  fi
  copy_userland "$base.base" "$name"
  inside "$userland" true || skip "namespaces or mounts are not permitted here"
  git clone -q --no-hardlinks --no-checkout . "$userland/trireme"
  git -C "$userland/trireme" checkout -q --detach "$revision"
  : >"$log"
  if [ ${#compilers[@]} -gt 0 ]; then
    inside "$userland" sh -ec '
      apt-get update -q
      apt-get install -y -q --no-install-recommends g++-13
    ' >>"$log" 2>&1 </dev/null || { tail -n 20 "$log"; skip "g++ 13 cannot be installed"; }
  fi

  local line="$command.sh"
  [ "$command" != test-all ] || line="test.sh --all"
  read -ra words <<<"scripts/$line"
  say "$title: ${words[*]} (output: $log)"
  local start=$SECONDS result=passed seconds
  inside "$userland" env -C /trireme "${compilers[@]}" "${words[@]}" \
    >>"$log" 2>&1 </dev/null || result="failed ($?)"
  seconds=$((SECONDS - start))
  if [ "$result" != passed ]; then
    all_passed=no
    tail -n 60 "$log"
  fi

  local versions summary
  # shellcheck disable=SC2016 # the words of the inner shell
  versions=$(
    inside "$userland" "${compilers[@]}" sh -c '
      echo "g++ $("${CXX:-g++}" -dumpfullversion)"
      python3 --version
      mpirun --version | sed -n "s/^mpirun (Open MPI)/Open MPI/p"
      sed -n "s/^-- \(Kokkos [0-9]\)/\1/p" /trireme/build/release.configure.log
    ' 2>/dev/null | paste -sd ';' | sed 's/;/, /g'
  ) || true
  summary=$(
    grep -E '^(test set:|[0-9]+% tests passed|test\.sh: )' "$log" | paste -sd ';' | sed 's/;/; /g'
  ) || true
  table+=("| ${title^} | $line | $result | $((seconds / 60)) min $((seconds % 60)) s" \
    "| $versions | $summary |")
  [ "$result" != passed ] || [ "$keep" = yes ] || rm -rf --one-file-system "$userland"
}

# print_table: called at the end, also of an interrupted script.
print_table() {
  [ ${#table[@]} -gt 0 ] || return 0
  say "revision $revision, $(date +%F), $(nproc) cores of" \
    "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
  echo "| system | command | result | time | versions | output |"
  echo "|---|---|---|---|---|---|"
  printf '%s %s\n' "${table[@]}"
}
trap print_table EXIT

for system in "${systems[@]}"; do
  for command in "${commands[@]}"; do test_command "$system" "$command"; done
done

[ "$all_passed" = yes ]
