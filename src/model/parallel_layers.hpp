// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/kinds.hpp"
#include "trireme/model/block.hpp"
#include "trireme/ops/dropout.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/linear.hpp"
#include "trireme/ops/row_norm.hpp"

namespace trireme::model {

// Layers of a transformer with tensor and sequence parallelism.
//
// Activations are matrices [rows, columns]:
// - `rows`: all rows of the micro-batch (batch x context).
// - `held`: the rows that a rank holds between two parallel regions. With sequence parallelism
//   these are its part of the rows, else all of them.
// Temporaries and the results of backward functions are in the context's workspace: the caller
// opens an ArenaScope first. All functions that take a pass enqueue work and are collective over
// the tensor group; see docs/design/parallelism.md.

/// Returns the number of rows of the micro-batch, of which x has those that this rank holds.
inline std::int64_t group_row_count(const parallel::TensorGroup& group, const Tensor& x) {
  return group.rows_are_split() ? x.shape[0] * group.size() : x.shape[0];
}
/// Calls body(chunk) for each run of adjacent rows of x [held, columns] that this rank holds.
/// `cut_columns`: the columns by which the rows were cut, if these are not those of x.
template <class Body>
void for_each_held_chunk(const parallel::TensorGroup& group, const Tensor& x, Body&& body,
                         std::int64_t cut_columns = 0) {
  const std::int64_t rows = group_row_count(group, x);
  const int pieces = group.row_ranges_held(rows, cut_columns > 0 ? cut_columns : x.shape[1]);
  for (int piece = 0; piece < pieces; ++piece) body(group.chunk(piece, pieces, rows));
}

/// Returns all rows of x [held, ..], gathered from the tensor group; x itself if the rank holds
/// all. `cut_columns`: as in for_each_held_chunk().
Tensor gather_rows(MicroBatchPass& pass, const Tensor& x, std::int64_t cut_columns = 0);
/// Returns the sum of `partial` [rows, ..] (float32; overwritten) over the tensor group, reduced to
/// the rows that this rank holds. In a group of one it returns `partial`.
Tensor sum_over_group(MicroBatchPass& pass, const Tensor& partial);
/// Returns x converted to `dtype`; x itself if it already has it.
Tensor convert_to(MicroBatchPass& pass, const Tensor& x, DType dtype);

/// Calls compute(), which writes y, on the first rank of the tensor group, and gives the others its
/// bits. For small results that every rank needs: products may be made by other algorithms on other
/// ranks.
template <class Compute>
void compute_on_first_rank(MicroBatchPass& pass, const Tensor& y, Compute&& compute) {
  if (pass.tensor().rank() == 0)
    compute();
  else
    ops::fill(pass.context(), y, 0);
  if (pass.tensor().size() == 1) return;
  // The sum is exact: the others contribute 0.
  const ArenaScope scope(pass.context().workspace());
  const Tensor wide = convert_to(pass, y, DType::float32);
  pass.tensor().all_reduce(pass.context(), wide);
  if (y.dtype != DType::float32) ops::cast(pass.context(), wide, y);
}

/// The dropout of one layer. Its mask is a function of (run seed, layer name, sample, element), so
/// it is the same at every layout.
class DropoutKey {
 public:
  explicit DropoutKey(const std::string& name);
  /// Returns the random key of this layer in this run.
  std::uint64_t layer_key(const MicroBatchPass& pass) const { return pass.layer_key(name_key_); }
  /// Returns the mask for rows from `first_row` on, for sequences of `context` rows. `drop_path`:
  /// probability that the whole branch of a sample is dropped. In evaluation both are 0.
  ops::Dropout mask(const MicroBatchPass& pass, double probability, std::int64_t context,
                    std::int64_t first_row, double drop_path = 0) const;
  /// Computes y = x with dropout, both [held, width]. y may be x.
  void apply(MicroBatchPass& pass, double probability, std::int64_t context, const Tensor& x,
             const Tensor& y, double drop_path = 0) const;
  /// Applies dropout to x [held, width]. Calls no op if nothing is dropped, as in evaluation.
  void apply_in_place(MicroBatchPass& pass, double probability, std::int64_t context,
                      const Tensor& x) const;

 private:
  std::uint64_t name_key_, path_key_;
};

/// Layer norm or RMS norm over each row. Parameters: `<name>.weight`; for layer norm also `.bias`.
class RowNormLayer {
 public:
  struct Options {
    NormKind kind = NormKind::layer;
    std::int64_t width = 0;
    double epsilon = 1e-5;
    /// With sequence parallelism the norm sees only the rows that the rank holds; false: it sees
    /// all of them on each rank.
    bool rows_are_held = true;
  };
  RowNormLayer(std::string name, const Options& options)
      : name_(std::move(name)), options_(options) {}
  /// `scale`: the initial value of the weight.
  void declare(parallel::ParameterList& list, double scale = 1);
  /// Returns y [held, width] and saves what backward needs.
  Tensor forward(MicroBatchPass& pass, const Tensor& x);
  /// Computes dx = gradient of x, plus `dresidual` if it is defined. dx may share memory with dy or
  /// dresidual.
  void backward(MicroBatchPass& pass, const Tensor& dy, const Tensor& dresidual, const Tensor& dx);

  /// Output of normalize(): y [rows, width], and each row's mean and reciprocal deviation.
  struct Normalized {
    Tensor y, mean, rstd;
  };
  /// Variants of forward and backward that do not use the stack: the head calls them, since it runs
  /// both in one call.
  Normalized normalize(MicroBatchPass& pass, const Tensor& x, const Normalized& to);
  void compute_gradients(MicroBatchPass& pass, const Tensor& x, const Normalized& normed,
                         const Tensor& dy, const Tensor& dresidual, const Tensor& dx);

 private:
  bool rms() const { return options_.kind == NormKind::rms; }
  /// Describes the norm of the rows of x.
  ops::RowNorm problem(const Tensor& x) const;
  std::string name_;
  Options options_;
  parallel::ParameterId scale_, shift_;
};

/// The form of a GELU that is fused into the linear layers on both sides of it: the first layer's
/// forward computes gelu(z) and saves z; the second layer's backward computes the gradient of z.
/// None: no fusion, as with SwiGLU, which is an operation of its own.
using FusedGelu = std::optional<ops::Gelu>;

/// Returns `count` joined weights of a linear layer. In a tensor group their prepared form is kept
/// until the next update, because the layer may multiply its rows in chunks, which all use it. A
/// layer that is not split uses it once in each direction.
inline ops::Weight layer_weight(MicroBatchPass& pass, parallel::ParameterId first,
                                ops::PreparedWeight& prepared, int count = 1) {
  return pass.tensor().size() > 1 ? pass.weight(first, prepared, count)
                                  : pass.single_use_weight(first, prepared, count);
}

/// A linear layer whose outputs are split over the tensor group (column parallel: Shoeybi et al.
/// 2019). Its outputs consist of sections, such as q, k and v; each rank has a part of every
/// section.
///
/// - One name: all sections are rows of one tensor `<name>.weight` [outputs, in], or columns of
///   [in, outputs].
/// - A name for each section, in out_in order: a tensor [section, in] each; the tensors are
/// adjacent
///   in memory, so one product reads all of them.
/// Biases follow the same rule.
class ColumnParallelLinear {
 public:
  struct Options {
    std::vector<std::string> names;      ///< one, or one a section
    std::vector<std::int64_t> sections;  ///< outputs of each
    std::int64_t in = 0;
    ops::MatrixOrder order = ops::MatrixOrder::out_in;
    bool bias = true;
    double deviation = 0.02;  ///< standard deviation of the initial weights
  };
  explicit ColumnParallelLinear(Options options);
  void declare(parallel::ParameterList& list);
  /// Returns y [rows, this rank's outputs] for x [held, in]. With sequence parallelism, rows are
  /// gathered in chunks: while one chunk is multiplied, the next one is in transfer.
  Tensor forward(MicroBatchPass& pass, const Tensor& x, FusedGelu gelu = {});
  /// Returns dx [held, in] for dy [rows, this rank's outputs]. With gelu fused, dy is the gradient
  /// of z.
  Tensor backward(MicroBatchPass& pass, const Tensor& dy);

 private:
  /// Returns the number of weight tensors.
  int tensor_count() const { return static_cast<int>(options_.names.size()); }
  ops::Linear problem(MicroBatchPass& pass, std::int64_t rows, DType dtype) const;
  Tensor as_matrix(const ops::Linear& linear, const Tensor& joined) const;
  ops::Weight weight(MicroBatchPass& pass, const ops::Linear& linear);
  Options options_;
  parallel::ParameterId weight_, bias_;  ///< the first tensor's
  ops::PreparedWeight prepared_;
};

/// A linear layer whose inputs are split over the tensor group (row parallel), fused with the end
/// of a residual branch: y = dropout(x w + bias) + residual. Stochastic depth drops the whole
/// branch of some samples.
///
/// Parameters: `<name>.weight` ([out, in], or [in, out]) and `<name>.bias`.
class RowParallelLinear {
 public:
  struct Options {
    std::string name;
    std::int64_t in = 0, out = 0;
    ops::MatrixOrder order = ops::MatrixOrder::out_in;
    bool bias = true;
    double deviation = 0.02;  ///< standard deviation of the initial weights
    double dropout = 0;
    double drop_path = 0;  ///< probability of stochastic depth
    std::int64_t context = 1;
    /// LayerScale: the initial value of each output's factor `<scale_name>.gamma`; 0: none. Needs
    /// the bias.
    double scale = 0;
    std::string scale_name = {};
  };
  explicit RowParallelLinear(Options options)
      : options_(std::move(options)), dropout_(options_.name) {}
  void declare(parallel::ParameterList& list);
  /// Returns y [held, out] for x [rows, this rank's inputs] and residual [held, out]. The sum over
  /// the tensor group is made in chunks: while one chunk is summed, the next one is multiplied.
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual);
  /// Returns dx [rows, this rank's inputs] for dy [held, out]. dy is also the gradient of the
  /// residual. With gelu fused, the result is the gradient of z.
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, FusedGelu gelu = {});

 private:
  ops::Linear problem(MicroBatchPass& pass, std::int64_t rows, DType dtype) const;
  ops::Weight weight(MicroBatchPass& pass) { return layer_weight(pass, weight_, prepared_); }
  Tensor bias(MicroBatchPass& pass) const {
    return options_.bias ? pass.store().weight(bias_) : Tensor{};
  }
  /// Returns whether LayerScale multiplies the branch.
  bool scales() const { return options_.scale > 0; }
  /// Computes branch = dropout(product + bias), and y = gamma * branch + residual, on [held, out].
  void scale_branch(MicroBatchPass& pass, const ops::Dropout& drops, const Tensor& product,
                    const Tensor& branch, const Tensor& residual, const Tensor& y) const;
  /// Returns whether the product adds bias and residual, in a tensor group of this size. Otherwise
  /// they are added behind the sum over the group, or behind dropout.
  static bool product_adds(int tensor_size, double dropout, double drop_path) {
    return tensor_size == 1 && dropout == 0 && drop_path == 0;
  }
  ops::Dropout mask(const MicroBatchPass& pass, std::int64_t first_row) const {
    return dropout_.mask(pass, options_.dropout, options_.context, first_row, options_.drop_path);
  }
  Options options_;
  DropoutKey dropout_;
  parallel::ParameterId weight_, bias_, scale_;
  ops::PreparedWeight prepared_;
};

/// Returns the declaration of a matrix with normal initialization. Residual projections pass a
/// smaller deviation than the default.
parallel::ParameterSpec matrix_spec(std::string name, const Shape& shape, double deviation = 0.02);
/// Returns the declaration of a vector (bias, norm or running statistic) that is read as float32
/// and has neither weight decay nor a trust ratio. Without `start` it begins at 0.
parallel::ParameterSpec vector_spec(std::string name, std::int64_t size,
                                    const parallel::Initializer& start = {},
                                    parallel::Role role = parallel::Role::weight);

}  // namespace trireme::model
