#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/duration.hpp"
#include "trireme/optim/options.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::train {

enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

/// Table [run].
struct RunOptions {
  std::string name, folder;
  std::uint64_t seed = 1;
  DeviceChoice device = DeviceChoice::automatic;
  bool deterministic = false;
  bool graphs = true;
  Duration stop{10, Duration::Unit::epochs};
  bool walltime_auto = true;         ///< walltime = "auto"
  std::optional<Duration> walltime;  ///< a given duration
  Duration walltime_margin{300, Duration::Unit::seconds};
};

/// Table [batch].
struct BatchOptions {
  std::int64_t global = 256, micro = 64;
};

/// tfloat32: float32 tensors, of which the tensor cores of a GPU keep 10 bits of the mantissa in
/// products and convolutions. float8: bfloat16 tensors; the layers inside a language model's blocks
/// multiply what is rounded to float8.
enum class ComputePrecision : std::uint8_t { float32, tfloat32, bfloat16, float16, float8 };

/// Table [precision].
struct PrecisionOptions {
  ComputePrecision compute = ComputePrecision::float32;
  DType reduce =
      DType::float32;  ///< of what data ranks send each other of gradients: float32, bfloat16
  optim::LossScaleOptions loss_scale;  ///< float16
  /// Of activations and working weights.
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
};

/// Table [health].
struct HealthOptions {
  bool skip_nonfinite = true;  ///< false: a loss or gradient that is not finite ends the run
  double spike_ratio =
      10;                 ///< a loss above this many times the running mean is not applied; 0: off
  double spike_warn = 3;  ///< one above this many times is reported; 0: off
  double grad_norm_warn = 100;  ///< a gradient norm above this is reported; 0: off
  int rollback_after = 5;       ///< steps in a row that were not applied
  int rollbacks = 3;            ///< roll-backs of a run, after which such steps end it
  std::optional<Duration> compare_replicas =
      Duration{1000, Duration::Unit::steps};  ///< hashes of replicated weights; none: never
  std::optional<Duration> watchdog =
      Duration{120, Duration::Unit::seconds};  ///< the shortest deadline; none: off
};

/// Something that goes wrong on purpose, at one rank.
struct Fault {
  enum class Kind : std::uint8_t {
    kill,   ///< SIGKILL to itself
    stop,   ///< SIGSTOP to itself
    sleep,  ///< stands still for `seconds`
    nan,    ///< this step's gradient of the rank is not a number (ranks of the last stage)
    flip    ///< one bit of the rank's weights is turned over
  };
  Kind kind = Kind::kill;
  double seconds = 0;
  int rank = 0;                      ///< of the world
  std::int64_t first = 1, last = 1;  ///< steps
  std::string phase = "step";        ///< one of fault_phases
  bool operator==(const Fault&) const = default;
};

/// What a rank comes by, in the order of a step. "step": before it; "checkpoint-...": as
/// checkpoint::write and rotate say.
inline constexpr const char* fault_phases[] = {"step",
                                               "evaluation",
                                               "checkpoint-begin",
                                               "checkpoint-copy",
                                               "checkpoint-write",
                                               "checkpoint-close",
                                               "checkpoint-rename",
                                               "checkpoint-renamed",
                                               "checkpoint-rotate"};

/// `emulated`: the host in the place of a device, which is strict about whose memory is whose
/// (DeviceKind::emulated).
enum class DebugDevice : std::uint8_t { automatic, emulated };

/// Table [debug].
struct DebugOptions {
  std::vector<Fault> faults;                    ///< key fault
  DebugDevice device = DebugDevice::automatic;  ///< automatic: that of run.device
};

}  // namespace trireme::train
