#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/data/dataset.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::data {

/// How each sample of a training set is taken from its stored image; a function of (seed, epoch,
/// sample), never of rank or thread.
struct Augmentation {
  std::uint64_t seed = 1;
  std::int64_t crop_padding = 0;  ///< random_crop: shift by up to this many pixels each way
  bool flip = false;              ///< mirror with probability 1/2
  ops::ImageTransform transform_of(std::int64_t epoch, std::int64_t sample) const;
};

/// A number that stands for sample `sample` in epoch `epoch` and for nothing else:
/// mix64(mix64(epoch + 0x9E3779B97F4A7C15) ^ sample). Random numbers that belong to a sample
/// (dropout) are keyed by it and by the seed, so they are the same at every layout.
std::uint64_t sample_key(std::int64_t epoch, std::int64_t sample);

/// One micro-batch in host memory, ready for the copy to the device. Rows past `valid` are filler
/// (labels -1, inputs 0).
struct MicroBatch {
  Tensor inputs;  ///< images: uint8 [micro, H, W, C]; tokens: int32 [micro, context]; not defined()
                  ///< where not asked for
  Tensor labels;  ///< images: int32 [micro]; tokens: int32 [micro, context], the next token of
                  ///< each; not defined() where not asked for
  const ops::ImageTransform* transforms = nullptr;  ///< [micro], of images
  const std::int64_t* samples = nullptr;            ///< [micro] indices in the dataset (-1: filler)
  const std::uint64_t* sample_keys =
      nullptr;  ///< [micro] sample_key(epoch, sample) (filler: 0); evaluation: epoch 0
  std::int64_t valid_rows = 0;
  Cursor step_start;  ///< of the step it belongs to
  /// Who copies from here by a stream records in it the end of the copies: before it is passed the
  /// memory is not filled again. Null: nobody waits.
  Event* copy_done = nullptr;
};

/// Which samples this replica reads, in which order, and how far ahead.
struct LoaderOptions {
  SampleOrder order;
  EpochBatching batching;  ///< training
  Augmentation augmentation;
  std::int64_t micro = 1;
  int data_rank = 0, data_size = 1;
  int workers = 2, prefetch = 4;
  bool training = true;  ///< false: one pass over the set in order, in rounds of data_size * micro
                         ///< samples; missing rows are filler
  Device device;         ///< that micro-batches are copied to
  bool inputs = true, labels = true;  ///< what is read; with neither the disk is not touched, and
                                      ///< samples and their keys are given all the same
};

/// Reader threads that fill micro-batches ahead of use into buffers taken once (pinned where they
/// are copied to a device). In a steady step nothing is allocated. An error of a reader is thrown
/// by next().
class Loader {
 public:
  Loader(const Dataset& dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Begins (anew) at `cursor`: training: the start of a step. Evaluation: {0, 0}.
  void start(Cursor cursor);
  /// The next micro-batch of this replica; valid until the next call. Evaluation: exactly rounds()
  /// of them a pass.
  const MicroBatch& next();
  /// Evaluation: micro-batches of one pass (the same on every rank).
  std::int64_t micro_batches_per_pass() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::data
