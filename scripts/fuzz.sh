#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fuzz.sh [READER...] [--minutes N]: runs the readers of untrusted files under libFuzzer, each for N
# minutes (default 10). Without a READER all are run, two beside each other.
#
#   1. Builds the preset fuzz with clang++, AddressSanitizer and UndefinedBehaviorSanitizer.
#   2. Starts each reader with the files of build/fuzz/corpus/READER, where libFuzzer keeps inputs
#      that reached new code, and those of tests/fuzz/kept/READER.
#   3. Prints a line for each reader: inputs read, edges of the code reached, seconds.
#
# An input that crashes a reader, takes more than 4 s of processor time or 512 MB of memory is named
# and kept in build/fuzz/found; the exit status is then 1. Without a clang++ of 16 or later that has
# libFuzzer the exit status is 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
minutes=10
readers=()
while [ $# -gt 0 ]; do
  case $1 in
    --minutes)
      minutes=${2:?fuzz.sh: --minutes needs a number}
      shift
      ;;
    -h | --help) sed -n '4,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*)
      echo "fuzz.sh: unknown option \"$1\"; known: --minutes" >&2
      exit 2
      ;;
    *) readers+=("$1") ;;
  esac
  shift
done
seconds=$(awk -v minutes="$minutes" 'BEGIN { printf "%d", 60 * minutes }')
[ "$seconds" -gt 0 ] || {
  echo "fuzz.sh: --minutes $minutes is less than a second" >&2
  exit 2
}
if [ ${#readers[@]} = 0 ]; then
  mapfile -t readers < <(
    sed -n '/^set(readers /,/)/{s/set(readers\|)//g;p}' tests/fuzz/CMakeLists.txt | xargs -n 1
  )
fi

# has_libfuzzer COMPILER: also OpenMP, which Kokkos looks for, and C++20 (clang 16).
has_libfuzzer() {
  local folder status=0
  folder=$(mktemp -d)
  cat >"$folder/a.cpp" <<'END'
#include <source_location>
extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) {
  return std::source_location::current().line() < 0;
}
END
  "$1" -std=c++20 -fsanitize=fuzzer,address,undefined -fopenmp "$folder/a.cpp" \
    -o "$folder/a" 2>/dev/null || status=1
  rm -r "$folder"
  return "$status"
}
compiler=
for name in clang++ clang++-{22..14}; do
  if command -v "$name" >/dev/null && has_libfuzzer "$name"; then
    compiler=$name
    break
  fi
done
if [ -z "$compiler" ]; then
  echo "fuzz.sh: no clang++ with libFuzzer and OpenMP was found; on Debian 12:" >&2
  echo "  apt-get install clang-16 libclang-rt-16-dev libomp-16-dev" >&2
  exit 77
fi

# shellcheck source=scripts/environment.sh
. scripts/environment.sh
scripts/run_logged.sh --quiet build/fuzz.configure.log \
  cmake --preset fuzz "-DCMAKE_C_COMPILER=${compiler/++/}" "-DCMAKE_CXX_COMPILER=$compiler"
scripts/run_logged.sh --quiet build/fuzz.build.log cmake --build --preset fuzz
mkdir -p build/fuzz/found

# fuzz READER: runs one reader. Fails if an input was read wrongly.
fuzz() {
  local reader=$1 log=build/fuzz/$1.log status=0
  local corpus=build/fuzz/corpus/$reader kept=tests/fuzz/kept/$reader
  mkdir -p "$corpus"
  local folders=("$corpus")
  [ ! -d "$kept" ] || folders+=("$kept")
  # The program itself limits processor time and memory. These limits end it if it is blocked, and a
  # suspended machine must not look like a slow input.
  TRIREME_FUZZ_READER=$reader TRIREME_FUZZ_SEEDS=$corpus build/fuzz/bin/fuzz_libfuzzer \
    -max_total_time="$seconds" -max_len=16384 -timeout=900 -rss_limit_mb=1536 -malloc_limit_mb=512 \
    -print_final_stats=1 -artifact_prefix="build/fuzz/found/$reader." "${folders[@]}" \
    >"$log" 2>&1 || status=$?
  awk -v reader="$reader" '
    / cov: / { for (i = 1; i < NF; ++i) if ($i == "cov:") edges = $(i + 1) }
    /number_of_executed_units/ { inputs = $NF }
    /^Done / { seconds = $(NF - 1) }
    END { printf "%s: %d inputs, %d edges, %d s\n", reader, inputs, edges, seconds }' "$log"
  if [ "$status" != 0 ]; then
    local found
    found=$(sed -n 's/.*Test unit written to \(.*\)/\1/p' "$log" | tail -n 1)
    echo "fuzz.sh: $reader: failed with status $status; input: ${found:-none}; log: $log" >&2
    return 1
  fi
}

failed=0
for reader in "${readers[@]}"; do
  [ "$(jobs -pr | wc -l)" -lt 2 ] || wait -n || failed=1
  fuzz "$reader" &
done
while [ -n "$(jobs -pr)" ]; do wait -n || failed=1; done
exit "$failed"
