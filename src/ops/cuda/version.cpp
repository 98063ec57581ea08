// SPDX-License-Identifier: Apache-2.0
#include <cudnn.h>
#include <fmt/format.h>

#include "trireme/ops/versions.hpp"

namespace trireme::ops {

std::string cudnn_version() {
  // From cuDNN 9 on: 91900 is 9.19.0.
  const std::size_t version = cudnnGetVersion();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace trireme::ops
