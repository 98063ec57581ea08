#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/model/block.hpp"
#include "trireme/model/options.hpp"
#include "trireme/ops/dropout.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme::model {

// The layers of a transformer. Activations are matrices; `rows` are all rows of the micro-batch,
// `held` those that a rank has between two parallel regions: its part of them with sequence
// parallelism, else all. Temporaries, and what a backward returns, lie in the workspace: the caller
// opens a scope there.

/// All rows of the micro-batch, of which x has those that this rank holds.
inline std::int64_t group_row_count(const parallel::TensorGroup& group, const Tensor& x) {
  return group.rows_are_split() ? x.shape[0] * group.size() : x.shape[0];
}
/// Calls body(chunk) for each piece of neighbouring rows that this rank holds of x [held, columns].
template <class Body>
void for_each_held_chunk(const parallel::TensorGroup& group, const Tensor& x, Body&& body) {
  const std::int64_t rows = group_row_count(group, x);
  const int pieces = group.row_ranges_held(rows, x.shape[1]);
  for (int piece = 0; piece < pieces; ++piece) body(group.chunk(piece, pieces, rows));
}

/// All rows of x [held, ..]: x itself where the rank holds all.
Tensor gather_rows(MicroBatchPass& pass, const Tensor& x);
/// Sum over the tensor group of `partial` [rows, ..] (float32; destroyed), the rows that this rank
/// holds. A group of one: `partial` itself.
Tensor sum_over_group(MicroBatchPass& pass, const Tensor& partial);
/// x in this dtype: x itself where it has it.
Tensor convert_to(MicroBatchPass& pass, const Tensor& x, DType dtype);

/// A dropout by its name: what it draws is a function of (run, name, sample, element).
class DropoutKey {
 public:
  explicit DropoutKey(const std::string& name);
  std::uint64_t layer_key(const MicroBatchPass& pass) const { return pass.layer_key(name_key_); }
  /// For rows from `first_row` of all on, of sequences of `context` rows; nothing is dropped in
  /// evaluation.
  ops::Dropout mask(const MicroBatchPass& pass, double probability, std::int64_t context,
                    std::int64_t first_row) const;
  /// y = x masked: [held, width], of all rows those that this rank holds. y may be x.
  void apply(MicroBatchPass& pass, double probability, std::int64_t context, const Tensor& x,
             const Tensor& y) const;

 private:
  std::uint64_t name_key_;
};

/// Layer or RMS norm: `<name>.weight`, and for layer norm `.bias`.
class RowNormLayer {
 public:
  RowNormLayer(std::string name, NormKind kind, std::int64_t width)
      : name_(std::move(name)), kind_(kind), width_(width) {}
  void declare(parallel::ParameterList& list);
  /// y [held, width]; leaves what backward needs on the stack.
  Tensor forward(MicroBatchPass& pass, const Tensor& x);
  /// dx = gradient of x, plus `dresidual` where defined; dx may be either's memory.
  void backward(MicroBatchPass& pass, const Tensor& dy, const Tensor& dresidual, const Tensor& dx);

  struct Normalized {
    Tensor y, mean, rstd;
  };
  /// The same without the stack.
  Normalized normalize(MicroBatchPass& pass, const Tensor& x, const Normalized& to);
  void compute_gradients(MicroBatchPass& pass, const Tensor& x, const Normalized& normed,
                         const Tensor& dy, const Tensor& dresidual, const Tensor& dx);

 private:
  bool rms() const { return kind_ == NormKind::rms; }
  std::string name_;
  NormKind kind_;
  std::int64_t width_;
  parallel::ParameterId scale_, shift_;
};

/// What stands between two linear layers is one op with either where it is GELU: the first gives
/// gelu(z), z saved, the second, backward, z's gradient.
enum class FusedActivation : std::uint8_t { none, gelu };

/// A linear layer whose outputs are split over the tensor group: each rank has a part of every
/// section of them. In out_in order each section is a tensor of its own, `<name>.weight` [section,
/// in], one behind the other; in in_out order all are columns of one [in, outputs]. Biases alike.
class ColumnParallelLinear {
 public:
  struct Options {
    std::vector<std::string> names;      ///< in_out: one; out_in: one a section
    std::vector<std::int64_t> sections;  ///< outputs of each
    std::int64_t in = 0;
    ops::MatrixOrder order = ops::MatrixOrder::out_in;
    bool bias = true;
  };
  explicit ColumnParallelLinear(Options options);
  void declare(parallel::ParameterList& list);
  /// y [rows, this rank's outputs] of x [held, in].
  Tensor forward(MicroBatchPass& pass, const Tensor& x,
                 FusedActivation fused = FusedActivation::none);
  /// dx [held, in] of dy [rows, this rank's outputs]; of z's gradient where GELU is behind.
  Tensor backward(MicroBatchPass& pass, const Tensor& dy);

 private:
  int tensor_count() const { return static_cast<int>(options_.names.size()); }
  ops::Linear problem(MicroBatchPass& pass, std::int64_t rows, DType dtype) const;
  Tensor as_matrix(const ops::Linear& linear, const Tensor& joined) const;
  ops::Weight weight(MicroBatchPass& pass, const ops::Linear& linear);
  Options options_;
  parallel::ParameterId weight_, bias_;  ///< the first tensor's
  ops::PreparedWeight prepared_;
};

/// A linear layer whose inputs are split over the tensor group, with what follows it on a residual
/// branch: y = dropout(x w + bias) + residual.
/// `<name>.weight` ([out, in], or [in, out]), `<name>.bias`.
class RowParallelLinear {
 public:
  struct Options {
    std::string name;
    std::int64_t in = 0, out = 0;
    ops::MatrixOrder order = ops::MatrixOrder::out_in;
    bool bias = true;
    double deviation = 0.02;  ///< of the initial weights
    double dropout = 0;
    std::int64_t context = 1;
  };
  explicit RowParallelLinear(Options options)
      : options_(std::move(options)), dropout_(options_.name) {}
  void declare(parallel::ParameterList& list);
  /// y [held, out] of x [rows, this rank's inputs] and residual [held, out].
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual);
  /// dx [rows, this rank's inputs] of dy [held, out], which is the residual's gradient too; z's
  /// where GELU is before.
  Tensor backward(MicroBatchPass& pass, const Tensor& dy,
                  FusedActivation fused = FusedActivation::none);

 private:
  ops::Linear problem(MicroBatchPass& pass, std::int64_t rows, DType dtype) const;
  ops::Weight weight(MicroBatchPass& pass) {
    return pass.weight(pass.store().weight(weight_), prepared_);
  }
  Tensor bias(MicroBatchPass& pass) const {
    return options_.bias ? pass.store().weight(bias_) : Tensor{};
  }
  Options options_;
  DropoutKey dropout_;
  parallel::ParameterId weight_, bias_;
  ops::PreparedWeight prepared_;
};

/// What all tensors of a transformer start from, but for residual projections.
parallel::ParameterSpec matrix_spec(std::string name, const Shape& shape, double deviation = 0.02);

}  // namespace trireme::model
