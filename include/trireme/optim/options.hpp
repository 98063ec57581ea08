#pragma once

#include <cstdint>
#include <optional>

#include "trireme/base/duration.hpp"

namespace trireme::optim {

enum class OptimizerKind : std::uint8_t { sgd, adamw, lars, lamb };

/// The deck's table [optimizer] (docs/reference/deck.md).
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  double weight_decay = 0;
  bool decay_all = false;
  double momentum = 0.9;                              ///< sgd, lars
  bool nesterov = false;                              ///< sgd
  double trust_coefficient = 0.001;                   ///< lars
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< adamw, lamb
  double clip_norm = 0;  ///< maximum 2-norm of the gradient; 0: no clipping
  double ema = 0;        ///< decay of the moving average of the weights; 0: no average
};

/// The deck's table [precision.loss_scale]: the factor of the loss if gradients are float16. All
/// values but the interval are powers of two, so that scaling rounds nothing.
struct LossScaleOptions {
  /// Limits of the scale. The upper one is float16's largest power of two (2^15) times 2^25 labels
  /// of a step.
  static constexpr double min_scale = 1, max_scale = 0x1p40;
  double initial = 65536, growth = 2, backoff = 0.5;
  std::int64_t interval = 2000;  ///< applied steps after which the scale grows
};

enum class ScheduleKind : std::uint8_t { constant, cosine };
enum class RateScaling : std::uint8_t { none, linear, sqrt };

/// The deck's table [schedule].
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::cosine;
  double rate = 0.1;
  std::int64_t base_batch = 256;
  RateScaling scaling = RateScaling::none;
  std::optional<Duration> warmup;
  std::optional<Duration> length;  ///< required if run.stop is a time
  double min_ratio = 0;
};

}  // namespace trireme::optim
