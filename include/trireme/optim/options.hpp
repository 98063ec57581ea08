#pragma once

#include <cstdint>
#include <optional>

#include "trireme/base/duration.hpp"

namespace trireme::optim {

enum class OptimizerKind : std::uint8_t { sgd, adamw, lars, lamb };

/// Table [optimizer].
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  double weight_decay = 0;
  bool decay_all = false;
  double momentum = 0.9;                              ///< sgd, lars
  bool nesterov = false;                              ///< sgd
  double trust_coefficient = 0.001;                   ///< lars
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< adamw, lamb
  double clip_norm = 0;
  double ema = 0;  ///< decay of the average of the weights; 0: none is kept
};

/// Table [precision.loss_scale]: what the loss is multiplied by where gradients are float16. All
/// but the interval are powers of two.
struct LossScaleOptions {
  static constexpr double
      min_scale = 1,
      max_scale = 0x1p40;  ///< most: float16's largest power of two where a step has 2^25 labels
  double initial = 65536, growth = 2, backoff = 0.5;
  std::int64_t interval = 2000;  ///< applied steps after which it grows
};

enum class ScheduleKind : std::uint8_t { constant, cosine };
enum class RateScaling : std::uint8_t { none, linear, sqrt };

/// Table [schedule].
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::cosine;
  double rate = 0.1;
  std::int64_t base_batch = 256;
  RateScaling scaling = RateScaling::none;
  std::optional<Duration> warmup;
  std::optional<Duration> length;  ///< required where run.stop is a time
  double min_ratio = 0;
};

}  // namespace trireme::optim
