// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/step/noise_scale.hpp"

#include <cmath>
#include <limits>

namespace trireme::train {

// The formulas for users: docs/reference/numerics.md.
NoiseScale add_measurement(const GradientSquares& squares, std::int64_t small_batch,
                           std::int64_t large_batch, NoiseScaleState& state) {
  constexpr double decay = 0.9;
  const auto small = static_cast<double>(small_batch), large = static_cast<double>(large_batch);
  const double norm = (large * squares.large - small * squares.small) / (large - small),
               trace = (squares.small - squares.large) / (1 / small - 1 / large);
  state.norm_sum = decay * state.norm_sum + (1 - decay) * norm;
  state.trace_sum = decay * state.trace_sum + (1 - decay) * trace;
  ++state.measurements;
  const double weight = 1 - std::pow(decay, static_cast<double>(state.measurements));
  NoiseScale result{.gradient_norm_squared = state.norm_sum / weight,
                    .trace = state.trace_sum / weight,
                    .samples = std::numeric_limits<double>::quiet_NaN()};
  if (result.gradient_norm_squared > 0)
    result.samples = result.trace / result.gradient_norm_squared;
  return result;
}

}  // namespace trireme::train
