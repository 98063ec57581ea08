// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/data/loader.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/tensor/arena.hpp"
#include "trireme/train/step/replica_options.hpp"
#include "trireme/train/step/transfer_clock.hpp"

namespace trireme::train {

/// Copies micro-batches from the loader's host memory to the device, on a copy stream of its own.
///
/// A device with memory of its own has one buffer more than there are micro-batches between forward
/// and backward. With two such micro-batches there are three buffers, and upload n overlaps
/// computation:
///
///   host     upload(n - 1)                                upload(n)
///   compute  backward n - 3 | mark | forward n - 1, backward n - 2      | wait | forward n
///   copies                         | copy n into the buffer of n - 3 | done
///
/// The copy of n waits for the mark that upload(n - 1) recorded: the kernels that read the old
/// content were enqueued before it. Forward of n waits for the event after the copy. The host waits
/// for neither. On the CPU inputs and transforms are read from the loader's memory without a copy.
class BatchUploader {
 public:
  /// Data that is needed from the first forward to the last backward of a micro-batch.
  struct Retained {
    Tensor labels;       ///< int32 or float32 [B * labels per sample].
    Tensor sample_keys;  ///< 8 bytes per sample.
    /// float32 [B], as in data::MicroBatch; undefined: labels are not mixed.
    Tensor label_weights;
    const std::uint64_t* keys() const {
      return reinterpret_cast<const std::uint64_t*>(sample_keys.data);
    }
  };
  /// Data that is needed until the input of the first block is prepared.
  struct Inputs {
    Tensor values;  ///< As in data::MicroBatch.
    const ops::ImageTransform* transforms = nullptr;
  };

  /// `separate_memory`: the device does not use host memory. `inputs`: this rank has the first
  /// block. `retained`: maximum number of micro-batches between forward and backward. Buffers come
  /// from `memory`.
  BatchUploader(const ReplicaOptions& options, Device device, bool separate_memory, bool inputs,
                int retained, Arena& memory);

  /// Starts another step: numbers count from 0 again.
  void begin_step() { ++step_; }
  /// Enqueues the upload of micro-batch `number` (0, 1, ... in a step); later work of `compute`
  /// sees it.
  ///
  /// Work that reads micro-batch `number - retained` must already be enqueued on `compute`. A
  /// device with its own memory has one more buffer, so the copy can overlap the computation of the
  /// previous micro-batch. When the buffer sequence restarts (every second step), the copy may wait
  /// for all work enqueued so far.
  ///
  /// `clock` measures the copies but not their waits; null: no measurement. An upload is at most
  /// max_copies copies.
  void upload(const Stream& compute, const data::MicroBatch& batch, int number,
              TransferClock* clock = nullptr);
  static constexpr int max_copies = 2;
  Retained& retained(int number) { return retained_[buffer_of(number)]; }
  /// Returns the inputs of the latest upload.
  const Inputs& inputs() const { return inputs_; }
  /// All work that reads the inputs is enqueued on `compute`: the next upload may overwrite them
  /// after it.
  void release_inputs(const Stream& compute) { inputs_read_.record(compute); }

 private:
  void upload_inputs(const data::MicroBatch& batch, TransferClock* clock);
  /// Returns the buffer of a micro-batch. Buffers are used in turn over two steps, then from the
  /// first again: every second step uses equal addresses, so its recorded launches are equal too.
  std::size_t buffer_of(int number) const {
    return (static_cast<std::size_t>(step_ % 2 * per_step_) + static_cast<std::size_t>(number)) %
           retained_.size();
  }
  OwnedStream copy_stream_;
  Event inputs_read_, previous_upload_, upload_done_;
  /// With separate device memory one more than the micro-batches between forward and backward.
  std::vector<Retained> retained_;
  std::vector<std::int64_t> uploads_at_;  ///< By buffer: the number of uploads up to and including
                                          ///< its latest one; 0: none.
  std::int64_t num_uploads_ = 0, step_ = 0, per_step_;
  Inputs inputs_;
  Tensor input_memory_, transform_memory_;  ///< Undefined if the loader's memory is read directly.
};

}  // namespace trireme::train
