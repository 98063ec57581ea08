#include "trireme/parallel/tensor_group.hpp"

#include "trireme/ops/elementwise.hpp"

namespace trireme::parallel {
namespace {

float* floats(const Tensor& tensor) { return tensor.defined() ? tensor.as<float>() : nullptr; }

}  // namespace

TensorGroup::TensorGroup(const comm::Communicator& group, comm::Engine& engine, comm::SumOrder order, bool sequence)
    : group_(group), engine_(&engine), order_(order), sequence_(sequence), bounds_(static_cast<std::size_t>(group.size()) + 1) {}

void TensorGroup::all_reduce(ops::Context& context, const Tensor& x) const {
  TRIREME_EXPECT(x.dtype == DType::float32);
  if (size() == 1) return;
  const ArenaScope scope(context.workspace());
  engine_->wait(engine_->all_reduce(group_, floats(x), floats(scratch(context, x)), x.elements(), order_, "trireme/parallel/tensor_all_reduce"));
}

void TensorGroup::gather_rows(ops::Context& context, const Tensor& part, const Tensor& whole) const {
  TRIREME_EXPECT(part.shape[0] * size() == whole.shape[0]);
  gather(context, part, whole);
}

void TensorGroup::reduce_scatter_rows(ops::Context& context, const Tensor& whole, const Tensor& part) const {
  TRIREME_EXPECT(whole.dtype == DType::float32 && part.dtype == DType::float32 && part.shape[0] * size() == whole.shape[0]);
  TRIREME_EXPECT(part.elements() * size() == whole.elements());
  if (size() == 1) return ops::copy(context, whole, part);
  const ArenaScope scope(context.workspace());
  engine_->wait(engine_->reduce_scatter(group_, floats(whole), floats(scratch(context, whole)), even_bounds(whole, size_of(whole.dtype)), floats(part), order_,
                                        "trireme/parallel/tensor_reduce_scatter"));
}

void TensorGroup::gather(ops::Context& context, const Tensor& mine, const Tensor& all) const {
  TRIREME_EXPECT(mine.dtype == all.dtype && mine.elements() * size() == all.elements());
  ops::copy(context, mine, all.reshaped({size(), mine.elements()}).rows(rank(), rank() + 1));
  if (size() == 1) return;
  engine_->wait(engine_->all_gather(group_, static_cast<std::byte*>(all.data), even_bounds(all, 1), "trireme/parallel/tensor_gather"));
}

std::span<const std::int64_t> TensorGroup::even_bounds(const Tensor& whole, std::int64_t unit) const {
  const std::int64_t part = whole.bytes() / size() / unit;
  for (std::size_t rank = 0; rank < bounds_.size(); ++rank) bounds_[rank] = static_cast<std::int64_t>(rank) * part;
  return bounds_;
}

/// Where the partner's part arrives: as large on every device, so that it is planned on meta.
Tensor TensorGroup::scratch(ops::Context& context, const Tensor& like) const {
  return order_ == comm::SumOrder::tree ? context.workspace().allocate(like.dtype, like.shape) : Tensor{};
}

}  // namespace trireme::parallel
