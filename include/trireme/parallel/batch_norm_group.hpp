// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/engine/engine.hpp"
#include "trireme/ops/normalization.hpp"

namespace trireme::parallel {

/// The data ranks that compute batch norm together (parallel.sync_batch_norm), as ops use them.
///
/// Their gathers have a communicator of their own, with its own tags, or on a GPU its own stream.
/// So they wait neither for gradient buckets nor for messages. All ranks of the group run the same
/// schedule of micro-batches, so they submit the gathers in the same order.
///
///   compute stream   statistics |        waits        | joined statistics | normalization
///   gather                      [own part -> all ranks]
class BatchNormGroup {
 public:
  /// `ranks`: for these gathers only; a group of one gathers nothing. `engine` outlives this.
  BatchNormGroup(const comm::Communicator& ranks, comm::Engine& engine);
  // The group that ops use refers to this object.
  BatchNormGroup(const BatchNormGroup&) = delete;
  BatchNormGroup& operator=(const BatchNormGroup&) = delete;

  const ops::BatchGroup& get() const { return group_; }

 private:
  void gather(const Tensor& all);

  comm::Communicator ranks_;
  comm::Engine& engine_;
  /// size() + 1 offsets of the parts of the gather under way, in bytes.
  std::vector<std::int64_t> bounds_;
  ops::BatchGroup group_;
};

}  // namespace trireme::parallel
