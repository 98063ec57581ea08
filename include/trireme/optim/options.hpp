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
