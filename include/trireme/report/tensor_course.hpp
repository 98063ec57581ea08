// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace trireme::report {

/// The norms of each tensor over the course of a run, from rows of kind tensors, in bounded memory:
/// the largest values over ever more measurements. Values are at least 0; NaN is none.
class TensorCourse {
 public:
  static constexpr std::array quantities{"gradient_norm", "update_ratio"};
  static constexpr std::size_t max_tensors = 1024, max_columns = 64;
  using Values = std::array<double, quantities.size()>;

  /// Adds a row. Tensors beyond max_tensors are left out. A step that is measured again, as after
  /// a rollback, replaces the columns from it on.
  void add(double step, const std::string& tensor, const Values& values);

  /// Returns the tensors in the order of the model.
  const std::vector<std::string>& tensors() const { return tensors_; }
  /// Returns whether tensors were left out.
  bool has_more() const { return has_more_; }
  /// Returns the last step in each column.
  const std::vector<double>& steps() const { return steps_; }
  double value(std::size_t quantity, std::size_t tensor, std::size_t column) const {
    return values_[tensor][column][quantity];
  }

 private:
  void begin_column(double step);
  /// Removes the columns from `first` on.
  void clear_columns(std::size_t first);

  std::vector<std::string> tensors_;
  std::unordered_map<std::string, std::size_t> indices_;
  bool has_more_ = false;
  std::size_t next_ = 0;  ///< the tensor that the next row should have
  std::vector<double> steps_;
  std::vector<std::array<Values, max_columns>> values_;  ///< by tensor
  std::int64_t measurements_per_column_ = 1, measurements_of_last_ = 0;
};

}  // namespace trireme::report
