# SPDX-License-Identifier: Apache-2.0
#
# The variables of the job scripts and of these files are shared.
# shellcheck shell=bash disable=SC2034,SC2154
#
# Functions that the job scripts of all batch systems share; sourced by bash 4.4 or newer. `home` is
# the folder slurm/ of the sources or of an installed tree.
# shellcheck source=slurm/lib/chain.sh
. "$home/lib/chain.sh"
# shellcheck source=slurm/lib/stage.sh
. "$home/lib/stage.sh"

say() { echo "trireme: $*"; }
refuse() { echo "trireme: $*" >&2; exit 2; }

# find_program: prints the path of the program. It tries, in this order: TRIREME; bin/ of the
# installed tree that contains these scripts; the builds of the sources (the CUDA build first if the
# job has GPUs); PATH.
find_program() {
  local place places=("$home/../../../bin/trireme")
  [ "${SLURM_GPUS_ON_NODE:-0}" = 0 ] || places+=("$home/../build/cuda-release/bin/trireme")
  places+=("$home/../build/release/bin/trireme")
  if [ -n "${TRIREME:-}" ]; then
    [ -x "$TRIREME" ] || refuse "TRIREME = $TRIREME: no program is there"
    echo "$TRIREME"
    return
  fi
  for place in "${places[@]}"; do
    if [ -x "$place" ]; then
      echo "$(cd "$(dirname "$place")" && pwd)/trireme"
      return
    fi
  done
  command -v trireme ||
    refuse "no trireme beside $home, in build/ or on the PATH;" \
      "build it (docs/guides/install.md) or let TRIREME name it"
}

# use_site NAME: sources slurm/sites/NAME.sh, or the file NAME. It sets site_submit, site_launch and
# site_setup.
site_submit=()
site_launch=()
site_setup() { :; }
use_site() {
  local file=$1
  [ -n "$file" ] || return 0
  [ -e "$file" ] || file=$home/sites/$1.sh
  [ -e "$file" ] ||
    refuse "site \"$1\": no such file; known: $(cd "$home/sites" && echo *.sh | sed 's/\.sh//g')," \
      "or give the path of your own"
  # shellcheck disable=SC1090
  . "$file"
}

# deck_value DECK TABLE KEY [TRAIN OPTIONS...]: prints the string value of a key, from --set
# TABLE.KEY= or from the deck. Prints nothing if neither sets it, --unset removes it, or the string
# has escapes.
deck_value() {
  local deck=$1 table=$2 key=$3 option value before='' is_removed=''
  shift 3
  for option in "$@"; do
    [[ $before != --set && $before != --unset ]] || option=$before=$option
    case $option in
      --set="$table.$key"=*)
        value=${option#*=*=}
        case $value in \"*\" | \'*\') value=${value:1:-1} ;; esac
        echo "$value"
        return
        ;;
      --unset="$table.$key") is_removed=yes ;;
    esac
    before=$option
  done
  [ -z "$is_removed" ] || return 0
  awk -v table="[$table]" -v key="$key" '
    /^[ \t]*\[/ { gsub(/[ \t]/, ""); sub(/#.*/, ""); inside = ($0 == table); next }
    inside && $0 ~ "^[ \t]*" key "[ \t]*=" {
      sub(/^[^=]*=[ \t]*/, "")
      quote = substr($0, 1, 1)
      if (quote == "\"" && /\\/) exit
      if (quote == "\"" || quote == "\047") {
        split(substr($0, 2), part, quote); print part[1]; exit
      }
    }' "$deck"
}

# dataset_commands DECK: prints step 1 of the comment at the top of the deck, which makes its
# datasets. Prints nothing if there is no such step.
dataset_commands() {
  awk '!/^#/ || /^# 2\. / { exit } /^# 1\. / { step = 1 } step { sub(/^# ?/, ""); print }' "$1"
}

# datasets_exist: returns whether the folders of the datasets exist. Names those that are missing,
# and the commands that make them, before hundreds of ranks start.
datasets_exist() {
  local name folder missing='' commands
  for name in train validation test; do
    folder=$(deck_value "$deck" data $name "${options[@]}")
    if [ -n "$folder" ] && [ ! -d "$folder" ]; then
      say "data.$name = $folder: no such folder (the working directory is $PWD)" >&2
      missing=yes
    fi
  done
  [ -n "$missing" ] || return 0
  commands=$(dataset_commands "$deck")
  if [ -n "$commands" ]; then
    printf '%s\n%s\n' "trireme: $deck says how to make the datasets:" "$commands" >&2
  else
    say "make the datasets with trireme shard (trireme shard --help)," \
      "or name others with --set data.train=FOLDER" >&2
  fi
  return 1
}

# forward_and_wait COMMAND...: runs the command in the background and returns its exit status.
# SIGUSR1 and SIGTERM are passed on as SIGUSR1, which requests a checkpoint and exit status 75.
# SIGUSR2, which requests a report of every rank, is passed on too.
#
# A trap interrupts `wait`, hence the loop. The last `wait` cannot be interrupted: signals that
# arrive then are ignored. `early` is set if a signal arrived before the start.
forward_and_wait() {
  local child status=0
  "$@" </dev/null &
  child=$!
  trap 'say "the job is to end: SIGUSR1 to the launcher"
    kill -USR1 $child 2>/dev/null || true' USR1 TERM
  trap 'kill -USR2 $child 2>/dev/null || true' USR2
  [ -z "$early" ] || kill -USR1 "$child" 2>/dev/null || true
  while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done
  trap '' USR1 USR2 TERM
  wait "$child" || status=$?
  return "$status"
}

# examine LAUNCH...: with TRIREME_DOCTOR=report or strict, starts `trireme doctor` on all nodes of
# the job, for the file system of the run folder. Returns its exit status with strict, else 0.
examine() {
  local status=0 place
  [ -n "${TRIREME_DOCTOR:-}" ] || return 0
  place=$(deck_value "$deck" run folder "${options[@]}")
  place=${place:-.}
  # At the first start the run folder does not exist.
  while [ ! -d "$place" ]; do place=$(dirname "$place"); done
  say "job $job: $* $program doctor --folder $place"
  "$@" "$program" doctor --folder "$place" </dev/null || status=$?
  [ "$status" = 0 ] || say "job $job: trireme doctor: exit status $status"
  [ "$TRIREME_DOCTOR" = strict ] || return 0
  return "$status"
}

# train LAUNCH...: examines the nodes if TRIREME_DOCTOR is set, copies the datasets to the nodes if
# TRIREME_STAGE is set, starts the program and returns its exit status; 2 if a dataset is missing.
train() {
  local status=0
  if ! datasets_exist; then
    say "job $job: exit status 2"
    return 2
  fi
  if ! examine "$@"; then
    say "job $job: exit status 1"
    return 1
  fi
  if [ -n "${TRIREME_STAGE:-}" ]; then stage_data "$TRIREME_STAGE/trireme-$job"; fi
  # `early` is set here if the signal arrived while the data were copied.
  if [ -n "$early" ]; then
    status=75
  else
    say "job $job: $* $program train $deck ${options[*]}"
    forward_and_wait "$@" "$program" train "$deck" "${options[@]}" || status=$?
  fi
  say "job $job: exit status $status"
  if [ -n "${TRIREME_STAGE:-}" ]; then unstage_data "$TRIREME_STAGE/trireme-$job"; fi
  return "$status"
}

# run_job CANCEL... -- LAUNCH...: starts the program once, as a job of a chain if `chain` is set,
# and returns the exit status for the job. CANCEL is the command that cancels jobs. The calling
# script sets `program`, `deck`, `options`, `chain`, `folder` and `job`.
run_job() {
  local cancel=() status=0 early=''
  trap 'say "the job is to end before the program has started"; early=yes' USR1 TERM
  while [ "$1" != -- ]; do
    cancel+=("$1")
    shift
  done
  shift
  if [ -n "$chain" ] && ! chain_begin "$folder" "$chain" "$job"; then
    say "$chain_reason: job $job starts nothing"
    chain_cancel_rest "$folder" "$chain" "$job" "${cancel[@]}"
    return "$chain_code"
  fi
  train "$@" || status=$?
  if [ -n "$chain" ] && ! chain_end "$folder" "$chain" "$job" "$status"; then
    say "$chain_reason: the chain ends here"
    chain_cancel_rest "$folder" "$chain" "$job" "${cancel[@]}"
    return "$chain_code"
  fi
  return "$status"
}

# read_arguments "$@" of a job script: parses [--chain ID --folder RUN] [--site NAME] [DECK] [TRAIN
# OPTIONS...]. The deck is DECK, else TRIREME_DECK, else the ResNet-50 recipe of the tree.
read_arguments() {
  chain='' folder='' site=${TRIREME_SITE:-}
  while [ $# -gt 0 ]; do
    case $1 in
      --chain) chain=$2; shift 2 ;;
      --folder) folder=$2; shift 2 ;;
      --site) site=$2; shift 2 ;;
      --home) shift 2 ;;
      *) break ;;
    esac
  done
  deck=${TRIREME_DECK:-${home%/*}/inputs/recipes/resnet50_large_batch.toml}
  case ${1:-} in
    '' | -*) ;;
    *) deck=$1; shift ;;
  esac
  options=("$@")
  case ${TRIREME_DOCTOR:-} in
    '' | report | strict) ;;
    *) refuse "TRIREME_DOCTOR = $TRIREME_DOCTOR: must be report or strict, or not set" ;;
  esac
  [ -e "$deck" ] ||
    refuse "$deck: no such deck (the working directory is $PWD);" \
      "give one as the first word, or in TRIREME_DECK"
}
