// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <fmt/format.h>

#include "trireme/base/duration.hpp"

namespace trireme::optim {

/// Returns why an interval of the schedule (every, period) cannot be used with batch.ramp; none if
/// it can. The deck and optim::Schedule put the key in front.
inline std::optional<std::string> broken_ramp_rule(const Duration& interval) {
  if (interval.unit != Duration::Unit::steps) return std::nullopt;
  return fmt::format(
      "\"{}\" has no fixed number of samples, because batch.ramp changes those of a step; use "
      "epochs or samples",
      to_string(interval));
}

}  // namespace trireme::optim
