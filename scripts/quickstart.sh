#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# quickstart.sh: takes a bare Debian or Ubuntu machine to a trained network.
#
# 1. Installs the missing packages and builds build/release/bin/trireme.
# 2. Makes the Fashion-MNIST dataset in data/fashion.
# 3. Trains a deck on two ranks: inputs/examples/fashion_resnet.toml, or that which is named, as in
#    scripts/quickstart.sh inputs/examples/fashion_vit.toml
# 4. Prints the table of the run and the accuracy on the test set.
#
# An interrupted script resumes when it is started again. A finished one changes nothing. A build
# that fails ends the script with its first error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
deck=${1:-inputs/examples/fashion_resnet.toml}
source_folder=${FASHION_MNIST:-/usr/share/datasets/fashion-mnist}
classes="T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
say() { echo "quickstart: $*"; }
if [ $# -gt 0 ] && [ ! -f "$deck" ]; then
  say "$deck: no such deck; name one of $PWD/inputs/examples/fashion_*.toml" >&2
  exit 2
fi

scripts/install_deps.sh
# shellcheck source=scripts/environment.sh
. scripts/environment.sh

if [ ! -e build/release/build.ninja ]; then
  say "configure"
  scripts/run_logged.sh build/release.configure.log cmake --preset release
fi
say "build (minutes the first time)"
scripts/run_logged.sh build/release.build.log cmake --build --preset release --target trireme
trireme=build/release/bin/trireme

# shards SPLIT FILES [OPTIONS of trireme shard]: makes one dataset; its folder appears once it is
# complete.
shards() {
  local split=$1 files=$2
  shift 2
  [ -d "data/fashion/$split" ] && return
  say "dataset data/fashion/$split"
  rm -rf "data/fashion/$split.partial"
  mkdir -p data/fashion
  "$trireme" shard idx \
    "$source_folder/$files-images-idx3-ubyte.gz" "$source_folder/$files-labels-idx1-ubyte.gz" \
    --out "data/fashion/$split.partial" --classes "$classes" "$@"
  mv "data/fashion/$split.partial" "data/fashion/$split"
}
shards train train --shards 4 --range 0:50000
shards validation train --range 50000:60000
shards test t10k

folder=$(sed -n 's/^folder *= *"\([^"]*\)".*/\1/p' "$deck" | head -n 1)
[ -n "$folder" ] || folder=runs/$(sed -n 's/^name *= *"\([^"]*\)".*/\1/p' "$deck" | head -n 1)
finished=no
if grep -q '"code": *0\b' "$folder/exit.json" 2>/dev/null; then
  finished=yes
  say "the run in $folder is finished; nothing to do" \
    "(a new one: $trireme train $deck --restart none)"
fi
if [ "$finished" = no ]; then
  cores=$(nproc)
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > 3 ? cores / 2 : 1))}
  say "train $deck on 2 ranks, $OMP_NUM_THREADS thread(s) each"
  mpirun -n 2 "$trireme" train "$deck"
fi
python3 scripts/run_table.py "$folder"
say "run folder: $folder (metrics.jsonl, checkpoints/, tensorboard/)"
