// SPDX-License-Identifier: Apache-2.0
//
// Chunked gathers and sums of layers split over the tensor group; model's layers use them.

#include "trireme/parallel/row_exchange.hpp"

namespace trireme::parallel {

RowGather::RowGather(ops::Context& context, const TensorGroup& group, const Tensor& x,
                     std::int64_t cut_columns)
    : group_(group), whole_(x) {
  if (!group.rows_are_split()) return;
  whole_ = context.workspace().allocate(x.dtype, {x.shape[0] * group.size(), x.shape[1]});
  chunks_ = group.chunks(whole_.shape[0], cut_columns > 0 ? cut_columns : x.shape[1]);
  for (int number = 0; number < chunks_; ++number) {
    const RowChunk rows = chunk(number);
    requests_[static_cast<std::size_t>(number)] = group.begin_gather(
        context, x.rows(rows.held_begin, rows.held_end), whole_.rows(rows.begin, rows.end));
  }
}

void RowGather::wait() {
  for (int number = 0; number < chunks_; ++number) wait(number);
}

Tensor RowSum::allocate_result(ops::Context& context, const TensorGroup& group,
                               const Tensor& partial) {
  return group.rows_are_split()
             ? context.workspace().allocate(DType::float32,
                                            {group.rows_held(partial.shape[0]), partial.shape[1]})
             : partial;
}

RowSum::RowSum(ops::Context& context, const TensorGroup& group, const Tensor& partial,
               const Tensor& held)
    : group_(group),
      partial_(partial),
      held_(held),
      scratch_(group.scratch(context, partial)),
      chunks_(group.chunks(partial.shape[0], partial.shape[1])) {}

void RowSum::begin(int number) {
  if (group_.size() == 1) return;
  const RowChunk rows = chunk(number);
  const Tensor whole = partial_.rows(rows.begin, rows.end),
               scratch = scratch_.defined() ? scratch_.rows(rows.begin, rows.end) : Tensor{};
  requests_[static_cast<std::size_t>(number)] =
      group_.rows_are_split()
          ? group_.begin_reduce_scatter(whole, scratch, held_.rows(rows.held_begin, rows.held_end))
          : group_.begin_all_reduce(whole, scratch);
}

void RowSum::wait() {
  for (int number = 0; number < chunks_; ++number) wait(number);
}

}  // namespace trireme::parallel
