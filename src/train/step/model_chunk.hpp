// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "activation_store.hpp"
#include "trireme/comm/engine/engine.hpp"
#include "trireme/model/model.hpp"
#include "trireme/parallel/gradient_reducer.hpp"
#include "trireme/train/step/replica_options.hpp"
#include "trireme/train/step/stage_parameters.hpp"

namespace trireme::train {

/// A contiguous range of blocks that a rank runs, with memory for each of its micro-batches between
/// forward and backward.
class ModelChunk {
 public:
  /// Memory and state of one micro-batch between forward and backward.
  struct MicroBatchSlot {
    MicroBatchSlot(const model::PassResources& resources, Arena& activations,
                   OffloadWindows* windows, int parts)
        : pass(resources, activations), activation_store(windows, activations, parts) {}
    /// Directs the activations of forward to this part of the store.
    void begin_part(int part) {
      pass.redirect_activations(activation_store.begin_part(pass.context(), part));
    }
    model::MicroBatchPass pass;
    ActivationStore activation_store;
    Tensor output;  ///< Output of forward; in the last chunk it is the input of the head.
    /// The message that sends the output to the next chunk.
    comm::Engine::Request send_request = 0;
  };
  /// Takes the blocks of `chunk`. Recomputed blocks use `scratch`.
  ModelChunk(const model::Model& model, const StageParameters::BlockRange& chunk,
             const ReplicaOptions& options, Arena& scratch)
      : model_(model), scratch_(scratch), chunk_(chunk), options_(options) {}
  /// Adds a slot for one more micro-batch in flight; its activations are kept in `activations`.
  void add_slot(const model::PassResources& resources, Arena& activations,
                OffloadWindows* windows) {
    slots_.push_back(std::make_unique<MicroBatchSlot>(resources, activations, windows, parts()));
  }

  int number() const { return chunk_.number; }
  int begin() const { return chunk_.begin; }
  int end() const { return chunk_.end; }
  bool first() const { return begin() == 0; }
  bool last() const { return end() == model_.block_count(); }
  MicroBatchSlot& slot(int micro_batch) {
    return *slots_[static_cast<std::size_t>(micro_batch) % slots_.size()];
  }
  /// Returns the number of parts in an activation store: the chunk's input and the output of each
  /// block.
  int parts() const { return end() - begin() + 1; }

  /// Enqueues forward through all blocks. The pass must have begun forward; in training part 0 must
  /// be selected.
  Tensor forward(MicroBatchSlot& slot, Tensor x) const;
  /// Enqueues backward through all blocks in reverse, and notifies the reducer of each finished
  /// block. Returns the gradient of the chunk's input; undefined for the first chunk.
  Tensor backward(MicroBatchSlot& slot, Tensor dy, parallel::GradientReducer& reducer) const;

 private:
  Tensor forward_keeping_input(model::MicroBatchPass& pass, int block, const Tensor& x) const;
  const model::Model& model_;
  Arena& scratch_;
  StageParameters::BlockRange chunk_;
  const ReplicaOptions& options_;
  std::vector<std::unique_ptr<MicroBatchSlot>> slots_;
};

}  // namespace trireme::train
