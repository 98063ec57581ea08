#pragma once

#include <Kokkos_Core.hpp>

#include "trireme/base/error.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::kernels {

#if defined(KOKKOS_ENABLE_CUDA)
/// The execution space of a CUDA stream. Made when the stream is first seen, which allocates; then kept until the stream or Kokkos ends.
const Kokkos::Cuda& cuda_space(const Stream& stream);
#endif

/// Calls `run(space)` with the Kokkos execution space that stands for `stream`. `run` is a generic host lambda that calls a function
/// template on the space; the KOKKOS_LAMBDA stands in that template, because nvcc takes no extended lambda inside a generic one:
///   template <class Space> void relu(const Space& space, Extents e) { Kokkos::parallel_for(label, Kokkos::RangePolicy<Space>(space, 0, n), KOKKOS_LAMBDA(...)); }
///   void relu(Stream stream, Extents e) { dispatch(stream, [&](const auto& space) { relu(space, e); }); }
/// A label longer than 15 characters is a namespace-scope `const std::string`: made anew at each call it would allocate.
template <class Run>
void dispatch(const Stream& stream, const Run& run) {
#if defined(KOKKOS_ENABLE_CUDA)
  if (stream.device.kind == DeviceKind::cuda) {
    run(cuda_space(stream));
    return;
  }
#endif
  const DeviceAccess access(stream);
  if (stream.device.kind != DeviceKind::cpu && stream.device.kind != DeviceKind::emulated)
    throw Failure("no kernels for the device " + to_string(stream.device) + " in this build");
  run(Kokkos::DefaultHostExecutionSpace());
}

}  // namespace trireme::kernels
