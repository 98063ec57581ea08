#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "activation_store.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::train {

/// A contiguous range of blocks that a rank runs, with memory for each of its micro-batches between
/// forward and backward.
class Replica::Chunk {
 public:
  /// Memory and state of one micro-batch between forward and backward.
  struct MicroBatchSlot {
    MicroBatchSlot(const model::StageResources& surroundings, Device device, std::int64_t bytes,
                   OffloadWindows* windows, int parts)
        : activations(device, "activations", bytes),
          pass(surroundings, activations),
          activation_store(windows, activations, parts) {}
    /// Directs the activations of forward to this part of the store.
    void begin_part(int part) {
      pass.redirect_activations(activation_store.begin_part(pass.context(), part));
    }
    Arena activations;
    model::MicroBatchPass pass;
    ActivationStore activation_store;
    Tensor output;  ///< Output of forward; in the last chunk it is the input of the head.
    comm::Engine::Request send_request =
        0;  ///< The message that sends the output to the next chunk.
  };
  /// Creates chunk `number` of the model with blocks [begin, end). Recomputed blocks use `scratch`.
  Chunk(const model::Model& model, int number, int begin, int end, const ReplicaOptions& options,
        Arena& scratch)
      : model_(model),
        scratch_(scratch),
        number_(number),
        begin_(begin),
        end_(end),
        recompute_(options.recompute),
        delay_(options.block_delay_seconds) {}
  void add_slot(const model::StageResources& surroundings, Device device, std::int64_t bytes,
                OffloadWindows* windows) {
    slots_.push_back(
        std::make_unique<MicroBatchSlot>(surroundings, device, bytes, windows, parts()));
  }

  int number() const { return number_; }
  int begin() const { return begin_; }
  int end() const { return end_; }
  bool first() const { return begin_ == 0; }
  bool last() const { return end_ == model_.block_count(); }
  MicroBatchSlot& slot(int micro_batch) {
    return *slots_[static_cast<std::size_t>(micro_batch) % slots_.size()];
  }
  const std::vector<std::unique_ptr<MicroBatchSlot>>& slots() const { return slots_; }
  /// Returns the number of parts in an activation store: the chunk's input and the output of each
  /// block.
  int parts() const { return end_ - begin_ + 1; }

  /// Enqueues forward through all blocks. The pass must have begun forward; in training part 0 must
  /// be selected.
  Tensor forward(MicroBatchSlot& slot, Tensor x) const;
  /// Enqueues backward through all blocks in reverse, and notifies the reducer of each finished
  /// block. Returns the gradient of the chunk's input; undefined for the first chunk.
  Tensor backward(MicroBatchSlot& slot, Tensor dy, parallel::GradientReducer& reducer) const;

 private:
  bool is_recomputed(int block) const { return recompute_ > 0 && block % recompute_ == 0; }
  Tensor forward_keeping_input(model::MicroBatchPass& pass, int block, const Tensor& x) const;
  const model::Model& model_;
  Arena& scratch_;
  int number_, begin_, end_, recompute_;
  double delay_;
  std::vector<std::unique_ptr<MicroBatchSlot>> slots_;
};

}  // namespace trireme::train
