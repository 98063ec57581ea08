// SPDX-License-Identifier: Apache-2.0
//
// Losses of values [rows, columns]: squared, absolute, Huber's and logistic. Called by
// src/ops/value_loss.cpp at the end of the forward pass; the gradient is computed in the same
// launch.
//
//   a group per row:   losses in double, number of targets, gradient
//   then one group:    sums over all rows, in their order
//
// Row results are stored in a workspace, so sums do not depend on the number of threads.

#include "trireme/kernels/value_loss.hpp"

#include "space/row_group.hpp"
#include "space/vector_math.hpp"

namespace trireme::kernels {
namespace {

const std::string value_row_label = "trireme/kernels/value_loss_rows";
const std::string value_sum_label = "trireme/kernels/value_loss_sums";

/// Returns the target of one value; NaN: it is missing. A missing partner leaves the row its own.
template <class T>
KOKKOS_INLINE_FUNCTION float value_target(const ValueLoss<T>& args, std::int64_t row,
                                          std::int64_t column) {
  const float own = args.targets[row * args.columns + column];
  if (args.weights == nullptr) return own;
  const float partner = args.targets[(row ^ 1) * args.columns + column], weight = args.weights[row];
  return partner == partner ? weight * own + (1 - weight) * partner : own;
}

template <class T>
KOKKOS_INLINE_FUNCTION double loss_of(const ValueLoss<T>& args, double output, double target) {
  if (args.form == ValueLossForm::logistic)
    return (output > 0 ? output : 0) - output * target + log1p(exp(-fabs(output)));
  const double error = output - target, size = fabs(error), delta = static_cast<double>(args.delta);
  if (args.form == ValueLossForm::squared) return error * error;
  if (args.form == ValueLossForm::absolute) return size;
  return size <= delta ? 0.5 * error * error : delta * (size - 0.5 * delta);
}

template <class T>
KOKKOS_INLINE_FUNCTION double slope_of(const ValueLoss<T>& args, double output, double target) {
  if (args.form == ValueLossForm::logistic) return 1 / (1 + exp(-output)) - target;
  const double error = output - target,
               sign = error > 0   ? 1
                      : error < 0 ? -1
                                  : 0,
               delta = static_cast<double>(args.delta);
  if (args.form == ValueLossForm::squared) return 2 * error;
  // An output that is NaN must not look like a good one.
  if (args.form == ValueLossForm::absolute) return error == error ? sign : error;
  return fabs(error) > delta ? delta * sign : error;
}

template <class T>
struct ValueRow {
  ValueLoss<T> args;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t row, const Group& group) const {
    const ValueLoss<T> a = args;
    const Sums<2> sums =
        group.add_in_double(Sums<2>(), a.columns, [=](std::int64_t column, double* term) {
          const std::int64_t place = row * a.columns + column;
          const float target = value_target(a, row, column);
          const bool counts = target == target;
          const double output = static_cast<double>(to_float(a.outputs[place]));
          term[0] = counts ? loss_of(a, output, target) : 0;
          term[1] = counts;
          if (a.doutputs != nullptr)
            a.doutputs[place] = from_float<T>(
                counts ? static_cast<float>(a.gradient_scale * slope_of(a, output, target)) : 0.0f);
        });
    if (!group.is_leader()) return;
    for (int s = 0; s < 2; ++s) a.row_sums[2 * row + s] = sums.value[s];
  }
};

template <class T>
struct ValueSum {
  ValueLoss<T> args;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t, const Group& group) const {
    const ValueLoss<T> a = args;
    const Sums<2> sums =
        group.add_in_double(Sums<2>(), a.rows, [=](std::int64_t row, double* term) {
          for (int s = 0; s < 2; ++s) term[s] = a.row_sums[2 * row + s];
        });
    if (!group.is_leader()) return;
    for (int s = 0; s < 4; ++s) a.sums[s] = s < 2 ? sums.value[s] : 0;
  }
};

}  // namespace

template <class T>
void value_loss(const Stream& stream, const ValueLoss<T>& args) {
  dispatch(stream, [=](const auto& space) {
    for_each_group(space, value_row_label, args.rows, ValueRow<T>{args});
    for_each_group(space, value_sum_label, 1, ValueSum<T>{args});
  });
}
template void value_loss(const Stream&, const ValueLoss<float>&);
template void value_loss(const Stream&, const ValueLoss<BFloat16>&);
template void value_loss(const Stream&, const ValueLoss<Float16>&);

}  // namespace trireme::kernels
