#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "trireme/device/device.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/plan/machine.hpp"
#include "trireme/train/replica_options.hpp"

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
  /// Returns a bound from the ops of one micro-batch on all stages with this tensor group, from the
  /// requests of the tensor group, and from those of the data group. At least ideal_seconds().
  double recorded_seconds(const train::ReplicaOptions& options, const parallel::MeshShape& shape);
  /// Returns a bound of the bytes that the largest rank needs on its device, from the state of the
  /// model: weights, gradients and optimizer. Activations are not counted.
  std::int64_t state_bytes(const train::ReplicaOptions& options, const parallel::MeshShape& shape);

 private:
  /// Seconds of the first micro-batch of a step and of each further one.
  struct MicroBatchSeconds {
    double first = 0, further = 0;
    double least() const { return first < further ? first : further; }
  };
  struct StepWork {
    MicroBatchSeconds ops, tensor;
  };
  /// Bytes of the state of one rank that holds all stages.
  struct State {
    double parameters = 0, gradients = 0, optimizer = 0;
    double elements = 0, row_elements = 0, blocks = 0;
  };

  StepWork record(const Machine& machine, train::ReplicaOptions options, int tensor,
                  const parallel::MeshShape& shape);
  double data_seconds(const train::ReplicaOptions& options, const parallel::MeshShape& shape);

  const Machine& machine_;
  Machine ideal_;
  DeviceKind device_;
  std::int64_t max_micro_;
  std::map<int, StepWork> ideal_work_;                                        // by recompute
  std::map<std::tuple<int, std::int64_t, int, bool>, StepWork> work_;         // tensor, micro ...
  std::map<std::tuple<int, int, int, parallel::ShardKind>, double> traffic_;  // tensor, stages ...
  std::map<int, State> states_;                                               // by tensor
};

/// Returns the least step time of a pipeline whose stages together compute `seconds` for each
/// micro-batch.
///
/// A stage s begins after the first micro-batch has passed the stages in front of it, and its last
/// gradient passes them afterwards. So a step takes m w_s + w_0 + ... + w_(s-1) for every s, where
/// w_s are the seconds of a micro-batch on stage s and m are the micro-batches. For a given sum of
/// w the maximum over s is least if all are equal: seconds / (1 - (1 - 1/m)^stages).
double least_pipeline_seconds(double seconds, int stages, std::int64_t micro_batches);

}  // namespace trireme::plan
