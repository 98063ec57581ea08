// SPDX-License-Identifier: Apache-2.0
//
// Batch norm and group norm: checks shapes, takes the workspace, counts bytes and launches the
// kernels.
//
// Both norms map to one NormShape: batch norm is one segment with a group for each channel, group
// norm one segment for each sample. Training calls statistics, then apply; backward reads their
// results. A group of ranks exchanges its sums twice: in batch_norm_join() between statistics and
// apply, and in the middle of backward. On meta only workspace and counters change.

#include "trireme/ops/normalization.hpp"

#include "trireme/base/check.hpp"
#include "trireme/kernels/norm/normalization.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {
namespace {

using kernels::NormShape;

NormShape batch_shape(const BatchNorm& op) {
  return {1, op.rows, op.channels, op.channels, op.relu, op.add};
}

NormShape group_shape(const GroupNorm& op) {
  validate(op.groups > 0 && op.channels % op.groups == 0,
           "group norm: {} channels are not divisible by {} groups; use a number of "
           "groups that divides the channels",
           op.channels, op.groups);
  return {op.batch, op.pixels, op.channels, op.groups, op.relu, op.add};
}

std::int64_t elements(const NormShape& shape) {
  return shape.segments * shape.rows * shape.channels;
}

void expect_activations([[maybe_unused]] const NormShape& shape, [[maybe_unused]] DType dtype,
                        [[maybe_unused]] const Tensor& t) {
  TRIREME_EXPECT(is_compute_type(dtype));
  TRIREME_EXPECT(t.dtype == dtype && t.shape.back() == shape.channels &&
                 t.elements() == elements(shape));
}
void expect_parameters([[maybe_unused]] std::int64_t count, [[maybe_unused]] const Tensor& t) {
  TRIREME_EXPECT(t.dtype == DType::float32 && t.elements() == count);
}

std::int64_t mask_elements(const Context& context, const NormShape& shape, DType dtype) {
  return kernels::norm_mask_bytes(shape, size_of(dtype), context.target());
}
void expect_mask([[maybe_unused]] const Context& context, [[maybe_unused]] const NormShape& shape,
                 [[maybe_unused]] DType dtype, [[maybe_unused]] const Tensor& mask) {
  TRIREME_EXPECT(!mask.defined() || (mask.dtype == DType::uint8 &&
                                     mask.elements() == mask_elements(context, shape, dtype)));
}

/// Takes the workspace of a norm. Its size is the same for forward and backward.
kernels::NormWorkspace allocate_workspace(Context& context, const NormShape& shape) {
  const kernels::NormWorkspaceSizes sizes = kernels::norm_workspace_sizes(shape);
  const Tensor partials = context.workspace().allocate(DType::float32, {sizes.partials});
  const Tensor sums = context.workspace().allocate(DType::float64, {sizes.channel_sums});
  const Tensor coefficients = context.workspace().allocate(DType::float32, {sizes.coefficients});
  return {partials.as<float>(), sums.as<double>(), coefficients.as<float>()};
}

/// Counts `tensors` passes over an activation, the lower bound of the traffic.
void count(Context& context, const Op& op, const NormShape& shape, DType dtype, int tensors) {
  context.count(op, static_cast<double>(elements(shape) * size_of(dtype)) * tensors);
}

/// Launches y = act(...). With `variance` defined (evaluation) the kernel uses it instead of rstd.
template <class T>
void apply(Context& context, const NormShape& shape, const Tensor& x, const Tensor& gamma,
           const Tensor& beta, const Tensor& residual, const Tensor& mean, const Tensor& rstd,
           const Tensor& variance, const Tensor& y, const Tensor& mask) {
  kernels::norm_apply<T>(
      context.stream(), shape,
      {x.as<T>(), shape.add ? residual.as<T>() : nullptr, y.as<T>(), gamma.as<float>(),
       beta.as<float>(), mean.as<float>(), rstd.as<float>(), variance.as<float>(),
       batch_norm_epsilon, static_cast<std::uint8_t*>(mask.data)});
}

kernels::NormStatistics statistics_pointers(const BatchStatistics& statistics) {
  return {statistics.mean.as<float>(), statistics.rstd.as<float>(),
          statistics.unbiased_variance.as<float>(), batch_norm_epsilon};
}

void expect_statistics([[maybe_unused]] const BatchNorm& op,
                       [[maybe_unused]] const BatchStatistics& statistics) {
  expect_parameters(op.channels, statistics.mean);
  expect_parameters(op.channels, statistics.rstd);
  expect_parameters(op.channels, statistics.unbiased_variance);
}

void run_statistics(Context& context, const NormShape& shape, DType dtype, const Tensor& x,
                    const kernels::NormStatistics& statistics) {
  expect_activations(shape, dtype, x);
  const ArenaScope scope(context.workspace());
  const kernels::NormWorkspace workspace = allocate_workspace(context, shape);
  if (context.meta()) return;
  with_element_type(dtype, [&]<class T>(T) {
    kernels::norm_statistics(context.stream(), shape, x.as<T>(), workspace, statistics);
  });
}

void run_apply(Context& context, const NormShape& shape, DType dtype, const Tensor& x,
               const Tensor& gamma, const Tensor& beta, const Tensor& residual, const Tensor& y,
               const Tensor& mean, const Tensor& rstd, const Tensor& mask) {
  expect_activations(shape, dtype, x);
  expect_activations(shape, dtype, y);
  if (shape.add) expect_activations(shape, dtype, residual);
  expect_mask(context, shape, dtype, mask);
  expect_parameters(shape.channels, gamma);
  expect_parameters(shape.channels, beta);
  expect_parameters(shape.segments * shape.groups, mean);
  expect_parameters(shape.segments * shape.groups, rstd);
  if (context.meta()) return;
  with_element_type(dtype, [&]<class T>(T) {
    apply<T>(context, shape, x, gamma, beta, residual, mean, rstd, {}, y, mask);
  });
}

/// Runs backward in two halves. Between them the group gathers the sums of its batches; this rank's
/// own are written where they are gathered.
template <class T>
void backward_of_group(Context& context, const NormShape& shape,
                       const kernels::NormBackward<T>& arguments, kernels::NormWorkspace workspace,
                       const BatchGroup& group, const Tensor& all) {
  if (!context.meta()) {
    workspace.channel_sums = all.rows(group.rank, group.rank + 1).as<double>();
    kernels::norm_backward_sums(context.stream(), shape, arguments, workspace);
  }
  group.gather(all);
  if (!context.meta())
    kernels::norm_backward_input(context.stream(), shape, arguments, workspace,
                                 {all.as<double>(), group.size});
}

template <class T>
kernels::NormBackward<T> backward_arguments(
    const NormShape& shape, const Tensor& x, const Tensor& y, const Tensor& dy, const Tensor& gamma,
    const Tensor& beta, const Tensor& mean, const Tensor& rstd, const Tensor& dx,
    const Tensor& dresidual, const Tensor& dgamma, const Tensor& dbeta,
    const kernels::NormRunning& running, const Tensor& mask, Write write) {
  return {x.as<T>(),
          shape.relu ? y.as<T>() : nullptr,
          dy.as<T>(),
          dx.as<T>(),
          dresidual.defined() ? dresidual.as<T>() : nullptr,
          gamma.as<float>(),
          beta.as<float>(),
          mean.as<float>(),
          rstd.as<float>(),
          dgamma.as<float>(),
          dbeta.as<float>(),
          running,
          write == Write::add,
          static_cast<std::uint8_t*>(mask.data)};
}

void run_backward(Context& context, const Op& op, const NormShape& shape, DType dtype,
                  const Tensor& x, const Tensor& y, const Tensor& dy, const Tensor& gamma,
                  const Tensor& beta, const Tensor& mean, const Tensor& rstd, const Tensor& dx,
                  const Tensor& dresidual, const Tensor& dgamma, const Tensor& dbeta,
                  const kernels::NormRunning& running, const Tensor& mask, Write write,
                  const BatchGroup& group) {
  expect_activations(shape, dtype, x);
  expect_activations(shape, dtype, dy);
  expect_activations(shape, dtype, dx);
  if (shape.relu) expect_activations(shape, dtype, y);
  if (shape.add) expect_activations(shape, dtype, dresidual);
  expect_mask(context, shape, dtype, mask);
  TRIREME_EXPECT(!shape.add || dx.data == nullptr || dx.data != dresidual.data);
  expect_parameters(shape.channels, gamma);
  expect_parameters(shape.channels, beta);
  expect_parameters(shape.channels, dgamma);
  expect_parameters(shape.channels, dbeta);
  count(context, op, shape, dtype, 2 + (shape.relu ? 1 : 0) + (shape.add ? 1 : 0) + 3);
  ArenaScope scope(context.workspace());
  const kernels::NormWorkspace workspace = allocate_workspace(context, shape);
  const Tensor all =
      group.size > 1 ? context.workspace().allocate(DType::float64, {group.size, 2, shape.channels})
                     : Tensor{};
  if (context.meta() && group.size == 1) return;
  with_element_type(dtype, [&]<class T>(T) {
    const kernels::NormBackward<T> arguments =
        backward_arguments<T>(shape, x, y, dy, gamma, beta, mean, rstd, dx, dresidual, dgamma,
                              dbeta, running, mask, write);
    if (group.size > 1)
      backward_of_group(context, shape, arguments, workspace, group, all);
    else
      kernels::norm_backward(context.stream(), shape, arguments, workspace);
  });
}

void expect_joined([[maybe_unused]] const NormShape& shape, [[maybe_unused]] DType dtype,
                   [[maybe_unused]] const JoinedBatchNorm& norm) {
  TRIREME_EXPECT(shape.relu && shape.add);
  expect_activations(shape, dtype, norm.x);
  expect_parameters(shape.channels, norm.gamma);
  expect_parameters(shape.channels, norm.beta);
  expect_parameters(shape.channels, norm.statistics.mean);
  expect_parameters(shape.channels, norm.statistics.rstd);
}

/// Returns the kernel's arguments for one of two joined norms.
template <class T>
kernels::NormBackward<T> joined_arguments(const NormShape& shape, const JoinedBatchNorm& norm,
                                          const Tensor& y, const Tensor& dy, const Tensor& mask,
                                          Write write) {
  return backward_arguments<T>(
      shape, norm.x, y, dy, norm.gamma, norm.beta, norm.statistics.mean, norm.statistics.rstd,
      norm.dx, {}, norm.dgamma, norm.dbeta,
      {norm.statistics.unbiased_variance.as<float>(), norm.running.mean.as<float>(),
       norm.running.variance.as<float>(), norm.running.scale},
      mask, write);
}

}  // namespace

std::int64_t batch_norm_mask_elements(const Context& context, const BatchNorm& op) {
  return mask_elements(context, batch_shape(op), op.dtype);
}
std::int64_t group_norm_mask_elements(const Context& context, const GroupNorm& op) {
  return mask_elements(context, group_shape(op), op.dtype);
}

void batch_norm_statistics(Context& context, const BatchNorm& op, const Tensor& x,
                           const BatchStatistics& statistics) {
  const NormShape shape = batch_shape(op);
  expect_statistics(op, statistics);
  count(context, "batch_norm_statistics", shape, op.dtype, 1);
  run_statistics(context, shape, op.dtype, x, statistics_pointers(statistics));
}

void batch_norm_statistics_of_sums(Context& context, const BatchNorm& op, const Tensor& x,
                                   const Tensor& sums, const BatchStatistics& statistics) {
  const NormShape shape = batch_shape(op);
  expect_activations(shape, op.dtype, x);
  expect_parameters(2 * op.channels, sums);
  expect_statistics(op, statistics);
  if (context.counts_only("batch_norm_statistics_of_sums", 2 * sums.bytes())) return;
  with_element_type(op.dtype, [&]<class T>(T) {
    kernels::norm_of_sums(context.stream(), shape, x.as<T>(), sums.as<float>(),
                          statistics_pointers(statistics));
  });
}

void batch_norm_join(Context& context, const BatchNorm& op, const BatchGroup& group,
                     const Tensor& all, const BatchStatistics& joined) {
  TRIREME_EXPECT(group.size > 1 && all.shape[0] == group.size);
  expect_parameters(2 * group.size * op.channels, all);
  expect_statistics(op, joined);
  context.count("batch_norm_join", all.bytes() + 3 * joined.mean.bytes());
  group.gather(all);
  if (context.meta()) return;
  kernels::norm_of_batches(context.stream(), batch_shape(op), all.as<float>(), group.size,
                           statistics_pointers(joined));
}

void batch_norm_apply(Context& context, const BatchNorm& op, const Tensor& x, const Tensor& gamma,
                      const Tensor& beta, const Tensor& residual, const Tensor& y,
                      const BatchStatistics& statistics, const Tensor& mask) {
  const NormShape shape = batch_shape(op);
  count(context, "batch_norm_apply", shape, op.dtype, op.add ? 3 : 2);
  run_apply(context, shape, op.dtype, x, gamma, beta, residual, y, statistics.mean, statistics.rstd,
            mask);
}

void batch_norm_inference(Context& context, const BatchNorm& op, const Tensor& x,
                          const Tensor& gamma, const Tensor& beta, const Tensor& residual,
                          const Tensor& running_mean, const Tensor& running_variance,
                          const Tensor& y) {
  const NormShape shape = batch_shape(op);
  expect_activations(shape, op.dtype, x);
  expect_activations(shape, op.dtype, y);
  if (op.add) expect_activations(shape, op.dtype, residual);
  expect_parameters(op.channels, running_mean);
  expect_parameters(op.channels, running_variance);
  count(context, "batch_norm_inference", shape, op.dtype, op.add ? 3 : 2);
  if (context.meta()) return;
  with_element_type(op.dtype, [&]<class T>(T) {
    apply<T>(context, shape, x, gamma, beta, residual, running_mean, {}, running_variance, y, {});
  });
}

void batch_norm_backward(Context& context, const BatchNorm& op, const Tensor& x, const Tensor& y,
                         const Tensor& dy, const Tensor& gamma, const Tensor& beta,
                         const BatchStatistics& statistics, const Tensor& dx,
                         const Tensor& dresidual, const Tensor& dgamma, const Tensor& dbeta,
                         const RunningStatistics& running, const Tensor& mask, Write write,
                         const BatchGroup& group) {
  expect_statistics(op, statistics);
  expect_parameters(op.channels, running.mean);
  expect_parameters(op.channels, running.variance);
  TRIREME_EXPECT(context.meta() || (running.mean.data != statistics.mean.data &&
                                    running.variance.data != statistics.unbiased_variance.data));
  run_backward(context, "batch_norm_backward", batch_shape(op), op.dtype, x, y, dy, gamma, beta,
               statistics.mean, statistics.rstd, dx, dresidual, dgamma, dbeta,
               {statistics.unbiased_variance.as<float>(), running.mean.as<float>(),
                running.variance.as<float>(), running.scale},
               mask, write, group);
}

void batch_norm_apply_joined(Context& context, const BatchNorm& op, const JoinedBatchNorm& block,
                             const JoinedBatchNorm& shortcut, const Tensor& y, const Tensor& mask) {
  const NormShape shape = batch_shape(op);
  expect_joined(shape, op.dtype, block);
  expect_joined(shape, op.dtype, shortcut);
  expect_activations(shape, op.dtype, y);
  expect_mask(context, shape, op.dtype, mask);
  count(context, "batch_norm_apply_joined", shape, op.dtype, 3);
  if (context.meta()) return;
  with_element_type(op.dtype, [&]<class T>(T) {
    kernels::norm_apply_joined<T>(
        context.stream(), shape,
        {.x = block.x.as<T>(),
         .y = y.as<T>(),
         .gamma = block.gamma.as<float>(),
         .beta = block.beta.as<float>(),
         .mean = block.statistics.mean.as<float>(),
         .rstd = block.statistics.rstd.as<float>(),
         .mask = static_cast<std::uint8_t*>(mask.data)},
        {shortcut.x.as<T>(), shortcut.gamma.as<float>(), shortcut.beta.as<float>(),
         shortcut.statistics.mean.as<float>(), shortcut.statistics.rstd.as<float>()});
  });
}

void batch_norm_backward_joined(Context& context, const BatchNorm& op, const JoinedBatchNorm& block,
                                const JoinedBatchNorm& shortcut, const Tensor& y, const Tensor& dy,
                                const Tensor& mask, Write write) {
  const NormShape shape = batch_shape(op);
  for (const JoinedBatchNorm* norm : {&block, &shortcut}) {
    expect_joined(shape, op.dtype, *norm);
    expect_activations(shape, op.dtype, norm->dx);
    expect_statistics(op, norm->statistics);
    for (const Tensor* vector :
         {&norm->dgamma, &norm->dbeta, &norm->running.mean, &norm->running.variance})
      expect_parameters(op.channels, *vector);
  }
  expect_activations(shape, op.dtype, y);
  expect_activations(shape, op.dtype, dy);
  expect_mask(context, shape, op.dtype, mask);
  TRIREME_EXPECT(shortcut.dx.data == dy.data && (context.meta() || block.dx.data != dy.data));
  // Both x and dy twice, y (or its mask) once, both dx.
  count(context, "batch_norm_backward_joined", shape, op.dtype, 2 * 3 + 1 + 2);
  const ArenaScope scope(context.workspace());
  const kernels::NormWorkspace of_block = allocate_workspace(context, shape),
                               of_shortcut = allocate_workspace(context, shape);
  if (context.meta()) return;
  with_element_type(op.dtype, [&]<class T>(T) {
    kernels::norm_backward_joined<T>(
        context.stream(), shape, joined_arguments<T>(shape, block, y, dy, mask, write),
        joined_arguments<T>(shape, shortcut, y, dy, {}, write), of_block, of_shortcut);
  });
}

void group_norm_forward(Context& context, const GroupNorm& op, const Tensor& x, const Tensor& gamma,
                        const Tensor& beta, const Tensor& residual, const Tensor& y,
                        const Tensor& mean, const Tensor& rstd, const Tensor& mask) {
  const NormShape shape = group_shape(op);
  count(context, "group_norm_forward", shape, op.dtype, op.add ? 4 : 3);
  run_statistics(context, shape, op.dtype, x,
                 {mean.as<float>(), rstd.as<float>(), nullptr, batch_norm_epsilon});
  run_apply(context, shape, op.dtype, x, gamma, beta, residual, y, mean, rstd, mask);
}

void group_norm_backward(Context& context, const GroupNorm& op, const Tensor& x, const Tensor& y,
                         const Tensor& dy, const Tensor& gamma, const Tensor& beta,
                         const Tensor& mean, const Tensor& rstd, const Tensor& dx,
                         const Tensor& dresidual, const Tensor& dgamma, const Tensor& dbeta,
                         const Tensor& mask, Write write) {
  run_backward(context, "group_norm_backward", group_shape(op), op.dtype, x, y, dy, gamma, beta,
               mean, rstd, dx, dresidual, dgamma, dbeta, {}, mask, write, {});
}

}  // namespace trireme::ops
