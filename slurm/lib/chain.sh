# shellcheck shell=bash disable=SC2034,SC2154 # the variables of the job scripts and of these files are shared
# What the jobs of a chain write down and decide by; sourced. A chain is some jobs for one run folder, each waiting for the one before it. Its memory is the
# file chain.log in the run folder, only ever appended:
#   <time> chain=ID asked jobs=N
#   <time> chain=ID submitted job=J
#   <time> chain=ID begin job=J newest=STEP|none exit=MARK log=MARK
#   <time> chain=ID end job=J status=S code=CODE|lost
# A job that was killed leaves a begin without an end. The marks tell whether exit.json and log.txt are of this start or of an earlier one.
# Functions that decide return 0 to go on, else 1 with the reason in chain_reason and the job's exit status in chain_code.

chain_write() { # FOLDER CHAIN WORDS...
  local file=$1/chain.log
  shift
  echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) chain=$*" >>"$file"
}

chain_mark() { stat -c %i.%.Y.%s "$1" 2>/dev/null || echo -; } # a file written anew has a new mark; its number, its size and even its second may be the old ones

chain_newest() { # FOLDER: the step of its newest checkpoint; other names are nobody's
  local file step=none
  for file in "$1"/checkpoints/step_*.h5; do
    [[ $file =~ /step_0*([0-9]{1,18})\.h5$ ]] || continue
    if [ "$step" = none ] || [ "${BASH_REMATCH[1]}" -gt "$step" ]; then step=${BASH_REMATCH[1]}; fi
  done
  echo "$step"
}

chain_lines() { grep -s " chain=$2 $3 " "$1/chain.log" || true; } # FOLDER CHAIN begin|end|submitted

chain_field() { sed -n "s/.* $1=\([^ ]*\).*/\1/p"; }

# chain_code_of FOLDER BEGIN-LINE STATUS: what became of a start. exit.json first; where there is none of this start, or one that says nothing, the program was killed if
# it had come as far as to open the run's log; else the exit status tells (empty: nobody lived to see it). A status of 2 is no launcher's: the program refused to begin,
# and the log that grows is that of a job which has the folder. Launchers give 128 and a signal's number for a rank that was killed, or the number alone (MPICH's).
chain_code_of() {
  local folder=$1 line=$2 status=$3 code=''
  if [ -e "$folder/exit.json" ] && [ "$(chain_mark "$folder/exit.json")" != "$(chain_field exit <<<"$line")" ]; then
    code=$(sed -n 's/^ *"code": *\([0-9][0-9]*\).*/\1/p' "$folder/exit.json" | head -n 1)
  fi
  if [ -n "$code" ]; then
    echo "$code"
  elif [ "$status" = 2 ]; then
    echo 2
  elif [ -z "$status" ] || [ "$status" -ge 128 ] || { [ "$status" -gt 2 ] && [ "$status" -lt 32 ]; } || [ "$(chain_mark "$folder/log.txt")" != "$(chain_field log <<<"$line")" ]; then
    echo lost
  else
    echo "$status"
  fi
}

chain_judge() { # FOLDER CODE
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

chain_begin() { # FOLDER CHAIN JOB
  local folder=$1 chain=$2 line code newest older fruitless=0
  if ! grep -qs " chain=$chain " "$folder/chain.log"; then # never begun anew in silence
    chain_reason="$folder/chain.log knows nothing of this chain: the run folder was moved, removed or made anew since the chain was submitted (put it back, or submit again)"
    chain_code=2
    return 1
  fi
  if [ -e "$folder/STOP" ]; then chain_judge "$folder" 75 || return 1; fi
  line=$(chain_lines "$folder" "$chain" begin | tail -n 1)
  if [ -n "$line" ]; then
    code=$(chain_lines "$folder" "$chain" end | grep -s " job=$(chain_field job <<<"$line") " | tail -n 1 | chain_field code)
    chain_judge "$folder" "${code:-$(chain_code_of "$folder" "$line" '')}" || return 1
  fi
  newest=$(chain_newest "$folder")
  while read -r older; do # the starts since the newest checkpoint came
    fruitless=$((fruitless + 1))
    [ "$older" = "$newest" ] || { [ "$older" != none ] && [ "$newest" != none ] && [ "$older" -gt "$newest" ]; } || fruitless=0
  done < <(chain_lines "$folder" "$chain" begin | chain_field newest)
  if [ "$fruitless" -ge 3 ]; then
    chain_reason="three starts without a new checkpoint (the newest is that of step $newest)"
    chain_code=1
    return 1
  fi
  chain_write "$folder" "$chain" "begin job=$3 newest=$newest exit=$(chain_mark "$folder/exit.json") log=$(chain_mark "$folder/log.txt")" && return
  chain_reason="$folder/chain.log cannot be written (is the disk full, the quota used up?)"
  chain_code=1
  return 1
}

chain_end() { # FOLDER CHAIN JOB STATUS
  local code
  code=$(chain_code_of "$1" "$(chain_lines "$1" "$2" begin | tail -n 1)" "$4")
  chain_write "$1" "$2" "end job=$3 status=$4 code=$code"
  chain_judge "$1" "$code"
}

chain_cancel_rest() { # FOLDER CHAIN JOB CANCEL...: takes the jobs that were submitted after this one out of the queue. Left there, they would start nothing.
  local folder=$1 chain=$2 job=$3 rest
  shift 3
  rest=$(chain_lines "$folder" "$chain" submitted | chain_field job | awk -v own="$job" 'after; $0 == own { after = 1 }')
  if [ -n "$rest" ]; then
    # shellcheck disable=SC2086 # a word each
    "$@" $rest || say "the rest of the chain (${rest//$'\n'/ }) could not be cancelled: each job will see for itself"
  fi
}
