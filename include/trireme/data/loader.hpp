// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "trireme/data/dataset.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::data {

/// Returns a key that is unique to (epoch, sample):
/// mix64(mix64(epoch + 0x9E3779B97F4A7C15) ^ sample). Random numbers of a sample (dropout) derive
/// from it and from the seed, so they are the same at every layout.
std::uint64_t sample_key(std::int64_t epoch, std::int64_t sample);

/// One micro-batch in host memory, ready to be copied to the device. Rows from `valid_rows` on are
/// padding (labels -1 or values NaN, inputs 0).
struct MicroBatch {
  /// Images: [micro, H, W, C] of SampleInfo::dtype; tokens: int32 [micro, context]. Undefined if
  /// not requested.
  Tensor inputs;
  /// Images: int32 [micro], or values float32 [micro, n]; tokens: int32 [micro, context], the
  /// successor of each token. Undefined if not requested.
  Tensor labels;
  const ops::ImageTransform* transforms = nullptr;  ///< [micro]; images only
  /// [micro] weight of each row's own label (ops::ClassTargets); null: labels are not mixed.
  const float* label_weights = nullptr;
  const std::int64_t* samples = nullptr;  ///< [micro] indices in the dataset (-1: padding)
  /// [micro] sample_key(epoch, sample) (0: padding); in evaluation the epoch is 0.
  const std::uint64_t* sample_keys = nullptr;
  std::int64_t valid_rows = 0;
  ReadTimes times;    ///< of the reader thread that filled it
  Cursor step_start;  ///< start of the step that this micro-batch belongs to
  /// The user records this event on the stream that copies the micro-batch. The loader waits for it
  /// before it refills the memory. Not recorded: no wait.
  Event* copy_done = nullptr;
};

/// Settings of a loader: the samples of this replica, their order, and how far to read ahead.
struct LoaderOptions {
  SampleOrder order;
  EpochBatching batching;  ///< training only
  Augmentation augmentation;
  std::int64_t micro = 1;
  int data_rank = 0, data_size = 1;
  /// Training: neighboring data ranks that share a part of the step, and take micro-batches of it
  /// alternately. 1: each rank has a part of its own.
  int interleaved_ranks = 1;
  int workers = 2, prefetch = 4;
  /// Training: share of the checksum blocks that are compared in each epoch, when the first of
  /// their samples is read. Seed, epoch and block decide which. Needs an index with checksums.
  double verify = 0;
  /// False: one pass over the samples of `order` by number, in rounds of data_size * micro samples;
  /// missing rows are padding.
  bool training = true;
  /// The device that micro-batches are copied to; for a GPU the memory is pinned.
  Device device;
  /// The parts that are read. With neither, the disk is not read; sample indices and keys are set
  /// nevertheless.
  bool inputs = true, labels = true;
  /// Name of the buffers in the message that memory is short.
  const char* memory_name = "batches read ahead (data.prefetch)";
};

/// Reads micro-batches ahead of their use, with `workers` threads and `prefetch` + 1 buffers that
/// are allocated once. A steady step allocates nothing, unless images are decoded or scaled, or
/// checksums compared.
///
/// Construct, start(), then next() for each micro-batch. An error of a reader thread is thrown or
/// stored by the next() that would return its micro-batch. One caller thread; not collective.
class Loader {
 public:
  /// Allocates the buffers and starts the threads. In training the global batch consists of whole
  /// micro-batches on each data rank, and with drop_last it is at most the dataset
  /// (train::resolve_layout checks both). Throws Failure if the host is out of memory or threads.
  /// `dataset` outlives this.
  Loader(const Dataset& dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Starts or restarts reading at `cursor`: the start of a step in training, {0, 0} in evaluation.
  /// Waits until the threads have finished the micro-batches that they are reading.
  void start(Cursor cursor);
  /// Returns the next micro-batch of this replica, valid until the next call. Waits until it is
  /// read. In evaluation it may be called exactly micro_batches_per_pass() times per start().
  const MicroBatch& next();
  /// As next(), but stores the error of a reader in `error`, unless that holds one, and returns a
  /// micro-batch of padding. So this rank can still take part in the communication of a step.
  const MicroBatch& next(std::exception_ptr& error);
  /// Evaluation: returns the number of micro-batches of one pass, the same on every rank.
  std::int64_t micro_batches_per_pass() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::data
