#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/base/duration.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::train {

enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

/// Table [run].
struct RunOptions {
  std::string name, folder;
  std::uint64_t seed = 1;
  DeviceChoice device = DeviceChoice::automatic;
  bool deterministic = false;
  Duration stop{10, Duration::Unit::epochs};
  bool walltime_auto = true;           ///< walltime = "auto"
  std::optional<Duration> walltime;    ///< a given duration
  Duration walltime_margin{300, Duration::Unit::seconds};
};

/// Table [batch].
struct BatchOptions {
  std::int64_t global = 256, micro = 64;
};

/// Table [precision].
struct PrecisionOptions {
  DType compute = DType::float32;  ///< float32 or bfloat16
};

/// Table [evaluate].
struct EvaluateOptions {
  Duration every{1, Duration::Unit::epochs};
};

}  // namespace trireme::train
