// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/parallel/position_grid.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::parallel {

/// The distribution of a tensor's initial values: a function of (seed, name, element index in file
/// order).
struct Initializer {
  enum class Kind : std::uint8_t { constant, normal, uniform };
  Kind kind = Kind::constant;
  /// The constant; normal: standard deviation; uniform: half width of [-value, value).
  double value = 0;

  bool operator==(const Initializer&) const = default;
};

enum class Role : std::uint8_t {
  weight,  ///< trained; /model/<name> in a checkpoint
  /// A running statistic; /buffers/<name> in a checkpoint. Its "gradient" is the value of the
  /// batch, averaged over the micro-batches of a step.
  statistic
};

/// The order of a row's elements in memory; files always have the tensor's own order.
enum class InnerOrder : std::uint8_t {
  plain,
  channels_last  ///< file [out, in, kh, kw], memory [out, kh, kw, in]
};

/// The split of a tensor over the tensor group. The first dimension counts as rows, all others
/// together as columns; a tensor of one dimension is a single row, so both kinds of split are the
/// same for it. Rank r of n elements receives [n r / size, n (r + 1) / size).
struct Split {
  enum class Along : std::uint8_t {
    none,    ///< replicated
    rows,    ///< each rank has a range of rows
    columns  ///< each rank has a range of the columns of every row
  };
  Along along = Along::none;
  /// Extents of the sections of the rows or columns, each of which is split separately (q | k | v
  /// in one tensor). Empty: one section.
  std::vector<std::int64_t> sections = {};

  bool operator==(const Split&) const = default;
};

/// The gradient of a tensor that is replicated over the tensor group, on each of its ranks.
enum class PartialGradient : std::uint8_t {
  no,            ///< whole, with the same bits
  of_held_rows,  ///< under sequence parallelism a part, which is summed over the group; else whole
  in_any_group   ///< a part, which is summed over the group
};

/// The matrix that a tensor is, with its first dimension as rows and all others together as
/// columns.
enum class MatrixForm : std::uint8_t {
  none,    ///< it is not the matrix of a hidden layer: a vector, an embedding, a head
  out_in,  ///< the weight of a linear layer or convolution [out, in ...]
  in_out   ///< the weight of a linear layer [in, out]
};

/// The smallest part of a tensor that sharding leaves on one rank.
enum class Atom : std::uint8_t { row, tensor };

/// The full description of a parameter. Local shapes, flat buffers, partitions, hyperslabs and
/// memory derive from it.
struct ParameterSpec {
  std::string name;  ///< in the checkpoint: docs/reference/tensor_names.md
  Shape shape;       ///< of the whole tensor, in file order
  Initializer initializer = {};
  Role role = Role::weight;
  InnerOrder inner = InnerOrder::plain;
  MatrixForm form = MatrixForm::none;
  bool decay = true;  ///< weight decay applies
  bool trust = true;  ///< a trust ratio applies (optim::RuleScope::tensor_norm)
  /// Matrix products read it in compute precision; false: read as float32 (norms, most biases).
  bool compute_copy = true;
  /// A bias that a matrix product adds. On CUDA the products read it in compute precision, too.
  bool product_bias = false;
  Split split = {};
  PartialGradient partial_gradient = PartialGradient::no;
  /// Follows the previously declared parameter without a gap, so that one matrix product reads
  /// both.
  bool joined = false;
  /// May be declared by two blocks, of which the first owns it. Has a bucket of its own.
  bool tied = false;
  Atom atom = Atom::row;
  /// Keeps its value: it has neither a gradient nor optimizer state.
  bool frozen = false;
  /// The tensor [1, positions, width] has a vector for each position of this grid. A start from
  /// weights may interpolate it from another grid.
  std::optional<PositionGrid> grid = {};

  /// Number of rows, the smallest units of the flat buffers; a tensor of one dimension is one row.
  std::int64_t rows() const { return shape.rank() > 1 ? shape[0] : 1; }
  std::int64_t row_elements() const { return shape.elements() / rows(); }

  bool operator==(const ParameterSpec&) const = default;
};

/// The part of a tensor that one rank of the tensor group stores.
class TensorPartition {
 public:
  /// Adjacent rows, or adjacent columns of every row: [file, file + count) in the file are
  /// [local, local + count) in memory.
  struct Segment {
    std::int64_t file = 0, local = 0, count = 0;
  };
  TensorPartition() = default;
  /// Computes the part of rank `rank` in a tensor group of `size`.
  /// Some ranks store nothing if there are more ranks than rows or columns.
  /// Channels-last tensors must not be split; tensors of more than two dimensions not along
  /// columns.
  TensorPartition(const ParameterSpec& spec, int rank, int size);
  /// The whole tensor.
  explicit TensorPartition(const ParameterSpec& spec) : TensorPartition(spec, 0, 1) {}

  /// Returns the file row of local row 0 of a tensor whose rows have one section.
  std::int64_t row_begin() const { return row_begin_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t row_elements() const { return row_elements_; }
  std::int64_t elements() const { return rows_ * row_elements_; }
  /// Returns the segments of a local row in file order. None is empty, and no two are adjacent in
  /// the file.
  const std::vector<Segment>& segments() const { return segments_; }
  /// Returns local rows [begin, end) as segments in file order. None is empty.
  std::vector<Segment> row_segments(std::int64_t begin, std::int64_t end) const;
  /// Local shape in file order, and in memory order.
  const Shape& shape() const { return shape_; }
  Shape memory_shape() const;
  /// Returns whether every rank of the group stores the whole tensor.
  bool replicated() const { return replicated_; }

 private:
  std::int64_t row_begin_ = 0, rows_ = 0, row_elements_ = 0;
  std::vector<Segment> segments_, row_segments_;
  Shape shape_;
  InnerOrder inner_ = InnerOrder::plain;
  bool replicated_ = true;
};

/// Index of a parameter in the order of declaration.
struct ParameterId {
  std::int32_t index = -1;
};

/// The parameters that the blocks of a model declare, in order.
/// A name may be declared once; a tied one twice, of which the first declaration counts.
class ParameterList {
 public:
  struct Entry {
    ParameterSpec spec;
    int block = 0;
    TensorPartition partition;  ///< the part on this rank of the tensor group
  };
  ParameterList() = default;
  ParameterList(int tensor_rank, int tensor_size)
      : tensor_rank_(tensor_rank), tensor_size_(tensor_size) {}
  /// Assigns the parameters declared from now on to this block. Those of a head are no matrices of
  /// hidden layers.
  void begin_block(int block, bool is_head = false) {
    block_ = block;
    is_head_ = is_head;
  }
  /// Adds a parameter and returns its id. A second declaration of a tied parameter returns the
  /// first id. Throws Failure if another name is declared twice, or if the two specs of a tied
  /// parameter differ.
  ParameterId declare(ParameterSpec spec);
  const std::vector<Entry>& entries() const { return entries_; }
  const ParameterSpec& operator[](ParameterId id) const {
    return entries_[static_cast<std::size_t>(id.index)].spec;
  }
  const TensorPartition& partition(ParameterId id) const {
    return entries_[static_cast<std::size_t>(id.index)].partition;
  }
  int blocks() const { return block_ + 1; }
  int tensor_size() const { return tensor_size_; }
  /// Freezes a declared weight (ParameterSpec::frozen). Called before a layout is computed.
  void freeze(ParameterId id) { spec_of(id).frozen = true; }
  void set_atom(ParameterId id, Atom atom) { spec_of(id).atom = atom; }
  /// Returns the index of the entry of this name; -1 if there is none.
  int find(std::string_view name) const;

 private:
  ParameterSpec& spec_of(ParameterId id) {
    return entries_[static_cast<std::size_t>(id.index)].spec;
  }
  std::vector<Entry> entries_;
  std::map<std::string, int, std::less<>> index_of_name_;
  int block_ = 0, tensor_rank_ = 0, tensor_size_ = 1;
  bool is_head_ = false;
};

/// Returns the position in memory, within its row, of element `inner` of the file order.
std::int64_t memory_index(const ParameterSpec& spec, std::int64_t inner);

/// Computes the initial values of the local rows [row_begin, row_end) and writes them to `rows`
/// (float32, memory order). The bits of an element do not depend on the layout.
void initialize_rows(const ParameterSpec& spec, const TensorPartition& part, std::uint64_t seed,
                     std::int64_t row_begin, std::int64_t row_end, float* rows);

}  // namespace trireme::parallel
