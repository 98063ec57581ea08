// SPDX-License-Identifier: Apache-2.0
//
// The exponential moving average of the weights, after an update.

#include "update_rule.hpp"

namespace trireme::kernels {
namespace {

const std::string ema_label = "trireme/kernels/update_ema";

/// One element's step of the weight average.
struct EmaStep {
  static constexpr int slots = 1;
  static constexpr unsigned reads = weights, writes = 0;
  float take;
  KOKKOS_FUNCTION void operator()(float& w, float&, float& average, float&) const {
    average += take * (w - average);
  }
};

/// Weight average of one chunk. The weights are in cache if the update has just written them.
struct EmaChunk {
  Update args;
  float take;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t chunk) const {
    return args.chunks[chunk].elements;
  }

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t index, const Group& group) const {
    if (args.decision->apply != 0) walk_chunk(group, args, args.chunks[index], EmaStep{take});
  }

  KOKKOS_FUNCTION void operator()(std::int64_t index, std::int64_t begin, std::int64_t end) const {
    if (args.decision->apply == 0) return;
    const std::int64_t offset = args.chunks[index].offset;
    const float factor = take;
    const float* weight = args.weight + offset;
    float* average = args.slots[0] + offset;
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) average[i] += factor * (weight[i] - average[i]);
  }
};

}  // namespace

void update_ema(const Stream& stream, float take, const Update& args) {
  run_chunks(stream, ema_label, EmaChunk{args, take});
}

}  // namespace trireme::kernels
