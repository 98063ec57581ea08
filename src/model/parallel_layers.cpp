// SPDX-License-Identifier: Apache-2.0
//
// Layers of transformers with tensor and sequence parallelism: norms, dropout, and linear layers
// that exchange rows in chunks, so that communication overlaps with matrix products.
//
// Overlap, by function:
// - Column forward, row backward: chunk n is multiplied while chunk n + 1 is gathered.
// - Row forward: chunk n is summed over the group while chunk n + 1 is multiplied.
// - Column backward does both; its timeline with two chunks:
//
//   compute   dx chunk 0 | dx chunk 1  | wait x | weight gradient | wait dx | convert
//   network   gather x ............... |
//   network              | sum chunk 0 | sum chunk 1 ............ |
//
// The gather delivers the rows of x that the weight gradient reads. The sums of dx over the group
// run while the weight gradient is computed. In a group of one there is one chunk and no exchange.
#include "model/parallel_layers.hpp"

#include <numeric>
#include <utility>

#include "trireme/base/philox.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/row_norm.hpp"
#include "trireme/parallel/row_exchange.hpp"

namespace trireme::model {

using Along = parallel::Split::Along;
using ops::MatrixOrder;
using parallel::Initializer;
using parallel::MatrixForm;
using parallel::ParameterSpec;
using parallel::RowChunk;
using parallel::RowGather;
using parallel::RowSum;

namespace {

MatrixForm form_of(MatrixOrder order) {
  return order == MatrixOrder::in_out ? MatrixForm::in_out : MatrixForm::out_in;
}

}  // namespace

ParameterSpec matrix_spec(std::string name, const Shape& shape, double deviation) {
  return {.name = std::move(name),
          .shape = shape,
          .initializer = {Initializer::Kind::normal, deviation}};
}

ParameterSpec vector_spec(std::string name, std::int64_t size, const Initializer& start,
                          parallel::Role role) {
  ParameterSpec spec{.name = std::move(name), .shape = {size}, .initializer = start, .role = role};
  spec.decay = spec.trust = spec.compute_copy = false;
  return spec;
}

Tensor gather_rows(MicroBatchPass& pass, const Tensor& x, std::int64_t cut_columns) {
  RowGather rows(pass.context(), pass.tensor(), x, cut_columns);
  rows.wait();
  return rows.whole();
}

Tensor sum_over_group(MicroBatchPass& pass, const Tensor& partial) {
  const parallel::TensorGroup& group = pass.tensor();
  if (!group.rows_are_split()) {
    group.all_reduce(pass.context(), partial);
    return partial;
  }
  const Tensor held = RowSum::allocate_result(pass.context(), group, partial);
  const ArenaScope scope(pass.context().workspace());
  RowSum sum(pass.context(), group, partial, held);
  for (int number = 0; number < sum.chunks(); ++number) sum.begin(number);
  sum.wait();
  return held;
}

Tensor convert_to(MicroBatchPass& pass, const Tensor& x, DType dtype) {
  if (x.dtype == dtype) return x;
  const Tensor y = pass.context().workspace().allocate(dtype, x.shape);
  ops::cast(pass.context(), x, y);
  return y;
}

DropoutKey::DropoutKey(const std::string& name)
    : name_key_(random_key(0, "dropout/" + name)), path_key_(random_key(0, "drop_path/" + name)) {}

ops::Dropout DropoutKey::mask(const MicroBatchPass& pass, double probability, std::int64_t context,
                              std::int64_t first_row, double drop_path) const {
  return {.probability = pass.training() ? static_cast<float>(probability) : 0.0f,
          .key = layer_key(pass),
          .sample_keys = pass.sample_keys(),
          .first_row = first_row,
          .context = context,
          .path_probability = pass.training() ? static_cast<float>(drop_path) : 0.0f,
          .path_key = pass.layer_key(path_key_)};
}

void DropoutKey::apply(MicroBatchPass& pass, double probability, std::int64_t context,
                       const Tensor& x, const Tensor& y, double drop_path) const {
  for_each_held_chunk(pass.tensor(), x, [&](const RowChunk& piece) {
    ops::dropout(pass.context(), mask(pass, probability, context, piece.first_held, drop_path),
                 x.rows(piece.held_begin, piece.held_end),
                 y.rows(piece.held_begin, piece.held_end));
  });
}

void DropoutKey::apply_in_place(MicroBatchPass& pass, double probability, std::int64_t context,
                                const Tensor& x) const {
  if (pass.training() && probability > 0) apply(pass, probability, context, x, x);
}

void RowNormLayer::declare(parallel::ParameterList& list, double scale) {
  const auto declare_one = [&](const char* suffix, double value) {
    ParameterSpec spec =
        vector_spec(name_ + suffix, options_.width, {Initializer::Kind::constant, value});
    if (options_.rows_are_held) spec.partial_gradient = parallel::PartialGradient::of_held_rows;
    return list.declare(std::move(spec));
  };
  scale_ = declare_one(".weight", scale);
  if (!rms()) shift_ = declare_one(".bias", 0);
}

ops::RowNorm RowNormLayer::problem(const Tensor& x) const {
  return {.rows = x.shape[0],
          .width = options_.width,
          .rms = rms(),
          .dtype = x.dtype,
          .epsilon = options_.epsilon};
}

RowNormLayer::Normalized RowNormLayer::normalize(MicroBatchPass& pass, const Tensor& x,
                                                 const Normalized& to) {
  ops::row_norm_forward(pass.context(), problem(x), x, pass.store().weight(scale_),
                        rms() ? Tensor{} : pass.store().weight(shift_), to.y, to.mean, to.rstd);
  return to;
}

void RowNormLayer::compute_gradients(MicroBatchPass& pass, const Tensor& x,
                                     const Normalized& normed, const Tensor& dy,
                                     const Tensor& dresidual, const Tensor& dx) {
  ops::row_norm_backward(pass.context(), problem(x), x, dy, pass.store().weight(scale_),
                         normed.mean, normed.rstd, dresidual, dx, pass.store().gradient(scale_),
                         rms() ? Tensor{} : pass.store().gradient(shift_), pass.write());
}

Tensor RowNormLayer::forward(MicroBatchPass& pass, const Tensor& x) {
  const Tensor y = pass.activation(x.dtype, x.shape),
               rstd = pass.activation(DType::float32, {x.shape[0]});
  const Tensor mean = rms() ? Tensor{} : pass.activation(DType::float32, {x.shape[0]});
  normalize(pass, x, {y, mean, rstd});
  pass.push_saved(x);
  pass.push_saved(mean);
  pass.push_saved(rstd);
  return y;
}

void RowNormLayer::backward(MicroBatchPass& pass, const Tensor& dy, const Tensor& dresidual,
                            const Tensor& dx) {
  const Tensor rstd = pass.pop_saved(), mean = pass.pop_saved(), x = pass.pop_saved();
  compute_gradients(pass, x, {{}, mean, rstd}, dy, dresidual, dx);
}

ColumnParallelLinear::ColumnParallelLinear(Options options) : options_(std::move(options)) {
  TRIREME_EXPECT(options_.names.size() == 1 || (options_.order == MatrixOrder::out_in &&
                                                options_.names.size() == options_.sections.size()));
}

void ColumnParallelLinear::declare(parallel::ParameterList& list) {
  const bool in_out = options_.order == MatrixOrder::in_out, one_tensor = tensor_count() == 1;
  const std::vector<std::int64_t> sections =
      one_tensor ? options_.sections : std::vector<std::int64_t>{};
  const std::int64_t all =
      std::accumulate(options_.sections.begin(), options_.sections.end(), std::int64_t{0});
  const auto declare_all = [&](const char* suffix, const auto& spec_of) {
    parallel::ParameterId first;
    for (std::size_t i = 0; i < options_.names.size(); ++i) {
      ParameterSpec spec =
          spec_of(options_.names[i] + suffix, one_tensor ? all : options_.sections[i]);
      spec.joined = i > 0;
      const parallel::ParameterId id = list.declare(std::move(spec));
      if (i == 0) first = id;
    }
    return first;
  };
  weight_ = declare_all(".weight", [&](std::string name, std::int64_t outputs) {
    ParameterSpec spec = matrix_spec(
        std::move(name), in_out ? Shape{options_.in, outputs} : Shape{outputs, options_.in},
        options_.deviation);
    spec.form = form_of(options_.order);
    spec.split = {in_out ? Along::columns : Along::rows, sections};
    return spec;
  });
  if (!options_.bias) return;
  bias_ = declare_all(".bias", [&](std::string name, std::int64_t outputs) {
    ParameterSpec spec = vector_spec(std::move(name), outputs);
    spec.split = {Along::columns, sections};
    spec.product_bias = true;
    return spec;
  });
}

ops::Linear ColumnParallelLinear::problem(MicroBatchPass& pass, std::int64_t rows,
                                          DType dtype) const {
  std::int64_t out = 0;
  for (const std::int64_t section : options_.sections) out += section / pass.tensor().size();
  return {.rows = rows,
          .in = options_.in,
          .out = out,
          .order = options_.order,
          .dtype = dtype,
          .float8 = pass.context().float8()};
}

Tensor ColumnParallelLinear::as_matrix(const ops::Linear& linear, const Tensor& joined) const {
  return joined.reshaped(options_.order == MatrixOrder::in_out ? Shape{linear.in, linear.out}
                                                               : Shape{linear.out, linear.in});
}

ops::Weight ColumnParallelLinear::weight(MicroBatchPass& pass, const ops::Linear& linear) {
  ops::Weight joined = layer_weight(pass, weight_, prepared_, tensor_count());
  joined.value = as_matrix(linear, joined.value);
  return joined;
}

Tensor ColumnParallelLinear::forward(MicroBatchPass& pass, const Tensor& x, FusedGelu gelu) {
  ops::Linear linear = problem(pass, group_row_count(pass.tensor(), x), x.dtype);
  const Tensor z = pass.activation(x.dtype, {linear.rows, linear.out}),
               y = gelu ? pass.activation(z.dtype, z.shape) : z;
  const ArenaScope scope(pass.context().workspace());
  const Tensor bias = options_.bias ? pass.store().weight(bias_, tensor_count()) : Tensor{};
  RowGather rows(pass.context(), pass.tensor(), x);
  for (int number = 0; number < rows.chunks(); ++number) {
    const RowChunk chunk = rows.chunk(number);
    const Tensor in = rows.whole().rows(chunk.begin, chunk.end),
                 out = z.rows(chunk.begin, chunk.end);
    linear.rows = chunk.rows();
    rows.wait(number);
    if (gelu)
      ops::linear_gelu_forward(pass.context(), linear, in, weight(pass, linear), bias, out,
                               y.rows(chunk.begin, chunk.end), *gelu);
    else
      ops::linear_forward(pass.context(), linear, in, weight(pass, linear), bias, out);
  }
  pass.push_saved(x);
  if (gelu) pass.push_saved(z);
  return y;
}

Tensor ColumnParallelLinear::backward(MicroBatchPass& pass, const Tensor& dy) {
  const Tensor x = pass.pop_saved();
  ops::Linear linear = problem(pass, dy.shape[0], dy.dtype);
  linear.float32_result = pass.tensor().size() > 1;
  ops::Context& context = pass.context();
  const Tensor partial =
                   context.workspace().allocate(linear.result_dtype(), {linear.rows, linear.in}),
               dx = RowSum::allocate_result(context, pass.tensor(), partial);
  {
    // See the timeline at the top of this file.
    const ArenaScope scope(context.workspace());
    RowGather rows(context, pass.tensor(), x);
    RowSum sum(context, pass.tensor(), partial, dx);
    for (int number = 0; number < sum.chunks(); ++number) {
      const RowChunk chunk = sum.chunk(number);
      linear.rows = chunk.rows();
      ops::linear_backward_data(context, linear, dy.rows(chunk.begin, chunk.end),
                                weight(pass, linear), partial.rows(chunk.begin, chunk.end));
      sum.begin(number);
    }
    rows.wait();
    linear.rows = dy.shape[0];
    linear.float32_result = false;
    const Tensor dweight = pass.gradient_of(weight_, tensor_count()),
                 dbias = options_.bias ? pass.gradient_of(bias_, tensor_count()) : Tensor{};
    ops::linear_backward_weight(context, linear, rows.whole(), dy,
                                dweight.defined() ? as_matrix(linear, dweight) : dweight, dbias,
                                pass.write());
    sum.wait();
  }
  return convert_to(pass, dx, dy.dtype);
}

void RowParallelLinear::declare(parallel::ParameterList& list) {
  const bool in_out = options_.order == MatrixOrder::in_out;
  ParameterSpec spec =
      matrix_spec(options_.name + ".weight",
                  in_out ? Shape{options_.in, options_.out} : Shape{options_.out, options_.in},
                  options_.deviation);
  spec.form = form_of(options_.order);
  spec.split.along = in_out ? Along::rows : Along::columns;
  weight_ = list.declare(std::move(spec));
  if (!options_.bias) return;
  ParameterSpec bias = vector_spec(options_.name + ".bias", options_.out);
  bias.product_bias = product_adds(list.tensor_size(), options_.dropout, options_.drop_path);
  bias_ = list.declare(std::move(bias));
  if (!scales()) return;
  ParameterSpec scale = vector_spec(options_.scale_name + ".gamma", options_.out,
                                    {Initializer::Kind::constant, options_.scale});
  scale.partial_gradient = parallel::PartialGradient::of_held_rows;
  scale_ = list.declare(std::move(scale));
}

ops::Linear RowParallelLinear::problem(MicroBatchPass& pass, std::int64_t rows, DType dtype) const {
  return {.rows = rows,
          .in = options_.in / pass.tensor().size(),
          .out = options_.out,
          .order = options_.order,
          .dtype = dtype,
          .float8 = pass.context().float8()};
}

Tensor RowParallelLinear::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) {
  ops::Linear linear = problem(pass, x.shape[0], x.dtype);
  linear.float32_result = pass.tensor().size() > 1;
  const Tensor y = pass.activation(residual.dtype, residual.shape);
  const ArenaScope scope(pass.context().workspace());
  pass.push_saved(x);
  const ops::Dropout drops = mask(pass, 0);
  if (!scales() && product_adds(pass.tensor().size(), drops.probability, drops.path_probability)) {
    ops::linear_add_forward(pass.context(), linear, x, weight(pass), bias(pass), residual, y);
    return y;
  }
  const Tensor branch = scales() ? pass.activation(y.dtype, y.shape) : y;
  const Tensor partial = linear.float32_result ? pass.context().workspace().allocate(
                                                     DType::float32, {linear.rows, linear.out})
                                               : branch;
  const Tensor held = RowSum::allocate_result(pass.context(), pass.tensor(), partial);
  RowSum sum(pass.context(), pass.tensor(), partial, held);
  for (int number = 0; number < sum.chunks(); ++number) {
    const RowChunk chunk = sum.chunk(number);
    linear.rows = chunk.rows();
    ops::linear_forward(pass.context(), linear, x.rows(chunk.begin, chunk.end), weight(pass), {},
                        partial.rows(chunk.begin, chunk.end));
    sum.begin(number);
  }
  for (int number = 0; number < sum.chunks(); ++number) {
    const RowChunk chunk = sum.chunk(number);
    const auto mine = [&](const Tensor& tensor) {
      return tensor.rows(chunk.held_begin, chunk.held_end);
    };
    sum.wait(number);
    if (scales())
      scale_branch(pass, mask(pass, chunk.first_held), mine(held), mine(branch), mine(residual),
                   mine(y));
    else
      ops::dropout_add(pass.context(), mask(pass, chunk.first_held), mine(held), bias(pass),
                       mine(residual), mine(y));
  }
  if (scales()) pass.push_saved(branch);
  return y;
}

void RowParallelLinear::scale_branch(MicroBatchPass& pass, const ops::Dropout& drops,
                                     const Tensor& product, const Tensor& branch,
                                     const Tensor& residual, const Tensor& y) const {
  ops::add_bias(pass.context(), bias(pass), product, branch);
  if (drops.probability > 0 || drops.path_probability > 0)
    ops::dropout(pass.context(), drops, branch, branch);
  ops::layer_scale_forward(pass.context(), pass.store().weight(scale_), branch, residual, y);
}

Tensor RowParallelLinear::backward(MicroBatchPass& pass, const Tensor& dy, FusedGelu gelu) {
  const Tensor branch = scales() ? pass.pop_saved() : Tensor{}, x = pass.pop_saved(),
               z = gelu ? pass.pop_saved() : Tensor{};
  ops::Linear linear = problem(pass, x.shape[0], x.dtype);
  Arena& workspace = pass.context().workspace();
  const Tensor dx = workspace.allocate(x.dtype, x.shape);
  const ArenaScope scope(workspace);
  const bool drops = options_.dropout > 0 || options_.drop_path > 0;
  const Tensor dbranch = scales() || drops ? workspace.allocate(dy.dtype, dy.shape) : dy;
  if (scales())
    ops::layer_scale_backward(pass.context(), pass.store().weight(scale_), branch, dy, dbranch,
                              pass.gradient_of(scale_), pass.write());
  if (drops)
    dropout_.apply(pass, options_.dropout, options_.context, scales() ? dbranch : dy, dbranch,
                   options_.drop_path);
  RowGather rows(pass.context(), pass.tensor(), dbranch);
  for (int number = 0; number < rows.chunks(); ++number) {
    const RowChunk chunk = rows.chunk(number);
    const auto these = [&](const Tensor& tensor) { return tensor.rows(chunk.begin, chunk.end); };
    linear.rows = chunk.rows();
    rows.wait(number);
    if (gelu)
      ops::linear_backward_data_gelu(pass.context(), linear, these(rows.whole()), weight(pass),
                                     these(z), these(dx), *gelu);
    else
      ops::linear_backward_data(pass.context(), linear, these(rows.whole()), weight(pass),
                                these(dx));
  }
  // Every rank of the group has all rows here, so each computes the full gradient of the bias. In a
  // group it is summed separately: products may be made by other algorithms on other ranks, but the
  // copies of the bias must stay equal.
  linear.rows = x.shape[0];
  const bool copies = pass.tensor().size() > 1;
  const Tensor dbias = options_.bias ? pass.gradient_of(bias_) : Tensor{};
  ops::linear_backward_weight(pass.context(), linear, x, rows.whole(), pass.gradient_of(weight_),
                              copies ? Tensor{} : dbias, pass.write());
  if (copies && dbias.defined())
    ops::column_sums(pass.context(), rows.whole(), dbias, pass.write());
  return dx;
}

}  // namespace trireme::model
