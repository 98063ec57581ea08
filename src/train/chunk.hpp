#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "activation_store.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::train {

/// A contiguous range of blocks that a rank runs, with memory for each micro-batch that is between
/// forward and backward.
class Replica::Chunk {
 public:
  /// One micro-batch on its way.
  struct MicroBatchSlot {
    MicroBatchSlot(const model::StageResources& surroundings, Device device, std::int64_t bytes,
                   OffloadWindows* windows, int parts)
        : activations(device, "activations", bytes),
          pass(surroundings, activations),
          activation_store(windows, activations, parts) {}
    /// Forward goes on with this part of what is kept.
    void begin_part(int part) {
      pass.redirect_activations(activation_store.begin_part(pass.context(), part));
    }
    Arena activations;
    model::MicroBatchPass pass;
    ActivationStore activation_store;
    Tensor output;  ///< of forward, at the end of the model: what the head takes
    comm::Engine::Request send_request = 0;  ///< the output's way to the next chunk
  };
  /// Blocks [begin, end) of the model, chunk `number` of all; blocks that are run again in backward
  /// do so in `scratch`.
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
  /// Of what a slot keeps: what enters the chunk, and what each block makes.
  int parts() const { return end_ - begin_ + 1; }

  /// Through all blocks; the slot's pass has begun forward, in training part 0 has begun with x.
  Tensor forward(MicroBatchSlot& slot, Tensor x) const;
  /// Through all blocks in reverse; the reducer is told as each is done. Returns the gradient of
  /// what entered the chunk; undefined at the model's begin.
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
