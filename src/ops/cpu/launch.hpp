// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/device/launch.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::ops::cpu {

/// Launches work() on the host's cores when the stream reaches it; work() may access the stream's
/// memory. `work` holds its values by copy (trireme/device/launch.hpp).
template <class Work>
void launch_on_host(const Stream& stream, const Work& work) {
  launch(stream, [work](const Stream& to) {
    const DeviceAccess access(to);
    work();
  });
}

}  // namespace trireme::ops::cpu
