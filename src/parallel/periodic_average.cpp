// SPDX-License-Identifier: Apache-2.0
//
// Averages the state of replicas (local SGD). Called by train after every n-th step:
// average() takes the mean of weights and slots window by window, then the outer step, then new
// working weights.

#include "trireme/parallel/periodic_average.hpp"

#include <string_view>
#include <utility>

#include "trireme/base/check.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::parallel {
namespace {

constexpr std::string_view average_label = "trireme/parallel/average";

}  // namespace

PeriodicAverage::PeriodicAverage(ParameterStore& store, std::vector<WindowedBuffer*> slots,
                                 const comm::Communicator& data, comm::Engine& engine,
                                 const Options& options, Arena& state)
    : store_(store), slots_(std::move(slots)), data_(data), engine_(engine), options_(options) {
  TRIREME_EXPECT(store.sharding().kind == ShardKind::none);
  if (options.outer_momentum == 0) return;
  // True if the previous tensor was a weight too: then the gap between them, which is zero, belongs
  // to the range.
  bool grows = false;
  // Runs name their tensors in flat order.
  for (const RowRun& run : store.layout().runs()) {
    const parallel::ParameterSpec& spec = store.list()[{run.tensor}];
    const bool weight = spec.role == Role::weight && !spec.frozen;
    const FlatLayout::FlatTensor& slot = store.layout().tensor({run.tensor});
    if (weight && !grows) weight_ranges_.push_back({slot.offset, slot.offset});
    if (weight) weight_ranges_.back().end = slot.offset + slot.elements;
    grows = weight;
  }
  for (Tensor* buffer : {&velocity_, &anchor_})
    *buffer = state.allocate(DType::float32, {store.layout().trained_elements()});
}

void PeriodicAverage::anchor(ops::Context& context) {
  if (anchor_.defined())
    ops::copy(context, store_.flat_master().rows(0, anchor_.elements()), anchor_);
}

void PeriodicAverage::average(ops::Context& context) {
  take_mean(context, store_.master_buffer());
  for (WindowedBuffer* slot : slots_) take_mean(context, *slot);
  if (velocity_.defined()) step(context);
  store_.refresh_working(context);
}

/// Replaces `buffer` by its mean over the data group, window by window. Frozen tensors are equal on
/// all ranks.
void PeriodicAverage::take_mean(ops::Context& context, WindowedBuffer& buffer) {
  if (data_.size() == 1) return;
  const comm::SumOrder order =
      options_.deterministic ? comm::SumOrder::tree : comm::SumOrder::library;
  std::int64_t index = 0;
  for (const ParameterShard::Window& window : store_.owned().trained_windows()) {
    const Tensor mine = buffer.open(context, window),
                 scratch = store_.flat_gradient().rows(window.begin, window.end);
    engine_.wait(engine_.all_reduce(data_, static_cast<float*>(mine.data),
                                    static_cast<float*>(scratch.data), mine.elements(), order,
                                    {average_label, {"window", index++}}));
    ops::scaled_copy(context, mine, static_cast<float>(1.0 / data_.size()), mine,
                     ops::Write::assign);
    buffer.close(context, window);
  }
}

/// Applies the outer step; the weights contain the mean on entry. Computes mean - anchor first,
/// because the difference is small compared to both.
void PeriodicAverage::step(ops::Context& context) {
  for (const WeightRange& range : weight_ranges_) {
    const Tensor weight = store_.flat_master().rows(range.begin, range.end),
                 velocity = velocity_.rows(range.begin, range.end),
                 anchor = anchor_.rows(range.begin, range.end);
    ops::scaled_copy(context, anchor, -1, weight, ops::Write::add);
    ops::scaled_copy(context, velocity, static_cast<float>(options_.outer_momentum), velocity,
                     ops::Write::assign);
    ops::add(context, weight, velocity);
    ops::copy(context, anchor, weight);
    ops::add(context, velocity, weight);
    ops::copy(context, weight, anchor);
  }
}

}  // namespace trireme::parallel
