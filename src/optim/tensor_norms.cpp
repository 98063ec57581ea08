// SPDX-License-Identifier: Apache-2.0
//
// Norms of weights, gradients and updates by tensor, and trust ratios, for rows of kind "tensors".
// Called by Optimizer in the updates that are measured.

#include "trireme/optim/tensor_norms.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/device/stream.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/parallel/bounds.hpp"

namespace trireme::optim {
namespace {

constexpr std::size_t change_section = 2, ratio_section = 3, sections = 4;

std::size_t columns_of(const parallel::ParameterStore& store, const NormScope& scope) {
  return 1 + (scope.tensor_count == 0 ? store.list().entries().size()
                                      : static_cast<std::size_t>(scope.tensor_count));
}

}  // namespace

TensorNorms::TensorNorms(const parallel::ParameterStore& store, const NormScope& scope,
                         const parallel::StateMemory& memory)
    : model_(scope.model),
      engine_(scope.engine),
      columns_(columns_of(store, scope)),
      before_(memory.device.allocate(DType::float32, {parallel::ParameterShard::largest_elements(
                                                         store.owned().trained_windows())})),
      changes_(store, scope, memory),
      part_bounds_(parallel::equal_bounds(static_cast<std::size_t>(model_.size()),
                                          columns_ * sizeof(double))),
      table_(sections * static_cast<std::size_t>(model_.size()) * columns_, memory),
      readback_(memory.device.device(),
                sections * static_cast<std::size_t>(model_.size()) * columns_) {}

double* TensorNorms::section(const Stream& stream, std::size_t number) {
  return table_.at(stream, number * static_cast<std::size_t>(model_.size()) * columns_);
}

void TensorNorms::copy(ops::Context& context, Kind kind, SquareSums& sums) {
  const Stream& stream = context.stream();
  double* const to = section(stream, static_cast<std::size_t>(kind));
  const double* const from = sums.parts(stream).sums;
  if (context.meta()) return;
  copy_bytes(stream, to, from, static_cast<std::size_t>(part_bounds_.back()));
}

void TensorNorms::keep(ops::Context& context, const parallel::ParameterShard::Window& window,
                       const Tensor& weights) {
  ops::copy(context, weights, before_.rows(0, window.elements()));
}

void TensorNorms::measure(ops::Context& context, const parallel::ParameterShard::Window& window,
                          const Tensor& weights) {
  const Tensor change = before_.rows(0, window.elements());
  // Before minus after: the sign does not matter for squares.
  ops::scaled_copy(context, weights, -1, change, ops::Write::add);
  changes_.measure_window(context, window, change);
}

double* TensorNorms::own_trust_ratios(const Stream& stream) {
  const auto ranks = static_cast<std::size_t>(model_.size());
  return table_.at(stream,
                   (ratio_section * ranks + static_cast<std::size_t>(model_.rank())) * columns_);
}

void TensorNorms::finish(ops::Context& context) {
  changes_.reduce_by_tensor(context);
  const Stream& stream = context.stream();
  if (!context.meta())
    copy_bytes(stream, section(stream, change_section), changes_.parts(stream).sums,
               static_cast<std::size_t>(part_bounds_.back()));
  if (model_.size() > 1)
    engine_->wait(engine_->all_gather(model_,
                                      reinterpret_cast<std::byte*>(section(stream, ratio_section)),
                                      part_bounds_, "trireme/optim/gather_trust_ratios"));
  readback_.enqueue(stream, table_.at(stream));
}

std::vector<TensorNorm> TensorNorms::wait() {
  const double* const values = readback_.wait();
  if (values == nullptr) return {};
  const auto ranks = static_cast<std::size_t>(model_.size());
  const auto value = [&](std::size_t section, std::size_t rank, std::size_t tensor) {
    return values[(section * ranks + rank) * columns_ + tensor];
  };
  std::vector<TensorNorm> norms(columns_ - 1);
  for (std::size_t tensor = 0; tensor < norms.size(); ++tensor) {
    double squares[3] = {}, ratio = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t section = 0; section < 3; ++section)
        squares[section] += value(section, rank, tensor);
      // All ranks that hold a tensor have its ratio, which is positive; the others have 0.
      ratio = std::max(ratio, value(ratio_section, rank, tensor));
    }
    norms[tensor] = {.weight = std::sqrt(squares[0]),
                     .gradient = std::sqrt(squares[1]),
                     .update = std::sqrt(squares[2]),
                     .trust_ratio = {}};
    if (ratio > 0) norms[tensor].trust_ratio = ratio;
  }
  return norms;
}

}  // namespace trireme::optim
