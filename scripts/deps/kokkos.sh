#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kokkos.sh PREFIX [cuda]: builds Kokkos 3.4.01 into PREFIX.
#
# The source (3.5 MB) comes from the Python package pykokkos-base. The host build has the Serial and
# OpenMP back ends, in C++20. With `cuda` it also has the CUDA back end, in C++17 for sm_80 with
# PTX, the newest architecture that this version knows, and machine code for sm_90. Three edits make
# it compile with CUDA 13; a fourth one lets it start on newer devices; a fifth one removes the
# cache preference of each kernel. Prefer a Kokkos that your site provides (Spack, a module): see
# docs/guides/install.md.
set -euo pipefail
prefix=$1
backend=${2:-host}
name=pykokkos-base-0.0.7
sha256=6339daced1e81a2748f381847d8717cd77d824407da3c263b9491b5630c642b0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m pip download -q --no-deps --no-binary pykokkos-base -d "$work" pykokkos-base==0.0.7
echo "$sha256  $work/$name.tar.gz" | sha256sum -c --quiet
tar -xzf "$work/$name.tar.gz" -C "$work" "$name/external/kokkos"
source_dir=$work/$name/external/kokkos

# Kokkos 3.4.01 uses uint32_t without <cstdint>. The standard headers of g++ 13 and newer no longer
# include it. Its messages name files without the folder of this build.
options=(-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON
  -DKokkos_ENABLE_SERIAL=ON -DKokkos_ENABLE_OPENMP=ON -DCMAKE_INSTALL_PREFIX="$prefix"
  -DCMAKE_POLICY_VERSION_MINIMUM=3.16
  "-DCMAKE_CXX_FLAGS=-include cstdint -ffile-prefix-map=$source_dir/=kokkos/")
if [ "$backend" = cuda ]; then
  cuda_sources=$source_dir/core/src/Cuda
  sed -i 's/^#if !(defined(KOKKOS_COMPILER_CLANG)/#if 0 \&\& !(defined(KOKKOS_COMPILER_CLANG)/' \
    "$cuda_sources/Kokkos_Cuda_Half.hpp"
  old='cudaMemPrefetchAsync(ptr, bytes, space.cuda_device(),'
  new='cudaMemPrefetchAsync(ptr, bytes, cudaMemLocation{cudaMemLocationTypeDevice, '
  new+='space.cuda_device()}, 0,'
  sed -i "s/$old/$new/" "$cuda_sources/Kokkos_CudaSpace.cpp"
  # Kokkos aborts if its kernels were compiled for another major version than the device has. PTX of
  # an older version also runs on newer devices, so only a newer version is refused.
  old='if (compiled_major != cudaProp.major || compiled_minor > cudaProp.minor) {'
  new='if (m_cudaArch > 100 * cudaProp.major + 10 * cudaProp.minor) {'
  sed -i "s/$old/$new/" "$cuda_sources/Kokkos_Cuda_Instance.cpp"
  grep -q 'm_cudaArch > 100' "$cuda_sources/Kokkos_Cuda_Instance.cpp"
  # A device may wait for the end of a kernel before it starts one of another preference, also for
  # those of NCCL.
  launch_header=$cuda_sources/Kokkos_Cuda_KernelLaunch.hpp
  sed -i 's/^#ifndef KOKKOS_ARCH_KEPLER$/#if 0 \&\& !defined(KOKKOS_ARCH_KEPLER)/' "$launch_header"
  grep -q '^#if 0 && !defined(KOKKOS_ARCH_KEPLER)' "$launch_header"
  sed -i 's/^default_arch=.*/default_arch="sm_90"/' "$source_dir/bin/nvcc_wrapper"
  # Read by nvcc itself: Kokkos' wrapper of nvcc takes one architecture.
  export NVCC_APPEND_FLAGS='-gencode arch=compute_90,code=sm_90'
  options+=(-DCMAKE_CXX_STANDARD=17 -DCMAKE_CXX_COMPILER="$source_dir/bin/nvcc_wrapper"
    -DKokkos_ENABLE_CUDA=ON -DKokkos_ENABLE_CUDA_LAMBDA=ON -DKokkos_ARCH_AMPERE80=ON)
else
  options+=(-DCMAKE_CXX_STANDARD=20)
fi

run_logged=$(dirname "${BASH_SOURCE[0]}")/../run_logged.sh
"$run_logged" --quiet "$prefix.log" cmake -S "$source_dir" -B "$work/build" -G Ninja "${options[@]}"
# Installs into a staging folder and moves it at the end: an interrupted build leaves no PREFIX.
DESTDIR=$work/stage "$run_logged" --quiet "$prefix.log" \
  cmake --build "$work/build" --target install
# install_deps.sh builds Kokkos again if this script has changed since.
cp "${BASH_SOURCE[0]}" "$work/stage$prefix/made_by.sh"
rm -rf "$prefix" "$prefix.log"
mv "$work/stage$prefix" "$prefix"
