#!/usr/bin/env bash
# kokkos.sh PREFIX [cuda]: builds Kokkos 3.4.01 into PREFIX from the source that the Python package pykokkos-base carries (3.5 MB).
# Serial and OpenMP back ends in C++20. With `cuda` also the CUDA back end: the library in C++17 for sm_80 with PTX (this version names no
# newer architecture; the driver compiles the PTX for one), made to compile with CUDA 13 by three edits and to start on newer devices by one.
# A site's own Kokkos (Spack, a module) is better where there is one: see docs/installing.md.
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

# Kokkos 3.4.01 uses uint32_t without <cstdint>; the standard headers of g++ 13 and newer no longer include it.
options=(-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON
  -DKokkos_ENABLE_SERIAL=ON -DKokkos_ENABLE_OPENMP=ON -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_POLICY_VERSION_MINIMUM=3.16
  '-DCMAKE_CXX_FLAGS=-include cstdint')
if [ "$backend" = cuda ]; then
  sed -i 's/^#if !(defined(KOKKOS_COMPILER_CLANG)/#if 0 \&\& !(defined(KOKKOS_COMPILER_CLANG)/' "$source_dir/core/src/Cuda/Kokkos_Cuda_Half.hpp"
  sed -i 's/cudaMemPrefetchAsync(ptr, bytes, space.cuda_device(),/cudaMemPrefetchAsync(ptr, bytes, cudaMemLocation{cudaMemLocationTypeDevice, space.cuda_device()}, 0,/' \
    "$source_dir/core/src/Cuda/Kokkos_CudaSpace.cpp"
  # It ends the process where its kernels were compiled for another major version than the device's: what older PTX was made into runs on newer devices.
  sed -i 's/if (compiled_major != cudaProp.major || compiled_minor > cudaProp.minor) {/if (m_cudaArch > 100 * cudaProp.major + 10 * cudaProp.minor) {/' \
    "$source_dir/core/src/Cuda/Kokkos_Cuda_Instance.cpp"
  grep -q 'm_cudaArch > 100' "$source_dir/core/src/Cuda/Kokkos_Cuda_Instance.cpp"
  sed -i 's/^default_arch=.*/default_arch="sm_90"/' "$source_dir/bin/nvcc_wrapper"
  options+=(-DCMAKE_CXX_STANDARD=17 -DCMAKE_CXX_COMPILER="$source_dir/bin/nvcc_wrapper"
    -DKokkos_ENABLE_CUDA=ON -DKokkos_ENABLE_CUDA_LAMBDA=ON -DKokkos_ARCH_AMPERE80=ON)
else
  options+=(-DCMAKE_CXX_STANDARD=20)
fi

run_quietly() { # prints what a step said only where it failed
  "$@" >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; return 1; }
}
run_quietly cmake -S "$source_dir" -B "$work/build" -G Ninja "${options[@]}"
# Installed beside and moved at the end: an interrupted build leaves nothing that looks like a Kokkos.
run_quietly env DESTDIR="$work/stage" cmake --build "$work/build" --target install
cp "${BASH_SOURCE[0]}" "$work/stage$prefix/made_by.sh" # one that another edition of this file made is made anew
rm -rf "$prefix"
mkdir -p "$(dirname "$prefix")"
mv "$work/stage$prefix" "$prefix"
