// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <dnnl.hpp>

#include "trireme/ops/versions.hpp"

namespace trireme::ops {

std::string onednn_version() {
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("{}.{}.{}", version.major, version.minor, version.patch);
}

}  // namespace trireme::ops
