// SPDX-License-Identifier: Apache-2.0
#include "trireme/data/targets/target_options.hpp"

#include "trireme/base/check.hpp"

namespace trireme::data {

void check_target_size(const TargetOptions& target, std::int64_t values) {
  const auto given = static_cast<std::int64_t>(target.mean.size());
  validate(given <= 1 || given == values,
           "target.normalize has {} numbers, but the target of a sample has {}; give one for each "
           "in mean and in std, or one for all",
           given, values);
}

}  // namespace trireme::data
