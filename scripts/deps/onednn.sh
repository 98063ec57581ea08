#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# onednn.sh PREFIX: installs oneDNN 3.2 (CPU, OpenMP by libgomp) into PREFIX for find_package(dnnl
# 3).
#
# The files come from two Python wheels, whose checksums are verified. For machines whose own
# package is too old (Debian 12 has 2.6, with another interface). The wheels exist for x86-64 only.
set -euo pipefail
prefix=$1
if [ "$(uname -m)" != x86_64 ]; then
  echo "onednn.sh: the wheels are for x86-64 and this is $(uname -m);" \
    "install oneDNN 3 with Spack or from source (docs/guides/install.md)" >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download -q --no-deps -d "$work" \
  onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0
cd "$work"
library_sha256=2f22a54d6a890ed14bfa185d42a4be65d8b5b1df85dc1f0f3a9abe31620416fb
headers_sha256=9763c69e8c907e119056bd52ad918ca84ac9ba939d130a99dfa95ccca3e5e284
{
  for wheel in onednn_cpu_gomp*.whl; do echo "$library_sha256  $wheel"; done
  for wheel in onednn_devel_cpu_gomp*.whl; do echo "$headers_sha256  $wheel"; done
} | sha256sum -c --quiet
for wheel in ./*.whl; do python3 -m zipfile -e "$wheel" unpacked; done
mkdir stage
cp -a unpacked/*.data/data/. stage/
# The wheel holds three copies of the library: replaces two by links.
(
  cd stage/lib && rm -f libdnnl.so libdnnl.so.3 &&
    ln -s libdnnl.so.3.2 libdnnl.so.3 && ln -s libdnnl.so.3 libdnnl.so
)
rm -rf "$prefix"
mkdir -p "$(dirname "$prefix")"
mv stage "$prefix"
