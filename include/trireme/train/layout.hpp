#pragma once

#include <cstdint>
#include <string>

#include "trireme/base/duration.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/options.hpp"
#include "trireme/model/options.hpp"
#include "trireme/optim/options.hpp"
#include "trireme/parallel/options.hpp"
#include "trireme/train/options.hpp"

namespace trireme::train {

/// What a layout is resolved from: tables of the deck, by reference for the duration of the call.
struct LayoutRequest {
  const RunOptions& run;
  const BatchOptions& batch;
  const parallel::ParallelOptions& parallel;
  const data::DataOptions& data;
  const optim::ScheduleOptions& schedule;
  const model::ModelOptions& model;
};

/// How a run is cut into replicas, micro-batches, steps and epochs.
struct ResolvedLayout {
  int data = 1, tensor = 1, pipeline = 1;  ///< their product is the number of ranks
  std::int64_t accumulation = 1;           ///< micro-batches of one replica in a step
  std::int64_t samples_per_epoch = 0;      ///< samples really taken in an epoch (after drop_last)
  std::int64_t steps_per_epoch =
      0;  ///< rounded up where drop_last = false and the last step reaches into the next epoch
  std::int64_t total_steps = 0;     ///< of run.stop; 0 where it is a time
  std::int64_t schedule_steps = 0;  ///< the schedule's length: schedule.length, else total_steps
  StepScale scale;                  ///< for the deck's other durations (evaluate.every, ...)

  int ranks() const { return data * tensor * pipeline; }
};

/// The fewest ranks on which these options can run.
std::int64_t min_ranks(const parallel::ParallelOptions& options);

/// The layout of a run on `ranks` ranks with this training set. Throws InputError, naming the key
/// and the nearest value that works, where the ranks or the batch do not divide, the model has
/// fewer blocks than the pipeline has chunks, the set is smaller than one step, or the warm-up is
/// longer than the schedule.
ResolvedLayout resolve_layout(const LayoutRequest& request, const data::DatasetInfo& train,
                              int ranks);

/// Rank 0 lets a folder's shards be looked over in a process of its own, before any rank opens them
/// (data::probe_shards). Collective. Throws InputError.
void probe_dataset(const comm::Communicator& world, const std::string& folder);

/// Opens the dataset that the key (say "data.train") names. `context`: of a sample of tokens; 0 for
/// models of images. Throws InputError: a missing folder with key and remedy, else as
/// data::Dataset.
data::Dataset open_dataset(const std::string& key, const std::string& folder, std::int64_t context);

/// Whether a dataset fits the deck: kind, extents, classes, channels of data.augment.normalize,
/// vocabulary. `key` (say "data.train") and `folder` are what the message calls it. Throws
/// InputError.
void validate_dataset(const model::ModelOptions& model, const data::DataOptions& data,
                      const data::DatasetInfo& info, const std::string& key,
                      const std::string& folder);

/// Whether a validation or test set has the form of the training set: the same kind and extents, no
/// class beyond its classes and no token beyond its vocabulary, one tokenizer. Throws InputError.
void validate_same_form(const data::DatasetInfo& train, const data::DatasetInfo& other,
                        const std::string& key, const std::string& folder);

}  // namespace trireme::train
