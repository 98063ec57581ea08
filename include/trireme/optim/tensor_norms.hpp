// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "trireme/optim/norms.hpp"
#include "trireme/parallel/device_table.hpp"
#include "trireme/parallel/parameter_store.hpp"

namespace trireme::optim {

/// The 2-norms of one tensor in one update, over all ranks that hold parts of it.
struct TensorNorm {
  double weight = 0;                  ///< before the update
  double gradient = 0;                ///< before clipping, times the loss scale
  double update = 0;                  ///< of the change of the weights
  std::optional<double> trust_ratio;  ///< LARS, LAMB: of tensors that have one
};

/// Measures the norms of every tensor in selected updates. Optimizer owns one if they are wanted.
///
///   norms of the gradient | decision | norms of the weights | update           | to the host
///   copy()                |          | copy()               | keep() measure() | finish()
///
/// The change of the weights is the difference of a window after and before its update, which
/// float32 holds exactly or to one rounding.
class TensorNorms {
 public:
  /// Selects the sums that copy() copies.
  enum class Kind : std::size_t { weight, gradient };
  /// Takes its buffer of one window, and its tables, from `memory`.
  TensorNorms(const parallel::ParameterStore& store, const NormScope& scope,
              const parallel::StateMemory& memory);

  /// Enqueues a copy of sums that were measured.
  void copy(ops::Context& context, Kind kind, SquareSums& sums);
  /// Enqueues a copy of a window's weights before their update.
  void keep(ops::Context& context, const parallel::ParameterShard::Window& window,
            const Tensor& weights);
  /// Enqueues the norms of their change, after the update.
  void measure(ops::Context& context, const parallel::ParameterShard::Window& window,
               const Tensor& weights);
  /// Returns where the trust ratios of this rank's tensors belong, by SquareSums::index_of().
  double* own_trust_ratios(const Stream& stream);
  /// Enqueues the gathers and the copy to the host. Collective over the data and model groups. At
  /// most two may be in flight.
  void finish(ops::Context& context);
  /// Waits for the oldest finish() and returns the norms by tensor of the whole model; zeros for
  /// running statistics, nothing on meta.
  std::vector<TensorNorm> wait();

 private:
  double* section(const Stream& stream, std::size_t number);

  comm::Communicator model_;
  comm::Engine* engine_;
  std::size_t columns_;  ///< of a rank in each section: tensors of the model + 1
  Tensor before_;        ///< weights of a window
  SquareSums changes_;
  std::vector<std::int64_t> part_bounds_;  ///< byte offsets of the model ranks' ratios
  parallel::OwnedTable<double> table_;  ///< [weights, gradients, changes, ratios][ranks, columns]
  parallel::AsyncReadback<double> readback_;
};

}  // namespace trireme::optim
