# SPDX-License-Identifier: Apache-2.0
#
# The variables of the job scripts and of these files are shared.
# shellcheck shell=bash disable=SC2034,SC2154
#
# submit_chain N DECK [SUBMIT OPTIONS...] [-- TRAIN OPTIONS...]: submits N jobs for one deck, each
# of which starts when its predecessor has ended, with any status; sourced by the chain.sh scripts.
# The script defines submit_one PREVIOUS ID JOB-ARGUMENTS..., which prints the number of the
# submitted job.
# shellcheck source=slurm/lib/job.sh
. "$home/lib/job.sh"

submit_chain() {
  local count=${1:-} described name id previous='' job arguments sets=() before='' option
  [[ $count =~ ^[1-9][0-9]{0,2}$ ]] ||
    refuse "how many jobs at most? Give a number from 1 to 999 and the deck," \
      "as in: chain.sh 10 deck.toml"
  shift
  deck=${TRIREME_DECK:-}
  case ${1:-} in
    '' | -*) ;;
    *) deck=$1; shift ;;
  esac
  [ -n "$deck" ] || refuse "which deck? chain.sh N DECK, or TRIREME_DECK"
  [ -e "$deck" ] || refuse "$deck: no such deck"
  submit_options=("${site_submit[@]}")
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    submit_options+=("$1")
    shift
  done
  [ $# = 0 ] || shift
  # `trireme check` accepts only the options of `trireme train` that change the deck.
  for option in "$@"; do
    case $option in
      --set=* | --unset=*) sets+=("$option") ;;
      *) [[ $before != --set && $before != --unset ]] || sets+=("$before" "$option") ;;
    esac
    before=$option
  done

  program=$(find_program) || exit
  # Finds mistakes in the deck now, not after a day in the queue.
  described=$("$program" check "$deck" "${sets[@]}") || exit
  read -r name folder < <(sed -n 's/^run  *\([^ ]*\) in \(.*\)$/\1 \2/p' <<<"$described")
  [ -n "$folder" ] || refuse "$program check $deck: does not say the run's folder"
  [ ! -e "$folder/STOP" ] || refuse "there is a file $folder/STOP:" \
    "nothing is submitted; remove it to go on"

  id=$name-$(date -u +%Y%m%d-%H%M%S)-$$
  { mkdir -p "$folder" && chain_write "$folder" "$id" "asked jobs=$count"; } ||
    refuse "${chain_reason:-$folder cannot be made}: nothing is submitted"
  for ((i = 0; i < count; ++i)); do
    arguments=(--home "$home" --chain "$id" --folder "$folder")
    [ -z "${TRIREME_SITE:-}" ] || arguments+=(--site "$TRIREME_SITE")
    job=$(submit_one "$previous" "$id" "${arguments[@]}" "$deck" "$@") || job=''
    # The last line: a site's batch system may print a greeting first.
    job=${job##*$'\n'}
    if [[ ! $job =~ ^[^[:space:]]+$ ]]; then
      if [ "$i" = 0 ]; then
        say "the batch system took no job: nothing is submitted" >&2
      else
        say "the batch system took no more than $i of $count jobs. These are submitted and go" \
          "on by themselves; give the same command again when they have ended" >&2
      fi
      exit 1
    fi
    chain_write "$folder" "$id" "submitted job=$job"
    previous=$job
    echo "job $job: $((i + 1)) of at most $count"
  done
  echo "chain $id of $deck in $folder; to end it: touch $folder/STOP"
}
