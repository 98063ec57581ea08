// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/duration.hpp"
#include "trireme/optim/options.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::deck {

enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

/// Table [run].
struct RunOptions {
  std::string name, folder;
  std::uint64_t seed = 1;
  DeviceChoice device = DeviceChoice::automatic;
  bool deterministic = false;
  bool graphs = true;
  Duration stop{10, Duration::Unit::epochs};
  bool walltime_auto = true;         ///< walltime = "auto": ask the batch system.
  std::optional<Duration> walltime;  ///< An explicit duration.
  Duration walltime_margin{300, Duration::Unit::seconds};
};

/// A row of batch.ramp: the samples per step from a point of the training on.
struct RampRow {
  Duration from;  ///< A count. The row begins at the first step at or past it.
  std::int64_t global = 0;
  bool operator==(const RampRow&) const = default;
};

/// Table [batch].
struct BatchOptions {
  /// Samples per step. With a ramp: those of its first row.
  std::int64_t global = 256;
  std::int64_t micro = 64;
  std::vector<RampRow> ramp = {};  ///< Empty: every step has `global` samples.
  /// Returns the samples of the largest step.
  std::int64_t max_global() const {
    std::int64_t largest = global;
    for (const RampRow& row : ramp) largest = std::max(largest, row.global);
    return largest;
  }
};

/// Precision of computation.
/// - tfloat32: float32 tensors; GPU tensor cores keep 10 bits of the mantissa in products and
///   convolutions.
/// - float8: bfloat16 tensors; layers inside a language model's blocks multiply operands rounded to
///   float8.
enum class ComputePrecision : std::uint8_t { float32, tfloat32, bfloat16, float16, float8 };

/// Table [precision].
struct PrecisionOptions {
  ComputePrecision compute = ComputePrecision::float32;
  /// Type in which data ranks exchange gradients: float32 or bfloat16.
  DType reduce = DType::float32;
  optim::LossScaleOptions loss_scale;  ///< Used for float16 only.
  /// Returns the type of activations and working weights.
  DType dtype() const {
    switch (compute) {
      case ComputePrecision::bfloat16:
      case ComputePrecision::float8: return DType::bfloat16;
      case ComputePrecision::float16: return DType::float16;
      case ComputePrecision::float32:
      case ComputePrecision::tfloat32: break;
    }
    return DType::float32;
  }
};

/// Table [evaluate].
struct EvaluateOptions {
  Duration every{1, Duration::Unit::epochs};
  std::int64_t subset = 0;  ///< samples of an evaluation during training; 0: all
};

/// Table [health].
struct HealthOptions {
  bool skip_nonfinite = true;  ///< False: the first non-finite loss or gradient ends the run.
  /// A step is not applied if its loss exceeds the running mean by this factor; 0: off.
  double spike_ratio = 10;
  double spike_warn = 3;  ///< A loss above the running mean by this factor is reported; 0: off.
  double grad_norm_warn = 100;  ///< A larger gradient norm is reported; 0: off.
  int rollback_after = 5;       ///< Roll back after this many consecutive dropped steps.
  int rollbacks = 3;            ///< Maximum number of rollbacks of a run; then it ends as diverged.
  /// Interval at which hashes of replicated weights are compared; none: never.
  std::optional<Duration> compare_replicas = Duration{1000, Duration::Unit::steps};
  std::optional<Duration> watchdog =
      Duration{120, Duration::Unit::seconds};  ///< Smallest deadline of the watchdog; none: off.
};

/// A fault to inject at one rank, for tests of recovery.
struct Fault {
  enum class Kind : std::uint8_t {
    kill,   ///< The process sends itself SIGKILL.
    stop,   ///< The process sends itself SIGSTOP.
    sleep,  ///< The thread sleeps for `seconds`.
    nan,    ///< The rank's gradient of this step is NaN (ranks of the last stage only).
    flip    ///< One bit of the rank's weights is flipped.
  };
  Kind kind = Kind::kill;
  double seconds = 0;
  int rank = 0;                      ///< World rank.
  std::int64_t first = 1, last = 1;  ///< First and last step, inclusive.
  std::string phase = "step";        ///< one of fault_phases
  bool operator==(const Fault&) const = default;
};

/// Phases of a step, in order. "step" is entered before the step; the "checkpoint-..." phases are
/// entered by checkpoint::write and checkpoint::rotate; "row" is entered after the last step of a
/// row of batch.ramp.
inline constexpr const char* fault_phases[] = {"step",
                                               "evaluation",
                                               "checkpoint-begin",
                                               "checkpoint-copy",
                                               "checkpoint-write",
                                               "checkpoint-close",
                                               "checkpoint-rename",
                                               "checkpoint-renamed",
                                               "checkpoint-rotate",
                                               "row"};

/// `emulated`: the host emulates a device and checks strictly that host and device memory are not
/// mixed (DeviceKind::emulated).
enum class DebugDevice : std::uint8_t { automatic, emulated };

/// Table [debug].
struct DebugOptions {
  std::vector<Fault> faults;                    ///< Key debug.fault.
  DebugDevice device = DebugDevice::automatic;  ///< automatic: the device of run.device.
  bool fusions = true;                          ///< As in ops::ContextOptions.
  bool fused_softmax = false;                   ///< As in ops::ContextOptions.
  bool joined_norms = false;                    ///< As in ops::ContextOptions.
};

}  // namespace trireme::deck
