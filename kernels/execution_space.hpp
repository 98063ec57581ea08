#pragma once

#include <Kokkos_Core.hpp>

#include "trireme/base/error.hpp"
#include "trireme/device/launch.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::kernels {

#if defined(KOKKOS_ENABLE_CUDA)
/// The execution space of a CUDA stream. Made when the stream is first seen, which allocates; then
/// kept until the stream or Kokkos ends.
const Kokkos::Cuda& cuda_space(const Stream& stream);
#endif

/// Calls `run(space)` with the Kokkos execution space that stands for `stream`, now or when the
/// stream is given what it was asked (launch.hpp). `run` is a generic host lambda that holds its
/// values and calls a function template on the space; the KOKKOS_LAMBDA stands in that template,
/// because nvcc takes no extended lambda inside a generic one:
///   template <class Space> void relu(const Space& space, Extents e) { Kokkos::parallel_for(label,
///   Kokkos::RangePolicy<Space>(space, 0, n), KOKKOS_LAMBDA(...)); } void relu(Stream stream,
///   Extents e) { dispatch(stream, [=](const auto& space) { relu(space, e); }); }
/// A label longer than 15 characters is a namespace-scope `const std::string`: made anew at each
/// call it would allocate.
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
      throw Failure("no kernels for the device " + to_string(to.device) + " in this build");
    run(Kokkos::DefaultHostExecutionSpace());
  });
}

}  // namespace trireme::kernels
