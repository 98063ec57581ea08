#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# make_bible.sh [OUT]: makes the dataset of inputs/examples/bible_gpt.toml in OUT/train and
# OUT/validation (OUT: data/bible).
#
# The text is the King James Bible, printed by the program `bible` (Debian's package bible-kjv): one
# verse on each line, without its number. A token is a byte. The last 5 % are held out for
# validation. TRIREME names the program (build/release/bin/trireme). If both folders exist, nothing
# is changed.
set -euo pipefail
case ${1:-} in
  -h | --help) sed -n '4,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
  -*)
    echo "make_bible: unknown option \"$1\"; known: --help" >&2
    exit 2
    ;;
esac
[ $# -le 1 ] || {
  echo "make_bible: $# words given, takes one: the folder of the dataset" >&2
  exit 2
}
out=${1:-data/bible}
trireme=${TRIREME:-$(dirname "${BASH_SOURCE[0]}")/../build/release/bin/trireme}
say() { echo "make_bible: $*"; }
missing() { echo "make_bible: $*" >&2; exit 2; }

if [ -d "$out/train" ] && [ -d "$out/validation" ]; then
  say "$out/train and $out/validation are there; nothing to do"
  exit 0
fi
command -v bible >/dev/null ||
  missing "the program bible is missing; install it with: apt-get install bible-kjv"
build_command="cmake --preset release && cmake --build --preset release --target trireme"
[ -x "$trireme" ] ||
  missing "$trireme is missing; build it with: $build_command (or name it in TRIREME)"

# Each folder is renamed only once it is complete, so an interrupted run is repeated from the start.
partial=$out/partial
rm -rf "$partial"
mkdir -p "$partial"
trap 'rm -rf "$partial"' EXIT
bible -f Gen1:1-Rev22:21 | sed 's/^[^ ]* //' >"$partial/bible.txt"
verses=$(wc -l <"$partial/bible.txt")
[ "$verses" = 31102 ] || {
  echo "make_bible: the program bible printed $verses verses, the King James Bible has 31102" >&2
  exit 1
}
"$trireme" shard text "$partial/bible.txt" --out "$partial/train" \
  --hold-out 0.05 --hold-out-out "$partial/validation"
rm -rf "$out/train" "$out/validation"
mv "$partial/train" "$partial/validation" "$out"
say "made $out/train and $out/validation"
