#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/tensor/tensor.hpp"

namespace trireme::parallel {

/// How a tensor starts: a function of (seed, name, global element index in file order).
struct Initializer {
  enum class Kind : std::uint8_t { constant, normal, uniform };
  Kind kind = Kind::constant;
  double value = 0;  ///< the constant; normal: standard deviation; uniform: in [-value, value)

  bool operator==(const Initializer&) const = default;
};

enum class Role : std::uint8_t {
  weight,    ///< trained; /model/<name> in a checkpoint
  statistic  ///< a running statistic: its "gradient" is the batch's value, averaged over the step's
             ///< micro-batches; /buffers/<name>
};

/// The order of a row's elements in memory; in the file a tensor always stands in its own order.
enum class InnerOrder : std::uint8_t {
  plain,
  channels_last  ///< file [out, in, kh, kw], memory [out, kh, kw, in]
};

/// How a tensor is split over the tensor group. A tensor is seen as a matrix of rows (its first
/// dimension) and columns (all others); one of one dimension is a single row (so that along rows
/// and along columns are one for it). Parts are as even as integers allow: [n r / size, n (r + 1) /
/// size).
struct Split {
  enum class Along : std::uint8_t {
    none,    ///< replicated
    rows,    ///< each rank has a range of rows
    columns  ///< each rank has a range of each row's columns
  };
  Along along = Along::none;
  /// Along columns: extents of the sections that a row consists of, each split by itself (q | k | v
  /// in one tensor); empty: one.
  std::vector<std::int64_t> sections = {};

  bool operator==(const Split&) const = default;
};

/// All that is said of a parameter; local shapes, flat buffers, shards, hyperslabs and memory are
/// derived from it.
struct ParameterSpec {
  std::string name;  ///< in the checkpoint, docs/contract section 6
  Shape shape;       ///< whole, in file order
  Initializer initializer = {};
  Role role = Role::weight;
  InnerOrder inner = InnerOrder::plain;
  bool decay = true;         ///< weight decay applies
  bool trust = true;         ///< the trust ratio of lars and lamb applies
  bool compute_copy = true;  ///< used by matrix products in compute precision; false: read as
                             ///< float32 (norms, biases)
  Split split = {};
  bool partial_gradient = false;  ///< replicated over the tensor group, whose ranks each see only a
                                  ///< part of its gradient: summed over the group
  bool joined = false;  ///< stands directly behind the parameter declared before it, so that one
                        ///< product reads both
  bool tied =
      false;  ///< may be declared by two blocks; the first is its owner. Has a bucket of its own

  /// Atoms of the flat buffer: rows of the first dimension; a tensor of one dimension is one atom.
  std::int64_t rows() const { return shape.rank() > 1 ? shape[0] : 1; }
  std::int64_t row_elements() const { return shape.elements() / rows(); }

  bool operator==(const ParameterSpec&) const = default;
};

/// What one rank of the tensor group holds of a tensor, in the file's terms.
class TensorPartition {
 public:
  /// A piece of every local row: file columns [file_column, file_column + count) stand at [column,
  /// column + count) of the local row.
  struct Segment {
    std::int64_t file_column = 0, column = 0, count = 0;
  };
  TensorPartition() = default;
  /// Of rank `rank` of a tensor group of `size`. A tensor in channels-last order is not split, one
  /// of more than two dimensions not along columns. Where there are more ranks than rows or columns
  /// some hold nothing.
  TensorPartition(const ParameterSpec& spec, int rank, int size);
  /// The whole tensor.
  explicit TensorPartition(const ParameterSpec& spec) : TensorPartition(spec, 0, 1) {}

  std::int64_t row_begin() const { return row_begin_; }  ///< file row of local row 0
  std::int64_t rows() const { return rows_; }
  std::int64_t row_elements() const { return row_elements_; }
  std::int64_t elements() const { return rows_ * row_elements_; }
  /// In file order, none of them empty, no two adjacent in the file; together they are the local
  /// row.
  const std::vector<Segment>& segments() const { return segments_; }
  /// Extents of the part, file order and memory order.
  const Shape& shape() const { return shape_; }
  Shape memory_shape() const;
  /// Whether every rank of the group holds the whole tensor.
  bool replicated() const { return replicated_; }

 private:
  std::int64_t row_begin_ = 0, rows_ = 0, row_elements_ = 0;
  std::vector<Segment> segments_;
  Shape shape_;
  InnerOrder inner_ = InnerOrder::plain;
  bool replicated_ = true;
};

/// Index of a parameter in the order of declaration.
struct ParameterId {
  std::int32_t index = -1;
};

/// What the blocks of a model declare, in order. A name may stand only once, a tied one twice (its
/// first block counts).
class ParameterList {
 public:
  struct Entry {
    ParameterSpec spec;
    int block = 0;
    TensorPartition partition;  ///< what this rank of the tensor group holds
  };
  ParameterList() = default;
  ParameterList(int tensor_rank, int tensor_size)
      : tensor_rank_(tensor_rank), tensor_size_(tensor_size) {}
  /// Parameters declared from here on belong to the block of this index.
  void begin_block(int block) { block_ = block; }
  /// A tied name that was declared before: the id it has, where both say the same of it. Throws
  /// Failure for any other name declared before.
  ParameterId declare(ParameterSpec spec);
  const std::vector<Entry>& entries() const { return entries_; }
  const ParameterSpec& operator[](ParameterId id) const {
    return entries_[static_cast<std::size_t>(id.index)].spec;
  }
  const TensorPartition& partition(ParameterId id) const {
    return entries_[static_cast<std::size_t>(id.index)].partition;
  }
  int blocks() const { return block_ + 1; }
  /// Index of the entry of this name; -1: none.
  int find(std::string_view name) const;

 private:
  std::vector<Entry> entries_;
  int block_ = 0, tensor_rank_ = 0, tensor_size_ = 1;
};

/// Index in memory order (inside a row) of element `inner` (inside a row, file order).
std::int64_t memory_index(const ParameterSpec& spec, std::int64_t inner);

/// Writes local rows [row_begin, row_end) of a part's initial value (float32, memory order) to
/// `rows`: every element the same bits on any rank.
void initialize_rows(const ParameterSpec& spec, const TensorPartition& part, std::uint64_t seed,
                     std::int64_t row_begin, std::int64_t row_end, float* rows);

}  // namespace trireme::parallel
