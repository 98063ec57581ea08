# SPDX-License-Identifier: Apache-2.0
#
# The variables of the job scripts and of these files are shared.
# shellcheck shell=bash disable=SC2034,SC2154
#
# Copies the datasets of the deck to a local disk of every node and makes the run read the copies;
# sourced by job.sh. The array `each_node` starts a command once on every node. Every node gets the
# whole dataset, since any rank may read any sample in the next epoch. If one node has not enough
# space, the run reads the original files.

# stage_data LOCAL-FOLDER
stage_data() {
  local local_folder=$1 name source rest=() before='' option staged=()
  if [ ${#each_node[@]} = 0 ]; then
    say "TRIREME_STAGE: no way is known here to start a command on every node" \
      "(TRIREME_EACH_NODE names one): reading the data where they are"
    return
  fi
  for name in train validation test; do
    source=$(deck_value "$deck" data $name "${options[@]}")
    [ -d "$source" ] || continue
    # shellcheck disable=SC2016 # expanded on the nodes
    if "${each_node[@]}" bash -c '
      set -e
      bytes=$(du -sbL "$1" | cut -f1)
      mkdir -p "$2"
      free=$(df -B1 --output=avail "$2" | tail -n 1)
      if [ "$free" -lt $((bytes + bytes / 20)) ]; then
        echo "trireme: $(hostname): $1 needs $bytes bytes, $2 has $free" >&2
        exit 1
      fi
      cp -L "$1"/*.h5 "$2"' stage "$source" "$local_folder/$name"; then
      staged+=("$name")
    else
      say "data.$name stays where it is: $source could not be copied to $local_folder on every node"
    fi
  done
  # A key may be set only once: the staged folder replaces the user's own --set.
  for option in "${options[@]}"; do
    rest+=("$option")
    [ "$before" != --set ] || option=--set=$option
    for name in "${staged[@]}"; do
      case $option in
        --set=data."$name"=*)
          unset 'rest[-1]'
          [ "$before" != --set ] || unset 'rest[-1]'
          break
          ;;
      esac
    done
    before=$option
  done
  options=("${rest[@]}")
  for name in "${staged[@]}"; do
    options+=(--set "data.$name=$local_folder/$name")
    say "data.$name: on every node in $local_folder/$name"
  done
}

# unstage_data LOCAL-FOLDER
unstage_data() { [ ${#each_node[@]} = 0 ] || "${each_node[@]}" rm -rf "$1" || true; }
