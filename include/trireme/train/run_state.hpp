#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/train/health.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::train {

/// Where a run stands: all that a restart needs beside tensors.
struct RunState {
  std::int64_t step = 0, samples = 0;
  data::Cursor cursor;
  double elapsed_seconds = 0;  ///< of training, over all starts
  std::optional<double> best;  ///< value of checkpoint.best so far
  std::string best_metric;     ///< which metric that is: "top1", "loss"
  std::int64_t best_step = 0;
  std::int64_t skipped = 0;  ///< steps that were not applied
  HealthState health;
};

/// Which rows of each tensor a rank takes part in.
enum class Rows : std::uint8_t {
  share,  ///< the ranks together hold each element once (writing)
  owned   ///< all that this rank keeps (reading)
};

/// The tensors of the whole model as this rank holds them, also those of which it holds nothing:
/// weights, running statistics and, where `slots`, the optimizer's, the average of weights and
/// statistics, the outer momentum and the gradient that waits to be applied (which is settled).
std::vector<checkpoint::TensorSlice> slices_of(Replica& replica, Rows rows, bool slots);

/// What else the checkpoint says. `dataset` is the identity of the training set.
checkpoint::Info checkpoint_info(const RunState& state, Replica& replica, const std::string& deck,
                                 const std::vector<std::string>& classes, std::uint64_t dataset,
                                 std::uint64_t seed);

/// Whether a gradient waits in this checkpoint is what a delayed replica goes by from here on.
/// Before pieces_of() for reading.
void restore_pending(Replica& replica, const checkpoint::Info& info);

/// float16: the loss scale goes on from this checkpoint's, where it has one. Throws InputError for
/// what no run can have written, as expect_pending() does.
void restore_loss_scale(Replica& replica, const checkpoint::Info& info);

RunState run_state_of(const checkpoint::Info& info);

/// Identity of the training set of the run that wrote a checkpoint; none in a file that does not
/// say.
std::optional<std::uint64_t> dataset_of(const checkpoint::Info& info);

}  // namespace trireme::train
