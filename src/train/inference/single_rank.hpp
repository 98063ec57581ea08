// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "trireme/base/log.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/engine/engine.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/train/step/replica.hpp"

namespace trireme::train {

/// Samples that `predict` computes at once; more would need more memory and compute little faster.
constexpr std::int64_t max_predicted_at_once = 16;

/// Returns the deck of a checkpoint with the layout of one rank and a micro-batch of one sample.
/// The device is "auto": a model that was trained on a GPU is also used where there is none. `path`
/// is that of the checkpoint. Throws InputError if it holds no deck.
deck::Deck single_rank_deck(const checkpoint::Contents& contents, const std::string& path,
                            Log& log);

/// Returns options for a replica that does not train, and uses the loaded weights as they are.
/// `train` provides extents, classes and vocabulary.
ReplicaOptions single_rank_options(const deck::Deck& deck, const data::DatasetInfo& train);

/// A replica on one rank, and what it refers to.
struct SingleRank {
  parallel::Mesh mesh;
  comm::Engine engine;
  Replica replica;

  /// Plans and allocates the memory, and logs it.
  SingleRank(const ReplicaOptions& options, Device device, Log& log);
};

}  // namespace trireme::train
