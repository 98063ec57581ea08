#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/tensor/tensor.hpp"

namespace trireme::parallel {

/// How a tensor starts: a function of (seed, name, global element index in file order).
struct Initializer {
  enum class Kind : std::uint8_t { constant, normal, uniform };
  Kind kind = Kind::constant;
  double value = 0;  ///< the constant; normal: standard deviation; uniform: in [-value, value)
};

enum class Role : std::uint8_t {
  weight,    ///< trained; /model/<name> in a checkpoint
  statistic  ///< a running statistic: its "gradient" is the batch's value, averaged over the step's micro-batches; /buffers/<name>
};

/// The order of a row's elements in memory; in the file a tensor always stands in its own order.
enum class InnerOrder : std::uint8_t {
  plain,
  channels_last  ///< file [out, in, kh, kw], memory [out, kh, kw, in]
};

/// All that is said of a parameter; local shapes, flat buffers, shards, hyperslabs and memory are derived from it.
struct ParameterSpec {
  std::string name;          ///< in the checkpoint, docs/contract section 6
  Shape shape;               ///< whole, in file order
  Initializer initializer = {};
  Role role = Role::weight;
  InnerOrder inner = InnerOrder::plain;
  bool decay = true;         ///< weight decay applies
  bool trust = true;         ///< the trust ratio of lars and lamb applies
  bool compute_copy = true;  ///< used by matrix products in compute precision; false: read as float32 (norms, biases)

  /// Extents in memory order.
  Shape memory_shape() const {
    return inner == InnerOrder::channels_last ? Shape{shape[0], shape[2], shape[3], shape[1]} : shape;
  }
  /// Atoms of the flat buffer: rows of the first dimension; a tensor of one dimension is one atom.
  std::int64_t rows() const { return shape.rank() > 1 ? shape[0] : 1; }
  std::int64_t row_elements() const { return shape.elements() / rows(); }
};

/// Index of a parameter in the order of declaration.
struct ParameterId {
  std::int32_t index = -1;
};

/// What the blocks of a model declare, in order. A name may stand only once.
class ParameterList {
 public:
  struct Entry {
    ParameterSpec spec;
    int block = 0;
  };
  /// Parameters declared from here on belong to the block of this index.
  void begin_block(int block) { block_ = block; }
  /// Throws Failure for a name that was declared before.
  ParameterId declare(ParameterSpec spec);
  const std::vector<Entry>& entries() const { return entries_; }
  const ParameterSpec& operator[](ParameterId id) const { return entries_[static_cast<std::size_t>(id.index)].spec; }
  int blocks() const { return block_ + 1; }

 private:
  std::vector<Entry> entries_;
  int block_ = 0;
};

/// Index in memory order (inside a row) of element `inner` (inside a row, file order).
std::int64_t memory_index(const ParameterSpec& spec, std::int64_t inner);

/// Writes rows [row_begin, row_end) of a parameter's initial value (float32, memory order) to `rows`. The same bits on any rank.
void initialize_rows(const ParameterSpec& spec, std::uint64_t seed, std::int64_t row_begin, std::int64_t row_end, float* rows);

}  // namespace trireme::parallel
