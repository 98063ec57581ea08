#include "gpt_layers.hpp"

#include <numeric>
#include <utility>

#include "trireme/base/philox.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/row_norm.hpp"

namespace trireme::model {

using Along = parallel::Split::Along;
using ops::MatrixOrder;
using parallel::Initializer;
using parallel::ParameterSpec;

namespace {

ParameterSpec vector_spec(std::string name, std::int64_t size, double value) {
  ParameterSpec spec{.name = std::move(name), .shape = {size}, .initializer = {Initializer::Kind::constant, value}};
  spec.decay = spec.trust = spec.compute_copy = false;
  return spec;
}

}  // namespace

ParameterSpec matrix_spec(std::string name, const Shape& shape, double deviation) {
  return {.name = std::move(name), .shape = shape, .initializer = {Initializer::Kind::normal, deviation}};
}

Tensor gathered(Pass& pass, const Tensor& x) {
  if (!rows_are_split(pass.tensor())) return x;
  const Tensor whole = pass.context().workspace().allocate(x.dtype, {all_rows(pass.tensor(), x), x.shape[1]});
  pass.tensor().gather_rows(pass.context(), x, whole);
  return whole;
}

Tensor summed(Pass& pass, const Tensor& partial) {
  const parallel::TensorGroup& group = pass.tensor();
  if (group.size() == 1) return partial;
  if (!rows_are_split(group)) {
    group.all_reduce(pass.context(), partial);
    return partial;
  }
  const Tensor part = pass.context().workspace().allocate(DType::float32, {group.rows_held(partial.shape[0]), partial.shape[1]});
  group.reduce_scatter_rows(pass.context(), partial, part);
  return part;
}

Tensor converted(Pass& pass, const Tensor& x, DType dtype) {
  if (x.dtype == dtype) return x;
  const Tensor y = pass.context().workspace().allocate(dtype, x.shape);
  ops::cast(pass.context(), x, y);
  return y;
}

DropoutKey::DropoutKey(const std::string& name) : name_key_(random_key(0, "dropout/" + name)) {}

ops::Dropout DropoutKey::mask(const Pass& pass, double probability, std::int64_t context, const Tensor& held) const {
  return {.probability = pass.training() ? static_cast<float>(probability) : 0.0f,
          .key = of(pass),
          .sample_keys = pass.sample_keys(),
          .first_row = rows_are_split(pass.tensor()) ? held.shape[0] * pass.tensor().rank() : 0,
          .context = context};
}

void RowNormLayer::declare(parallel::ParameterList& list) {
  const auto declare_one = [&](const char* suffix, double value) {
    ParameterSpec spec = vector_spec(name_ + suffix, width_, value);
    spec.partial_gradient = true;  // with sequence parallelism a norm sees only the rows that the rank holds
    return list.declare(std::move(spec));
  };
  scale_ = declare_one(".weight", 1);
  if (!rms()) shift_ = declare_one(".bias", 0);
}

RowNormLayer::Normed RowNormLayer::normalize(Pass& pass, const Tensor& x, const Normed& to) {
  const ops::RowNorm norm{.rows = x.shape[0], .width = width_, .rms = rms(), .dtype = x.dtype};
  ops::row_norm_forward(pass.context(), norm, x, pass.store().weight(scale_), rms() ? Tensor{} : pass.store().weight(shift_), to.y, to.mean, to.rstd);
  return to;
}

void RowNormLayer::gradients(Pass& pass, const Tensor& x, const Normed& normed, const Tensor& dy, const Tensor& dresidual, const Tensor& dx) {
  const ops::RowNorm norm{.rows = x.shape[0], .width = width_, .rms = rms(), .dtype = x.dtype};
  ops::row_norm_backward(pass.context(), norm, x, dy, pass.store().weight(scale_), normed.mean, normed.rstd, dresidual, dx, pass.store().gradient(scale_),
                         rms() ? Tensor{} : pass.store().gradient(shift_), pass.write());
}

Tensor RowNormLayer::forward(Pass& pass, const Tensor& x) {
  const Tensor y = pass.activation(x.dtype, x.shape), rstd = pass.activation(DType::float32, {x.shape[0]});
  const Tensor mean = rms() ? Tensor{} : pass.activation(DType::float32, {x.shape[0]});
  normalize(pass, x, {y, mean, rstd});
  pass.save(x);
  pass.save(mean);
  pass.save(rstd);
  return y;
}

void RowNormLayer::backward(Pass& pass, const Tensor& dy, const Tensor& dresidual, const Tensor& dx) {
  const Tensor rstd = pass.restore(), mean = pass.restore(), x = pass.restore();
  gradients(pass, x, {{}, mean, rstd}, dy, dresidual, dx);
}

ColumnParallelLinear::ColumnParallelLinear(Options options) : options_(std::move(options)) {
  TRIREME_EXPECT(options_.names.size() == (options_.order == MatrixOrder::in_out ? 1 : options_.sections.size()));
}

void ColumnParallelLinear::declare(parallel::ParameterList& list) {
  const bool in_out = options_.order == MatrixOrder::in_out;
  const std::vector<std::int64_t> sections = in_out ? options_.sections : std::vector<std::int64_t>{};
  const std::int64_t all = std::accumulate(options_.sections.begin(), options_.sections.end(), std::int64_t{0});
  const auto declare_all = [&](const char* suffix, const auto& spec_of) {
    parallel::ParameterId first;
    for (std::size_t i = 0; i < options_.names.size(); ++i) {
      ParameterSpec spec = spec_of(options_.names[i] + suffix, in_out ? all : options_.sections[i]);
      spec.joined = i > 0;
      const parallel::ParameterId id = list.declare(std::move(spec));
      if (i == 0) first = id;
    }
    return first;
  };
  weight_ = declare_all(".weight", [&](std::string name, std::int64_t outputs) {
    ParameterSpec spec = matrix_spec(std::move(name), in_out ? Shape{options_.in, outputs} : Shape{outputs, options_.in});
    spec.split = {in_out ? Along::columns : Along::rows, sections};
    return spec;
  });
  if (!options_.bias) return;
  bias_ = declare_all(".bias", [&](std::string name, std::int64_t outputs) {
    ParameterSpec spec = vector_spec(std::move(name), outputs, 0);
    spec.split = {Along::columns, sections};
    return spec;
  });
}

ops::Linear ColumnParallelLinear::problem(const Pass& pass, std::int64_t rows, DType dtype) const {
  std::int64_t out = 0;
  for (const std::int64_t section : options_.sections) out += section / pass.tensor().size();
  return {.rows = rows, .in = options_.in, .out = out, .order = options_.order, .dtype = dtype};
}

Tensor ColumnParallelLinear::as_matrix(const ops::Linear& linear, const Tensor& joined) const {
  return joined.reshaped(options_.order == MatrixOrder::in_out ? Shape{linear.in, linear.out} : Shape{linear.out, linear.in});
}

ops::Weight ColumnParallelLinear::weight(Pass& pass, const ops::Linear& linear) {
  return pass.weight(as_matrix(linear, pass.store().weight(weight_, tensors())), prepared_);
}

Tensor ColumnParallelLinear::forward(Pass& pass, const Tensor& x, Between behind) {
  const ops::Linear linear = problem(pass, all_rows(pass.tensor(), x), x.dtype);
  const Tensor z = pass.activation(x.dtype, {linear.rows, linear.out}), y = behind == Between::gelu ? pass.activation(z.dtype, z.shape) : z;
  const ArenaScope scope(pass.context().workspace());
  const Tensor bias = options_.bias ? pass.store().weight(bias_, tensors()) : Tensor{};
  const Tensor rows = gathered(pass, x);
  if (behind == Between::gelu)
    ops::linear_gelu_forward(pass.context(), linear, rows, weight(pass, linear), bias, z, y);
  else
    ops::linear_forward(pass.context(), linear, rows, weight(pass, linear), bias, z);
  pass.save(x);
  if (behind == Between::gelu) pass.save(z);
  return y;
}

Tensor ColumnParallelLinear::backward(Pass& pass, const Tensor& dy) {
  const Tensor x = pass.restore();
  ops::Linear linear = problem(pass, dy.shape[0], dy.dtype);
  Arena& workspace = pass.context().workspace();
  {
    const ArenaScope scope(workspace);
    const Tensor dbias = options_.bias ? pass.store().gradient(bias_, tensors()) : Tensor{};
    ops::linear_backward_weight(pass.context(), linear, gathered(pass, x), dy, as_matrix(linear, pass.store().gradient(weight_, tensors())), dbias,
                                pass.write());
  }
  linear.wide = pass.tensor().size() > 1;
  const Tensor partial = workspace.allocate(linear.result_dtype(), {linear.rows, linear.in});
  ops::linear_backward_data(pass.context(), linear, dy, weight(pass, linear), partial);
  return converted(pass, summed(pass, partial), dy.dtype);
}

void RowParallelLinear::declare(parallel::ParameterList& list) {
  const bool in_out = options_.order == MatrixOrder::in_out;
  ParameterSpec spec = matrix_spec(options_.name + ".weight", in_out ? Shape{options_.in, options_.out} : Shape{options_.out, options_.in}, options_.deviation);
  spec.split.along = in_out ? Along::rows : Along::columns;
  weight_ = list.declare(std::move(spec));
  if (options_.bias) bias_ = list.declare(vector_spec(options_.name + ".bias", options_.out, 0));
}

ops::Linear RowParallelLinear::problem(const Pass& pass, std::int64_t rows, DType dtype) const {
  return {.rows = rows, .in = options_.in / pass.tensor().size(), .out = options_.out, .order = options_.order, .dtype = dtype};
}

Tensor RowParallelLinear::forward(Pass& pass, const Tensor& x, const Tensor& residual) {
  ops::Linear linear = problem(pass, x.shape[0], x.dtype);
  linear.wide = pass.tensor().size() > 1;
  const Tensor y = pass.activation(residual.dtype, residual.shape);
  const ArenaScope scope(pass.context().workspace());
  const ops::Dropout mask = dropout_.mask(pass, options_.dropout, options_.context, y);
  pass.save(x);
  if (!linear.wide && mask.probability == 0) {
    ops::linear_add_forward(pass.context(), linear, x, weight(pass), bias(pass), residual, y);
    return y;
  }
  const Tensor partial = linear.wide ? pass.context().workspace().allocate(DType::float32, {linear.rows, linear.out}) : y;
  ops::linear_forward(pass.context(), linear, x, weight(pass), {}, partial);
  ops::dropout_add(pass.context(), mask, summed(pass, partial), bias(pass), residual, y);
  return y;
}

Tensor RowParallelLinear::backward(Pass& pass, const Tensor& dy, Between before) {
  const Tensor x = pass.restore(), z = before == Between::gelu ? pass.restore() : Tensor{};
  const ops::Linear linear = problem(pass, x.shape[0], x.dtype);
  Arena& workspace = pass.context().workspace();
  const Tensor dx = workspace.allocate(x.dtype, x.shape);
  const ArenaScope scope(workspace);
  Tensor branch = dy;
  if (options_.dropout > 0) {
    branch = workspace.allocate(dy.dtype, dy.shape);
    ops::dropout(pass.context(), dropout_.mask(pass, options_.dropout, options_.context, dy), dy, branch);
  }
  // Every rank of the group sees all rows here: the bias's gradient is whole on each.
  branch = gathered(pass, branch);
  ops::linear_backward_weight(pass.context(), linear, x, branch, pass.store().gradient(weight_), options_.bias ? pass.store().gradient(bias_) : Tensor{},
                              pass.write());
  if (before == Between::gelu)
    ops::linear_backward_data_gelu(pass.context(), linear, branch, weight(pass), z, dx);
  else
    ops::linear_backward_data(pass.context(), linear, branch, weight(pass), dx);
  return dx;
}

}  // namespace trireme::model
