# SPDX-License-Identifier: Apache-2.0
#
# The variables of the job scripts and of these files are shared.
# shellcheck shell=bash disable=SC2034,SC2154
#
# The log of a chain and the decisions based on it; sourced by job.sh. A chain is a number of jobs
# for one run folder, each of which waits for its predecessor. Its state is the file chain.log in
# the run folder, to which lines are only appended:
#   <time> chain=ID asked jobs=N
#   <time> chain=ID submitted job=J
#   <time> chain=ID begin job=J newest=STEP|none exit=MARK log=MARK
#   <time> chain=ID end job=J status=S code=CODE|lost
#
# A killed job leaves a `begin` without an `end`. The marks show whether exit.json and log.txt were
# written by this start or by an earlier one. Functions that decide return 0 if the run may resume.
# Otherwise they return 1 and set chain_reason (text) and chain_code (exit status of the job).

# chain_write FOLDER CHAIN WORDS...: appends a line; if that fails, sets chain_reason and returns 1.
# Another user may be able to write in the folder: nothing is written through a link or into a pipe,
# and a file that has other names too (hard links) is replaced by a copy first.
chain_write() {
  local file=$1/chain.log
  shift
  if [ -L "$file" ] || { [ -e "$file" ] && [ ! -f "$file" ]; }; then
    chain_reason="$file: is a link or not a file; remove it"
    return 1
  fi
  {
    if [ -e "$file" ] && [ "$(stat -c %h "$file")" != 1 ]; then
      rm -f "$file.own"
      cp -p "$file" "$file.own" && mv -f "$file.own" "$file"
    fi
  } && echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) chain=$*" >>"$file" && return
  chain_reason="$file cannot be written (is the disk full, the quota used up?)"
  return 1
}

# Prints a mark of a file. A rewritten file has a new mark, even if its inode, size and second are
# equal.
chain_mark() { stat -c %i.%.Y.%s "$1" 2>/dev/null || echo -; }

# chain_newest FOLDER: prints the step of the newest checkpoint, or none. Other files are ignored.
chain_newest() {
  local file step=none
  for file in "$1"/checkpoints/step_*.h5; do
    [[ $file =~ /step_0*([0-9]{1,18})\.h5$ ]] || continue
    if [ "$step" = none ] || [ "${BASH_REMATCH[1]}" -gt "$step" ]; then step=${BASH_REMATCH[1]}; fi
  done
  echo "$step"
}

# chain_lines FOLDER CHAIN begin|end|submitted|asked: prints the lines of one kind. A pipe would
# block.
chain_lines() { { [ -f "$1/chain.log" ] && grep -s " chain=$2 $3 " "$1/chain.log"; } || true; }

chain_field() { sed -n "s/.* $1=\([^ ]*\).*/\1/p"; }

# chain_code_of FOLDER BEGIN-LINE STATUS: prints the result of a start: an exit code of the program,
# or "lost" if it was killed.
#
# 1. The code in exit.json, if this start wrote it.
# 2. 2, if the exit status is 2: no launcher uses it, so the program refused to start. The log may
#    then grow because another job uses the folder.
# 3. lost, if the status is empty (the job itself was killed) or a launcher's code for a killed
#    rank: 128 plus the signal number, or the number alone (MPICH).
# 4. lost, if the program had opened the log of the run. Otherwise the exit status.
chain_code_of() {
  local folder=$1 line=$2 status=$3 code=''
  if [ -e "$folder/exit.json" ] &&
    [ "$(chain_mark "$folder/exit.json")" != "$(chain_field exit <<<"$line")" ]; then
    code=$(sed -n 's/^ *"code": *\([0-9][0-9]*\).*/\1/p' "$folder/exit.json" | head -n 1)
  fi
  if [ -n "$code" ]; then
    echo "$code"
  elif [ "$status" = 2 ]; then
    echo 2
  elif [ -z "$status" ] || [ "$status" -ge 128 ] ||
    { [ "$status" -gt 2 ] && [ "$status" -lt 32 ]; } ||
    [ "$(chain_mark "$folder/log.txt")" != "$(chain_field log <<<"$line")" ]; then
    echo lost
  else
    echo "$status"
  fi
}

# chain_decide FOLDER CODE: decides whether the run may resume after this result.
chain_decide() {
  chain_code=$2
  [ "$2" != lost ] || chain_code=77
  case $2 in
    0) chain_reason="the run is done" ;;
    1) chain_reason="the program failed (1): see the log" ;;
    2) chain_reason="the input is wrong (2): see the log" ;;
    76) chain_reason="training diverged (76): see the log" ;;
    75 | 77 | lost)
      if [ -e "$1/STOP" ]; then
        chain_reason="there is a file $1/STOP (remove it and submit again to go on)"
        chain_code=75
        return 1
      fi
      return 0
      ;;
    *) chain_reason="exit status $2, which is none of the program's" ;;
  esac
  return 1
}

# chain_begin FOLDER CHAIN JOB: decides whether this job may start the program, and logs the start.
chain_begin() {
  local folder=$1 chain=$2 line code newest older fruitless=0
  # A run folder that lost its chain.log is not silently started from the beginning.
  if [ -z "$(chain_lines "$folder" "$chain" asked)" ]; then
    chain_reason="$folder/chain.log knows nothing of this chain: the run folder was moved, removed"
    chain_reason+=" or made anew since the chain was submitted (put it back, or submit again)"
    chain_code=2
    return 1
  fi
  if [ -e "$folder/STOP" ]; then chain_decide "$folder" 75 || return 1; fi
  line=$(chain_lines "$folder" "$chain" begin | tail -n 1)
  if [ -n "$line" ]; then
    code=$(
      chain_lines "$folder" "$chain" end |
        grep -s " job=$(chain_field job <<<"$line") " | tail -n 1 | chain_field code
    )
    chain_decide "$folder" "${code:-$(chain_code_of "$folder" "$line" '')}" || return 1
  fi
  newest=$(chain_newest "$folder")
  # Counts the starts since the newest checkpoint appeared.
  while read -r older; do
    fruitless=$((fruitless + 1))
    [ "$older" = "$newest" ] ||
      { [ "$older" != none ] && [ "$newest" != none ] && [ "$older" -gt "$newest" ]; } ||
      fruitless=0
  done < <(chain_lines "$folder" "$chain" begin | chain_field newest)
  if [ "$fruitless" -ge 3 ]; then
    chain_reason="three starts without a new checkpoint (the newest is that of step $newest)"
    chain_code=1
    return 1
  fi
  local marks
  marks="exit=$(chain_mark "$folder/exit.json") log=$(chain_mark "$folder/log.txt")"
  chain_write "$folder" "$chain" "begin job=$3 newest=$newest $marks" && return
  chain_code=1
  return 1
}

# chain_end FOLDER CHAIN JOB STATUS: logs the end of this job and decides whether the run may
# resume.
chain_end() {
  local code
  code=$(chain_code_of "$1" "$(chain_lines "$1" "$2" begin | tail -n 1)" "$4")
  chain_write "$1" "$2" "end job=$3 status=$4 code=$code"
  chain_decide "$1" "$code"
}

# chain_cancel_rest FOLDER CHAIN JOB CANCEL...: cancels the jobs that were submitted after this one.
# If that fails they start nothing.
chain_cancel_rest() {
  local folder=$1 chain=$2 job=$3 rest
  shift 3
  rest=$(
    chain_lines "$folder" "$chain" submitted | chain_field job |
      awk -v own="$job" 'after; $0 == own { after = 1 }'
  )
  if [ -n "$rest" ]; then
    # shellcheck disable=SC2086 # a word each
    "$@" $rest ||
      say "the rest of the chain (${rest//$'\n'/ }) could not be canceled:" \
        "each job will see for itself"
  fi
}
