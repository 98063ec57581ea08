// SPDX-License-Identifier: Apache-2.0
//
// Gathers the sums of batch norm over the data ranks that compute it together. Called by
// src/ops/normalization.cpp, in forward and in backward of each batch norm.

#include "trireme/parallel/batch_norm_group.hpp"

#include "trireme/device/profile_range.hpp"

namespace trireme::parallel {

BatchNormGroup::BatchNormGroup(const comm::Communicator& ranks, comm::Engine& engine)
    : ranks_(ranks),
      engine_(engine),
      bounds_(static_cast<std::size_t>(ranks.size()) + 1),
      group_{.rank = ranks.rank(), .size = ranks.size()} {
  if (ranks.size() > 1) group_.gather = [this](const Tensor& all) { gather(all); };
}

void BatchNormGroup::gather(const Tensor& all) {
  const std::int64_t part = all.bytes() / ranks_.size();
  for (std::size_t rank = 0; rank < bounds_.size(); ++rank)
    bounds_[rank] = static_cast<std::int64_t>(rank) * part;
  const comm::Engine::Request request = engine_.all_gather(
      ranks_, static_cast<std::byte*>(all.data), bounds_, "trireme/parallel/batch_norm_gather");
  const ProfileRange range("trireme/parallel/batch_norm_wait");
  engine_.wait(request);
}

}  // namespace trireme::parallel
