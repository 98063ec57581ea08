#pragma once

#include <cstdint>
#include <vector>

#include "trireme/data/loader.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/tensor/arena.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::train {

/// How micro-batches come from the loader's memory to where kernels read them, by a stream of their
/// own: they travel while what came before is computed. On the CPU inputs and transforms are read
/// where the loader has them.
class BatchUploader {
 public:
  /// What lives from a micro-batch's first forward to its last backward.
  struct Retained {
    Tensor labels;       ///< int32
    Tensor sample_keys;  ///< 8 bytes a sample
    const std::uint64_t* keys() const {
      return reinterpret_cast<const std::uint64_t*>(sample_keys.data);
    }
  };
  /// What lives until the first block's input is made of it.
  struct Inputs {
    Tensor values;  ///< as in data::MicroBatch
    const ops::ImageTransform* transforms = nullptr;
  };

  /// `apart`: the device's memory is not the host's. `inputs`: this rank has the first block.
  /// `kept`: micro-batches that are between forward and backward at most.
  BatchUploader(const ReplicaOptions& options, Device device, bool separate_memory, bool inputs,
                int retained, Arena& memory);

  /// The micro-batches taken from here on are those of another step.
  void begin_step() { ++step_; }
  /// What is given to `compute` from here on finds micro-batch `number` of a step there: 0, 1, ...
  /// `compute` was given all that reads the one `kept` before it. Where the device's memory is
  /// apart it comes in place of the one before that, and so travels while those after it are worked
  /// on; where places begin anew (the first ones of every other step, of so many in a row without a
  /// step) it may have to wait for all that `compute` was given.
  void upload(const Stream& compute, const data::MicroBatch& batch, int number);
  Retained& retained(int number) { return retained_[buffer_of(number)]; }
  /// Of the micro-batch taken last.
  const Inputs& inputs() const { return inputs_; }
  /// `compute` has been given all that reads them.
  void release_inputs(const Stream& compute) { inputs_read_.record(compute); }

 private:
  void upload_inputs(const data::MicroBatch& batch);
  /// In turn through a step and the next one; then again from the first on: in every other step the
  /// same places, so that launches which read them are the same too.
  std::size_t buffer_of(int number) const {
    return (static_cast<std::size_t>(step_ % 2 * per_step_) + static_cast<std::size_t>(number)) %
           retained_.size();
  }
  OwnedStream copy_stream_;
  Event inputs_read_, previous_upload_, upload_done_;
  std::vector<Retained> retained_;  ///< apart: one more than are between forward and backward
  std::vector<std::int64_t>
      uploads_at_;  ///< by place: how many had been taken, that one included; 0: none
  std::int64_t num_uploads_ = 0, step_ = 0, per_step_;
  Inputs inputs_;
  Tensor input_memory_, transform_memory_;  ///< not defined() where the loader's is read
};

}  // namespace trireme::train
