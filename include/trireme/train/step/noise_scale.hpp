// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace trireme::train {

/// Squared norms of the gradients of one measured step. Each is the gradient of a mean over its
/// samples, over all weights of the model.
struct GradientSquares {
  double small = 0;  ///< of one micro-batch: the mean over all micro-batches of the step
  double large = 0;  ///< of the whole step
};

/// The part of the noise scale that checkpoints keep: exponential sums over measured steps, 0.9 sum
/// + 0.1 value.
struct NoiseScaleState {
  double norm_sum = 0, trace_sum = 0;
  std::int64_t measurements = 0;
  bool operator==(const NoiseScaleState&) const = default;
};

/// Estimates of McCandlish et al. 2018, appendix A.1.
struct NoiseScale {
  double gradient_norm_squared = 0;  ///< |G|^2, the squared norm of the true gradient
  double trace = 0;  ///< tr(Sigma), the summed variance of the gradient of one sample
  /// B_simple = tr(Sigma) / |G|^2 in samples; not a number if |G|^2 is not positive
  double samples = 0;
};

/// Computes both estimates from one step, adds them to the averages of `state`, and returns the
/// averages with Adam's bias correction. `small_batch` and `large_batch` are the samples of a
/// micro-batch and of a step (large_batch > small_batch).
NoiseScale add_measurement(const GradientSquares& squares, std::int64_t small_batch,
                           std::int64_t large_batch, NoiseScaleState& state);

}  // namespace trireme::train
