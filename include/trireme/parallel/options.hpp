#pragma once

#include <cstdint>

namespace trireme::parallel {

/// Table [parallel].
struct ParallelOptions {
  int data = 0;  ///< 0: auto, ranks / (tensor * pipeline)
  int tensor = 1, pipeline = 1;
  double bucket_mb = 25;
};

}  // namespace trireme::parallel
