// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "trireme/device/device.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/plan/machine/machine.hpp"
#include "trireme/plan/step_record.hpp"
#include "trireme/plan/timeline.hpp"
#include "trireme/train/step/replica_options.hpp"

namespace trireme::plan {

/// Lower bounds of the step time and of the memory of layouts, for search_layouts().
///
/// `options` and `shape` of all functions are those of the layout. All of one object have the same
/// model, data and number of ranks. Recorded steps are kept, so most calls only look them up.
class SearchBounds {
 public:
  /// `max_micro`: the largest micro-batch of the layouts.
  SearchBounds(const Machine& machine, DeviceKind device, std::int64_t max_micro);

  /// Returns a bound from the ops of a whole model on one rank, divided by the ranks. Every op
  /// reaches the best efficiency that the machine file has for it.
  double ideal_seconds(const train::ReplicaOptions& options, const parallel::MeshShape& shape);
  /// Returns a bound from a micro-batch on all stages with this tensor group, from the requests of
  /// the data group, and from what follows the last op of the backward pass. At least
  /// ideal_seconds().
  double recorded_seconds(const train::ReplicaOptions& options, const parallel::MeshShape& shape);
  /// Returns a bound as recorded_seconds(), but from a micro-batch on each stage. At least that.
  double staged_seconds(const train::ReplicaOptions& options, const parallel::MeshShape& shape);
  /// Returns a bound of the bytes that the largest rank needs on its device, from the state of the
  /// model: weights, gradients and optimizer. Activations are not counted.
  std::int64_t state_bytes(const train::ReplicaOptions& options, const parallel::MeshShape& shape);

 private:
  /// Bytes of the state of one rank that holds all stages.
  struct State {
    double parameters = 0, gradients = 0, optimizer = 0;
    double elements = 0, row_elements = 0, blocks = 0;
  };

  /// Ops and requests of a stage, which are executed again without the other stages: messages take
  /// no time, and nothing is waited for but the stage's own sums and gathers.
  struct Replay {
    struct Event {
      enum class Kind : std::uint8_t { op, submit, wait, wait_for_all } kind;
      double seconds = 0;       ///< op, submit; wait: the least end of an earlier request
      int queue = 0;            ///< submit: the group
      std::int64_t number = 0;  ///< submit, wait: the request
    };
    std::vector<Event> events;
    double first_queue = 0;  ///< seconds of the earlier requests of queue 0
    int queues = 1;
    /// It waits for a request that all stages join.
    bool synchronizes = false;

    /// Returns the least end of the events if they begin at `seconds` or later.
    double least_end(double seconds) const;
  };
  /// The first and the last stage from their last op in front of the update to the end of the step.
  struct StepEnds {
    Replay first, last;
  };
  using Passes = std::tuple<int, int, int, std::int64_t, int, bool>;

  static Replay replay_of(const StepRecord& step, const StepCosts& costs, std::size_t begin,
                          std::size_t end, const std::string& group, bool is_alone);
  double pass_seconds(const Machine& machine, train::ReplicaOptions options,
                      const parallel::MeshShape& shape, int stage);
  std::vector<double> stage_seconds(train::ReplicaOptions options,
                                    const parallel::MeshShape& shape);
  double micro_batch_seconds(const train::ReplicaOptions& options,
                             const parallel::MeshShape& shape);
  Replay record_end(const train::ReplicaOptions& options, const parallel::MeshShape& shape,
                    int stage);
  double with_end(double passes, const train::ReplicaOptions& options,
                  const parallel::MeshShape& shape);

  const Machine& machine_;
  Machine ideal_;
  DeviceKind device_;
  std::int64_t max_micro_;
  std::map<int, double> ideal_passes_;                                 // by recompute
  std::map<std::tuple<int, std::int64_t, int, bool>, double> passes_;  // tensor, micro ...
  std::map<Passes, std::vector<double>> stage_passes_;                 // of each stage
  std::map<std::tuple<int, int, int, parallel::ShardKind>, StepEnds> step_ends_;  // tensor ...
  std::map<int, State> state_by_tensor_;
};

/// Returns the least step time of a pipeline whose stages together compute `seconds` for each
/// micro-batch.
///
/// One chunk a stage: a stage s begins after the first micro-batch has passed the stages in front
/// of it, and its last gradient passes them afterwards. So a step takes m w_s + w_0 + ... + w_(s-1)
/// for every s, where w_s are the seconds of a micro-batch on stage s and m are the micro-batches.
/// For a given sum of w the maximum over s is least if all are equal:
/// seconds / (1 - (1 - 1/m)^stages). Several chunks: m w_s for every s, so m seconds / stages.
double least_pipeline_seconds(double seconds, int stages, int chunks, std::int64_t micro_batches);

}  // namespace trireme::plan
