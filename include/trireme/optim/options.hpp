// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/duration.hpp"
#include "trireme/optim/rule.hpp"

namespace trireme::optim {

/// The factor by which Muon multiplies the rate of a matrix.
enum class MatrixScale : std::uint8_t {
  adamw,    ///< 0.2 sqrt(max(out, in)): updates of the size that AdamW's have (Liu et al. 2025)
  original  ///< sqrt(max(1, out / in)) (Jordan et al. 2024)
};

/// An update rule and its numbers.
struct RuleOptions {
  const UpdateRule* rule = &optim::rule("sgd");
  double momentum = 0.9;
  bool nesterov = false;
  DType newton_schulz = DType::bfloat16;  ///< of the products that orthogonalize a matrix
  MatrixScale scale = MatrixScale::adamw;
  double trust_coefficient = 0.001;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  bool operator==(const RuleOptions&) const = default;
};

/// One of the deck's [[optimizer.groups]]: how the weights that it matches are trained.
struct ParameterGroup {
  /// Pattern of the names of weights: * stands for any characters, ? for one.
  std::string match;
  double rate_ratio = 1;                 ///< factor of the learning rate
  std::optional<double> decay = {};      ///< weight decay, in place of weight_decay and decay_all
  bool frozen = false;                   ///< the weights keep their values
  bool trust = true;                     ///< false: their trust ratio is 1
  std::optional<double> trust_max = {};  ///< a larger trust ratio becomes this one
  /// In place of the optimizer's own rule, with the optimizer's numbers. Null: the own one.
  const UpdateRule* rule = nullptr;
  bool operator==(const ParameterGroup&) const = default;
};

/// The deck's table [optimizer] (docs/reference/deck.md).
struct OptimizerOptions : RuleOptions {
  bool operator==(const OptimizerOptions&) const = delete;
  double weight_decay = 0;
  bool decay_all = false;
  double clip_value = 0;  ///< maximum magnitude of an element of the gradient; 0: no clipping
  double clip_norm = 0;   ///< maximum 2-norm of the gradient; 0: no clipping
  double ema = 0;         ///< decay of the moving average of the weights; 0: no average
  std::vector<ParameterGroup> groups;  ///< the first that matches a weight counts
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

enum class ScheduleKind : std::uint8_t {
  constant,
  cosine,
  step,
  exponential,
  polynomial,
  restarts,
  one_cycle,
  plateau
};
enum class RateScaling : std::uint8_t { none, linear, sqrt };

/// The keys of kind = "plateau" (PyTorch's ReduceLROnPlateau).
struct PlateauOptions {
  std::string metric = "loss";  ///< loss | top1 | perplexity, of data.validation
  double threshold = 1e-4;      ///< relative change that counts as an improvement
  double factor = 0.1;          ///< by which the rate is multiplied
  std::int64_t patience = 10;   ///< evaluations without improvement that are tolerated
  std::int64_t cooldown = 0;    ///< evaluations after a reduction that do not count
};

/// The deck's table [schedule]. The kinds that a key belongs to are in src/optim/keys.cpp.
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::cosine;
  double rate = 0.1;
  std::int64_t base_batch = 256;
  RateScaling scaling = RateScaling::none;
  std::optional<Duration> warmup;
  std::optional<Duration> length;  ///< required if run.stop is a time and the kind has an end
  double start_ratio = 0;          ///< rate before the warm-up / peak rate; one-cycle: 0.04
  double min_ratio = 0;            ///< lowest rate after it / peak rate; one-cycle: 4e-6
  std::vector<Duration> milestones;
  std::optional<Duration> every;
  double gamma = 0.1;
  double power = 1;
  Duration period{0, Duration::Unit::epochs};
  double period_factor = 1;
  double peak_at = 0.3;                              ///< part of the schedule before the peak
  std::array<double, 2> momentum_range{0.85, 0.95};  ///< at the peak, and at both ends
  PlateauOptions plateau;

  /// Returns whether the rate depends on the length of the schedule.
  bool has_end() const {
    return kind == ScheduleKind::cosine || kind == ScheduleKind::polynomial ||
           kind == ScheduleKind::one_cycle;
  }
  /// Returns whether the momentum of this rule changes with the rate.
  bool varies_momentum(const UpdateRule& rule) const {
    return kind == ScheduleKind::one_cycle && rule.has_key("momentum");
  }
};

}  // namespace trireme::optim
