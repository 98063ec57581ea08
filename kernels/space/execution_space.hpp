// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include "trireme/base/error.hpp"
#include "trireme/device/launch.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::kernels {

#if defined(KOKKOS_ENABLE_CUDA)
/// Returns the Kokkos execution space of a CUDA stream. The first call for a stream creates it,
/// which allocates memory. It lives until the stream or Kokkos ends.
const Kokkos::Cuda& cuda_space(const Stream& stream);
#endif

/// Calls `run(space)` with the Kokkos execution space of `stream`: now, or when a recorded launch
/// is submitted (device/launch.hpp).
/// Throws Failure if this build has no kernels for the device.
///
/// `run` is a generic host lambda that captures its values and calls a function template on the
/// space. A KOKKOS_LAMBDA belongs in that template, because nvcc rejects extended lambdas inside
/// generic ones:
///
///   template <class Space> void relu(const Space& space, Extents e) {
///     for_each_index(space, label, n, KOKKOS_LAMBDA(...));
///   }
///   void relu(Stream stream, Extents e) {
///     dispatch(stream, [=](const auto& space) { relu(space, e); });
///   }
///
/// Labels longer than 15 characters must be `const std::string` at namespace scope: a string that
/// is constructed in each call would allocate.
template <class Run>
void dispatch(const Stream& stream, const Run& run) {
  launch(stream, [run](const Stream& to) {
#if defined(KOKKOS_ENABLE_CUDA)
    if (to.device.kind == DeviceKind::cuda) {
      run(cuda_space(to));
      return;
    }
#endif
    const DeviceAccess access(to);
    if (to.device.kind != DeviceKind::cpu && to.device.kind != DeviceKind::emulated)
      throw Failure("no kernels for the device " + to_string(to.device) +
                    " in this build (CUDA devices need TRIREME_ENABLE_CUDA=ON)");
    run(Kokkos::DefaultHostExecutionSpace());
  });
}

}  // namespace trireme::kernels
