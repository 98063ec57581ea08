#pragma once

#include "trireme/device/launch.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::ops::cpu {

/// Launches work() on this host's cores, which may touch the stream's memory meanwhile. `work`
/// holds its values (trireme/device/launch.hpp).
template <class Work>
void launch_on_host(const Stream& stream, const Work& work) {
  launch(stream, [work](const Stream& to) {
    const DeviceAccess access(to);
    work();
  });
}

}  // namespace trireme::ops::cpu
