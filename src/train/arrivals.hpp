#pragma once

#include <cstdint>
#include <vector>

#include "trireme/data/loader.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/tensor/arena.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::train {

/// How micro-batches come from the loader's memory to where kernels read them, by a stream of their own: they travel while what came before is computed.
/// On the CPU inputs and transforms are read where the loader has them.
class Arrivals {
 public:
  /// What lives from a micro-batch's first forward to its last backward.
  struct Kept {
    Tensor labels;       ///< int32
    Tensor sample_keys;  ///< 8 bytes a sample
    const std::uint64_t* keys() const { return reinterpret_cast<const std::uint64_t*>(sample_keys.data); }
  };
  /// What lives until the first block's input is made of it.
  struct Inputs {
    Tensor values;  ///< as in data::MicroBatch
    const ops::ImageTransform* transforms = nullptr;
  };

  /// `apart`: the device's memory is not the host's. `inputs`: this rank has the first block. `kept`: micro-batches that are between forward and backward at most.
  Arrivals(const ReplicaOptions& options, Device device, bool apart, bool inputs, int kept, Arena& memory);

  /// What is given to `compute` from here on finds micro-batch `number` of a step there: 0, 1, ... `compute` was given all that reads the one `kept` before it. Where the
  /// device's memory is apart it comes in place of the one before that: so it travels while those after it are worked on.
  void take(const Stream& compute, const data::MicroBatch& batch, int number);
  Kept& kept(int number) { return kept_[(first_ + static_cast<std::size_t>(number)) % kept_.size()]; }
  /// Of the micro-batch taken last.
  const Inputs& inputs() const { return inputs_; }
  /// `compute` has been given all that reads them.
  void inputs_read(const Stream& compute) { read_.record(compute); }

 private:
  void take_inputs(const data::MicroBatch& batch);
  OwnedStream copies_;
  Event read_, given_, there_;
  std::vector<Kept> kept_;             ///< taken in turn; apart: one more than are between forward and backward
  std::size_t taken_ = 0, first_ = 0;  ///< so many were, before this step so many
  Inputs inputs_;
  Tensor input_memory_, transform_memory_;  ///< not defined() where the loader's is read
};

}  // namespace trireme::train
