// SPDX-License-Identifier: Apache-2.0
#include "block_group.hpp"

namespace trireme::kernels {

// The meta device has the memory of compute capability 9.0. On a device with less, a row between
// both limits takes the unfused kernels: more launches and bytes than planned, the same memory.
std::int64_t max_block_bytes(const Stream& stream) {
#if defined(KOKKOS_ENABLE_CUDA)
  if (stream.device.kind == DeviceKind::cuda) {
    // One device per process. Kokkos has read its properties.
    static const auto bytes =
        static_cast<std::int64_t>(Kokkos::Cuda().cuda_device_prop().sharedMemPerBlockOptin);
    return bytes;
  }
#endif
  constexpr std::int64_t bytes_of_compute_capability_90 = 227 << 10;
  return stream.device.kind == DeviceKind::cuda ? 0 : bytes_of_compute_capability_90;
}

}  // namespace trireme::kernels
