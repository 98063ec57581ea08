// SPDX-License-Identifier: Apache-2.0
//
// Sums and gathers over the tensor group, and the division of rows into chunks. Called by the
// layers of model, row_exchange.cpp and GradientReducer.

#include "trireme/parallel/tensor_group.hpp"

#include "trireme/device/profile_range.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::parallel {
namespace {

float* floats(const Tensor& tensor) { return tensor.defined() ? tensor.as<float>() : nullptr; }

}  // namespace

TensorGroup::TensorGroup(const comm::Communicator& group, comm::Engine& engine,
                         comm::SumOrder order, bool sequence, const RowChunkLimits& limits)
    : group_(group), engine_(&engine), order_(order), sequence_(sequence), limits_(limits) {
  TRIREME_EXPECT(0 < limits.max_chunks && limits.max_chunks <= RowChunkLimits::max_chunks_limit);
  for (std::vector<std::int64_t>& bounds : bounds_)
    bounds.resize(static_cast<std::size_t>(group.size()) + 1);
}

int TensorGroup::chunks(std::int64_t rows, std::int64_t columns) const {
  // The largest number of chunks that satisfies all limits.
  for (int chunks = size() > 1 ? limits_.max_chunks : 1; chunks > 1; --chunks) {
    const std::int64_t each = rows / chunks;
    if (rows % (chunks * size() * RowChunkLimits::row_multiple) == 0 && each >= limits_.min_rows &&
        each * columns >= limits_.min_elements)
      return chunks;
  }
  return 1;
}

RowChunk TensorGroup::chunk(int number, int chunks, std::int64_t rows) const {
  const std::int64_t each = rows / chunks, begin = number * each;
  if (!rows_are_split()) return {begin, begin + each, begin, begin + each, begin};
  const std::int64_t held = each / size();
  return {begin, begin + each, number * held, (number + 1) * held, begin + rank() * held};
}

TensorGroup::RowLocation TensorGroup::locate_row(std::int64_t row, std::int64_t rows,
                                                 std::int64_t columns) const {
  if (!rows_are_split()) return {rank(), row};
  const std::int64_t each = rows / chunks(rows, columns), held = each / size();
  return {static_cast<int>(row % each / held), row / each * held + row % held};
}

TensorGroup::Request TensorGroup::begin_all_reduce(const Tensor& x, const Tensor& scratch) const {
  TRIREME_EXPECT(x.dtype == DType::float32);
  if (size() == 1) return 0;
  return engine_->all_reduce(group_, floats(x), floats(scratch), x.elements(), order_,
                             "trireme/parallel/tensor_all_reduce");
}

TensorGroup::Request TensorGroup::begin_reduce_scatter(const Tensor& whole, const Tensor& scratch,
                                                       const Tensor& part) const {
  TRIREME_EXPECT(whole.dtype == DType::float32 && part.dtype == DType::float32 &&
                 part.shape[0] * size() == whole.shape[0]);
  TRIREME_EXPECT(part.elements() * size() == whole.elements() && size() > 1);
  return engine_->reduce_scatter(group_, floats(whole), floats(scratch),
                                 even_bounds(whole, size_of(whole.dtype)), floats(part), order_,
                                 "trireme/parallel/tensor_reduce_scatter");
}

TensorGroup::Request TensorGroup::begin_gather(ops::Context& context, const Tensor& mine,
                                               const Tensor& all) const {
  TRIREME_EXPECT(mine.dtype == all.dtype && mine.elements() * size() == all.elements());
  ops::copy(context, mine, all.reshaped({size(), mine.elements()}).rows(rank(), rank() + 1));
  if (size() == 1) return 0;
  return engine_->all_gather(group_, static_cast<std::byte*>(all.data), even_bounds(all, 1),
                             "trireme/parallel/tensor_gather");
}

void TensorGroup::wait(Request request) const {
  if (request == 0) return;
  const ProfileRange range("trireme/parallel/tensor_wait");
  engine_->wait(request);
}

void TensorGroup::all_reduce(ops::Context& context, const Tensor& x) const {
  if (size() == 1) return;
  const ArenaScope scope(context.workspace());
  wait(begin_all_reduce(x, scratch(context, x)));
}

void TensorGroup::gather(ops::Context& context, const Tensor& mine, const Tensor& all) const {
  wait(begin_gather(context, mine, all));
}

std::span<const std::int64_t> TensorGroup::even_bounds(const Tensor& whole,
                                                       std::int64_t unit) const {
  std::vector<std::int64_t>& bounds = bounds_[next_bounds_];
  next_bounds_ = (next_bounds_ + 1) % bounds_.size();
  const std::int64_t part = whole.bytes() / size() / unit;
  for (std::size_t rank = 0; rank < bounds.size(); ++rank)
    bounds[rank] = static_cast<std::int64_t>(rank) * part;
  return bounds;
}

Tensor TensorGroup::scratch(ops::Context& context, const Tensor& like) const {
  return size() > 1 && order_ == comm::SumOrder::tree
             ? context.workspace().allocate(like.dtype, like.shape)
             : Tensor{};
}

}  // namespace trireme::parallel
