// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/duration.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/deck/options.hpp"
#include "trireme/model/options.hpp"
#include "trireme/optim/options.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/options.hpp"

namespace trireme::train {

/// Arguments of resolve_layout(): tables of the deck, by reference for the duration of the call.
struct LayoutRequest {
  const deck::RunOptions& run;
  const deck::BatchOptions& batch;
  const parallel::ParallelOptions& parallel;
  const data::DataOptions& data;
  const optim::ScheduleOptions& schedule;
  const model::ModelOptions& model;
};

/// Division of a run into replicas, micro-batches, steps and epochs.
struct ResolvedLayout {
  /// Degrees of parallelism; their product is the number of ranks.
  int data = 1, tensor = 1, pipeline = 1;
  int batch_norm_ranks = 1;       ///< Neighboring data ranks that compute batch norm together.
  std::int64_t global = 1;        ///< Samples per step.
  std::int64_t accumulation = 1;  ///< Micro-batches per replica and step.
  /// With batch.ramp, all values are those of one of its rows: of the steps after `row_begin` up to
  /// and including `row_end` (0: to the end of the run).
  std::int64_t row_begin = 0, row_end = 0;
  /// Returns whether a step, counted from 1, belongs to this row.
  bool contains_step(std::int64_t step) const {
    return step > row_begin && (row_end == 0 || step <= row_end);
  }
  std::int64_t samples = 0;            ///< Training samples: data.samples, or all of the set.
  std::int64_t samples_per_epoch = 0;  ///< Samples used per epoch (after drop_last).
  std::int64_t steps_per_epoch =
      0;  ///< Rounded up if drop_last = false and the last step reaches into the next epoch.
  std::int64_t total_steps = 0;  ///< Steps until run.stop; 0 if run.stop is a time.
  /// Length of the learning-rate schedule: schedule.length, else total_steps.
  std::int64_t schedule_steps = 0;
  /// Returns the last step that is known: of the run, or of the schedule if the run is limited by
  /// time; 0 if neither is.
  std::int64_t last_step() const { return total_steps > 0 ? total_steps : schedule_steps; }
  StepScale scale;  ///< Converts the deck's other durations to steps (evaluate.every, ...).
  data::EpochBatching batching;  ///< Divides epochs into the steps of this row.

  int ranks() const { return data * tensor * pipeline; }
  parallel::MeshShape mesh_shape() const { return {data, tensor, pipeline, batch_norm_ranks}; }
};

/// Returns the smallest number of ranks on which these options can run.
std::int64_t min_ranks(const parallel::ParallelOptions& options);

/// Computes the layout of a run on `ranks` ranks with this training set. With batch.ramp checks all
/// rows, and returns the layout of the row to which the step after `steps_done` belongs.
///
/// Throws InputError with the key and the nearest valid value in these cases:
/// - The number of ranks or the global batch is not divisible.
/// - The groups of batch norm do not divide the data ranks.
/// - The model has fewer blocks than the pipeline has chunks.
/// - The set is smaller than one step.
/// - The warm-up is longer than the schedule.
/// - Two rows of the ramp begin at one step, or a row begins after the last step of the run.
ResolvedLayout resolve_layout(const LayoutRequest& request, const data::DatasetInfo& train,
                              int ranks, std::int64_t steps_done = 0);

/// Returns the layouts of all rows of batch.ramp, or of the whole run if it has none.
std::vector<ResolvedLayout> resolve_rows(const LayoutRequest& request,
                                         const data::DatasetInfo& train, int ranks);

/// Checks what a replica needs in training and in evaluation: the model has a block for each chunk
/// of the pipeline, a matrix product can count the rows of a micro-batch, and parallel.sequence can
/// split them.
/// Throws InputError with the key and the nearest valid value.
void validate_replica(const LayoutRequest& request, const data::DatasetInfo& train);

/// Returns the learning rate that these tables give to a step (optim::Schedule::rate); none if they
/// do not fit the training set.
std::optional<double> scheduled_rate(const LayoutRequest& request, const data::DatasetInfo& train,
                                     std::int64_t step, std::int64_t reductions);

/// Throws InputError unless evaluate.subset is smaller than the validation set.
void validate_subset(const deck::EvaluateOptions& evaluate, const data::DatasetInfo& validation);

}  // namespace trireme::train
