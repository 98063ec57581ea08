// SPDX-License-Identifier: Apache-2.0
//
// Attention as graphs of cuDNN's backend interface.
//
// cuDNN recognizes attention by the shape of its graph: its fused kernels implement exactly these
// operations in this order (documentation of the graph interface, "fused flash attention"). Extents
// are (batch, heads, positions, head width); strides are those of qkv and out in memory. Library
// calls make_* at the first use of a shape and run_* at every use.

#include "attention_graph.hpp"

#include <cmath>
#include <limits>
#include <utility>

#include "status.hpp"

namespace trireme::ops::cuda {
namespace {

/// Unique numbers of the graph's tensors. Intermediate results are numbered from first_intermediate
/// on.
enum TensorUid : std::int64_t {
  q = 1,
  k,
  v,
  out,
  log_sum,
  scale,
  one,
  hidden,
  dout,
  dq,
  dk,
  dv,
  dq_sum,
  delta,
  first_intermediate
};

using Storage = GraphTensor::Storage;
using Extents = std::vector<std::int64_t>;

constexpr cudnnDataType_t float32_type = CUDNN_DATA_FLOAT;

/// Builds a graph: operations in the order in which they are added. A tensor is identified by its
/// index in a list.
class GraphBuilder {
 public:
  explicit GraphBuilder(const Attention& attention)
      : a(attention), tensor_type(library_type(attention.dtype)) {}

  using Id = std::size_t;

  /// Adds a tensor and returns its index. Tensors with memory also become arguments of the plan, in
  /// the order in which they are added.
  Id tensor(TensorUid number, cudnnDataType_t type, Extents extents, Extents strides,
            Storage storage = Storage::device) {
    if (storage != Storage::intermediate) argument_uids_.push_back(number);
    tensors_.push_back(describe({number, type, std::move(extents), std::move(strides), storage}));
    return tensors_.size() - 1;
  }
  /// Adds a number in host memory.
  Id number(TensorUid number) {
    return tensor(number, float32_type, {1, 1, 1, 1}, {1, 1, 1, 1}, Storage::host);
  }
  /// Adds the rows of `count` heads of a tensor like qkv or out, `row` elements from one position
  /// to the next.
  Id heads(TensorUid number, std::int64_t count, std::int64_t row) {
    return tensor(number, tensor_type, {a.batch, count, a.context, a.head_width},
                  {a.context * row, a.head_width, row, 1});
  }
  /// Adds the same heads transposed: [.., head width, positions].
  Id transposed_heads(TensorUid number, std::int64_t count, std::int64_t row) {
    return tensor(number, tensor_type, {a.batch, count, a.head_width, a.context},
                  {a.context * row, a.head_width, 1, row});
  }
  /// Adds a tensor with one number for each row of scores.
  Id rows(TensorUid number) {
    return tensor(number, float32_type, {a.batch, a.heads, a.context, 1},
                  {a.heads * a.context, a.context, 1, 1});
  }

  /// Adds an intermediate result: scores [batch, heads, queries, keys].
  Id scores_of(cudnnDataType_t type) {
    return intermediate(type, {a.batch, a.heads, a.context, a.context},
                        {a.heads * a.context * a.context, a.context * a.context, a.context, 1});
  }
  /// Adds an intermediate result: scores transposed.
  Id transposed_scores() {
    return intermediate(tensor_type, {a.batch, a.heads, a.context, a.context},
                        {a.heads * a.context * a.context, a.context * a.context, 1, a.context});
  }
  /// Adds an intermediate result: one number for each row of scores.
  Id intermediate_rows() {
    return intermediate(float32_type, {a.batch, a.heads, a.context, 1},
                        {a.heads * a.context, a.context, 1, 1});
  }
  /// Adds an intermediate result: rows of `count` heads.
  Id intermediate_heads(cudnnDataType_t type, std::int64_t count) {
    return intermediate(
        type, {a.batch, count, a.context, a.head_width},
        {count * a.context * a.head_width, a.context * a.head_width, a.head_width, 1});
  }
  Id intermediate(cudnnDataType_t type, Extents extents, Extents strides) {
    return tensor(static_cast<TensorUid>(next_intermediate_++), type, std::move(extents),
                  std::move(strides), Storage::intermediate);
  }

  /// Adds result = x y, a matrix product for each head.
  Id multiply(Id x, Id y, Id result) {
    Descriptor matmul(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    matmul.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &float32_type).finalize();
    Descriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, matmul)
        .set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensors_[x])
        .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensors_[y])
        .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensors_[result]);
    return add(std::move(operation), result);
  }
  /// Adds a reduction of x to the extents of `result`.
  Id reduce(cudnnReduceTensorOp_t how, Id x, Id result) {
    Descriptor reduction(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    reduction.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how)
        .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &float32_type)
        .finalize();
    Descriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensors_[x])
        .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensors_[result]);
    return add(std::move(operation), result);
  }
  /// Adds result = x with its strides changed.
  Id transpose(Id x, Id result) {
    Descriptor operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensors_[x])
        .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensors_[result]);
    return add(std::move(operation), result);
  }
  /// Adds a pointwise operation of one or two operands.
  Id apply(cudnnPointwiseMode_t mode, Id x, Id result) {
    return add(pointwise(mode, float32_type, x, result), result);
  }
  Id apply(cudnnPointwiseMode_t mode, Id x, Id y, Id result) {
    Descriptor operation = pointwise(
        mode, mode == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN : float32_type, x, result);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensors_[y]);
    return add(std::move(operation), result);
  }
  /// Adds a tensor that holds the index of each of its elements along an axis.
  Id positions(std::int64_t axis, Id x) {
    const Id result = scores_of(CUDNN_DATA_INT32);
    return add(pointwise(CUDNN_POINTWISE_GEN_INDEX, float32_type, x, result, axis), result);
  }
  /// Adds the mask of the problem. Causal: scores where key <= query, elsewhere a number in host
  /// memory, which is the plan's last argument.
  Id masked(Id scores) {
    if (a.mask == AttentionMask::none) return scores;
    const Id hidden_value = number(hidden), row = positions(2, scores),
             column = positions(3, scores);
    const Id visible = apply(CUDNN_POINTWISE_CMP_GE, row, column, scores_of(CUDNN_DATA_BOOLEAN)),
             result = scores_of(float32_type);
    Descriptor operation = pointwise(CUDNN_POINTWISE_BINARY_SELECT, float32_type, scores, result);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensors_[hidden_value])
        .set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensors_[visible]);
    return add(std::move(operation), result);
  }

  /// Returns the plan, or null if cuDNN does not support an operation, or no engine supports all of
  /// them together.
  std::unique_ptr<Plan> find(const PlanTarget& target, std::int64_t max_workspace_bytes) {
    for (Descriptor& operation : operations_)
      if (!operation.try_finalize()) return nullptr;
    return Plan::find(target, operations_, argument_uids_, max_workspace_bytes);
  }

  const Attention& a;
  const cudnnDataType_t tensor_type;  ///< type of qkv and out

 private:
  Descriptor pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t type, Id x, Id result,
                       std::int64_t axis = -1) {
    Descriptor pointwise(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    pointwise.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode)
        .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (axis >= 0) pointwise.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
    pointwise.finalize();
    Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensors_[x])
        .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensors_[result]);
    return operation;
  }
  /// Adds an operation and returns the index of its result.
  Id add(Descriptor operation, Id result) {
    operations_.push_back(std::move(operation));
    return result;
  }

  std::vector<Descriptor> tensors_, operations_;
  std::vector<std::int64_t> argument_uids_;
  std::int64_t next_intermediate_ = first_intermediate;
};

/// Returns whether cuDNN's kernels can read the operands, which they load 16 bytes at a time.
bool supports_graph(const Attention& a) {
  return a.dtype != DType::float32 && a.dropout == 0 && a.head_width % 8 == 0;
}

/// Returns the address of column `first` of a tensor.
std::byte* columns(const Tensor& qkv, std::int64_t first) {
  return static_cast<std::byte*>(qkv.data) + first * size_of(qkv.dtype);
}

/// The numbers in host memory that the graphs read: the scale of the scores, one, and the value of
/// masked scores.
struct Numbers {
  float scale, one = 1, hidden;
  explicit Numbers(const Attention& a) : scale(1 / std::sqrt(static_cast<float>(a.head_width))) {
    // cuDNN 9.10 and later accept an infinity here.
    constexpr std::size_t takes_infinity = 91000;
    hidden = cudnnGetVersion() < takes_infinity ? std::numeric_limits<float>::lowest()
                                                : -std::numeric_limits<float>::infinity();
  }
};

}  // namespace

AttentionBackwardRules attention_backward_rules(std::size_t version) {
  constexpr std::size_t zeroes_sums = 90600, takes_any_context = 91600;
  return {.sums_must_be_zero = version < zeroes_sums,
          .context_multiple = version < takes_any_context ? 128 : 1};
}

std::unique_ptr<Plan> make_attention_forward(const PlanTarget& target, const Attention& a,
                                             std::int64_t max_workspace_bytes) {
  if (!supports_graph(a)) return nullptr;
  GraphBuilder g(a);
  // 1. Tensors in memory and numbers.
  const auto q_heads = g.heads(q, a.heads, a.qkv_width()),
             k_transposed = g.transposed_heads(k, a.kv_heads, a.qkv_width()),
             v_heads = g.heads(v, a.kv_heads, a.qkv_width());
  const auto result = g.heads(out, a.heads, a.out_width()), statistics = g.rows(log_sum),
             factor = g.number(scale);
  // 2. Scaled and masked scores.
  const auto products = g.multiply(q_heads, k_transposed, g.scores_of(float32_type));
  const auto scores =
      g.masked(g.apply(CUDNN_POINTWISE_MUL, products, factor, g.scores_of(float32_type)));
  // 3. Softmax with its row maximum, and the log sum for backward.
  const auto maximum = g.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, g.intermediate_rows());
  const auto exponentials = g.apply(
      CUDNN_POINTWISE_EXP, g.apply(CUDNN_POINTWISE_SUB, scores, maximum, g.scores_of(float32_type)),
      g.scores_of(float32_type));
  const auto sum = g.reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, g.intermediate_rows());
  g.apply(CUDNN_POINTWISE_ADD, maximum, g.apply(CUDNN_POINTWISE_LOG, sum, g.intermediate_rows()),
          statistics);
  // 4. Probabilities times v.
  const auto probabilities =
      g.apply(CUDNN_POINTWISE_DIV, exponentials, sum, g.scores_of(g.tensor_type));
  g.multiply(probabilities, v_heads, result);
  return g.find(target, max_workspace_bytes);
}

std::unique_ptr<Plan> make_attention_backward(const PlanTarget& target, const Attention& a,
                                              std::int64_t max_workspace_bytes) {
  if (!supports_graph(a) ||
      a.context % attention_backward_rules(cudnnGetVersion()).context_multiple != 0)
    return nullptr;
  GraphBuilder g(a);
  // 1. Tensors in memory and numbers.
  const std::int64_t row = a.qkv_width();
  const auto q_heads = g.heads(q, a.heads, row),
             k_transposed = g.transposed_heads(k, a.kv_heads, row),
             v_transposed = g.transposed_heads(v, a.kv_heads, row);
  const auto result = g.heads(out, a.heads, a.out_width()), statistics = g.rows(log_sum),
             factor = g.number(scale), unit = g.number(one);
  const auto gradient = g.heads(dout, a.heads, a.out_width()),
             q_gradient = g.heads(dq, a.heads, row), k_gradient = g.heads(dk, a.kv_heads, row),
             v_gradient = g.heads(dv, a.kv_heads, row);
  const auto q_sums =
      g.tensor(dq_sum, float32_type, {a.batch, a.heads, a.context, a.head_width},
               {a.heads * a.context * a.head_width, a.context * a.head_width, a.head_width, 1});
  const auto row_sums = g.rows(delta);

  // 2. delta = row sums of dout * out.
  const auto products = g.intermediate(
      float32_type, {a.batch, a.heads, a.context, a.head_width},
      {a.heads * a.context * a.head_width, a.context * a.head_width, a.head_width, 1});
  g.apply(CUDNN_POINTWISE_MUL, gradient, result, products);
  g.apply(CUDNN_POINTWISE_MUL, g.reduce(CUDNN_REDUCE_TENSOR_ADD, products, g.intermediate_rows()),
          unit, row_sums);

  // 3. Probabilities again, from the scores and forward's log sum.
  const auto scores =
      g.apply(CUDNN_POINTWISE_MUL, g.multiply(q_heads, k_transposed, g.scores_of(float32_type)),
              factor, g.scores_of(float32_type));
  const auto shifted =
      g.masked(g.apply(CUDNN_POINTWISE_SUB, scores, statistics, g.scores_of(float32_type)));
  const auto probabilities = g.apply(CUDNN_POINTWISE_EXP, shifted, g.scores_of(float32_type));
  // Each query head has its own gradient of keys or values; heads that share keys are added up.
  const auto key_side = [&](GraphBuilder::Id transposed, GraphBuilder::Id rows,
                            GraphBuilder::Id into) {
    if (a.heads == a.kv_heads) return g.multiply(transposed, rows, into);
    return g.reduce(CUDNN_REDUCE_TENSOR_ADD,
                    g.multiply(transposed, rows, g.intermediate_heads(g.tensor_type, a.heads)),
                    into);
  };
  // 4. dv.
  key_side(g.transpose(probabilities, g.transposed_scores()), gradient, v_gradient);

  // 5. Gradient of the scores, then dk and dq.
  const auto probability_gradients = g.multiply(gradient, v_transposed, g.scores_of(float32_type));
  const auto centered =
      g.apply(CUDNN_POINTWISE_SUB, probability_gradients, row_sums, g.scores_of(float32_type));
  const auto weighted =
      g.apply(CUDNN_POINTWISE_MUL, centered, probabilities, g.scores_of(float32_type));
  const auto score_gradients =
      g.apply(CUDNN_POINTWISE_MUL, weighted, factor, g.scores_of(float32_type));
  key_side(g.transpose(score_gradients, g.transposed_scores()), q_heads, k_gradient);
  const auto k_heads = g.transpose(
      k_transposed, g.intermediate(g.tensor_type, {a.batch, a.kv_heads, a.context, a.head_width},
                                   {a.context * row, a.head_width, row, 1}));
  g.multiply(score_gradients, k_heads, q_sums);
  g.apply(CUDNN_POINTWISE_IDENTITY, q_sums, q_gradient);
  return g.find(target, max_workspace_bytes);
}

namespace {

/// Runs a plan. The last pointer is that of `hidden`, which only plans with a mask have.
cudnnStatus_t run(Plan& plan, const Attention& a, std::span<void* const> data, void* workspace) {
  return plan.run(a.mask == AttentionMask::none ? data.first(data.size() - 1) : data, workspace);
}

}  // namespace

cudnnStatus_t run_attention_forward(Plan& plan, const Attention& a, const AttentionTensors& t,
                                    void* workspace) {
  Numbers numbers(a);
  const std::int64_t first_k = a.heads * a.head_width,
                     first_v = first_k + a.kv_heads * a.head_width;
  void* const data[] = {t.qkv.data,     columns(t.qkv, first_k), columns(t.qkv, first_v),
                        t.out.data,     t.log_sum.data,          &numbers.scale,
                        &numbers.hidden};
  return run(plan, a, data, workspace);
}

cudnnStatus_t run_attention_backward(Plan& plan, const Attention& a, const AttentionTensors& t,
                                     void* workspace) {
  Numbers numbers(a);
  const std::int64_t first_k = a.heads * a.head_width,
                     first_v = first_k + a.kv_heads * a.head_width;
  if (attention_backward_rules(cudnnGetVersion()).sums_must_be_zero)
    check(cudaMemsetAsync(t.dq_sum.data, 0, static_cast<std::size_t>(t.dq_sum.bytes()),
                          plan.stream()),
          "clearing the sums of attention");
  void* const data[] = {t.qkv.data,
                        columns(t.qkv, first_k),
                        columns(t.qkv, first_v),
                        t.out.data,
                        t.log_sum.data,
                        &numbers.scale,
                        &numbers.one,
                        t.dout.data,
                        t.dqkv.data,
                        columns(t.dqkv, first_k),
                        columns(t.dqkv, first_v),
                        t.dq_sum.data,
                        t.delta.data,
                        &numbers.hidden};
  return run(plan, a, data, workspace);
}

}  // namespace trireme::ops::cuda
