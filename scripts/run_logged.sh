#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run_logged.sh [--quiet] LOG COMMAND...: runs a command and writes its output to LOG. If the
# command fails, prints the first error of that output at the end (first_error.py).
#
# --quiet: prints nothing of a command that succeeds. The exit status is that of the command.
set -uo pipefail
quiet=no
if [ "${1-}" = --quiet ]; then
  quiet=yes
  shift
fi
if [ $# -lt 2 ]; then
  echo "run_logged.sh: $# words given, takes a log file and a command" >&2
  exit 2
fi
log=$1
shift
mkdir -p "$(dirname "$log")"
export LC_ALL=C # compilers translate the word "error"
if [ "$quiet" = yes ]; then
  "$@" >"$log" 2>&1
else
  "$@" 2>&1 | tee "$log"
fi
status=$?
if [ "$status" != 0 ]; then
  echo "$(basename "$1") failed with code $status; its first error (whole output: $log):" >&2
  python3 "$(dirname "${BASH_SOURCE[0]}")/first_error.py" "$log" >&2
fi
exit "$status"
