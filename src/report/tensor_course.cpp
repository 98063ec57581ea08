// SPDX-License-Identifier: Apache-2.0
#include "trireme/report/tensor_course.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::report {
namespace {

constexpr TensorCourse::Values no_values{std::numeric_limits<double>::quiet_NaN(),
                                         std::numeric_limits<double>::quiet_NaN()};

/// Keeps the larger values; NaN is none.
void join(TensorCourse::Values& into, const TensorCourse::Values& other) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::fmax(into[i], other[i]);
}

}  // namespace

void TensorCourse::clear_columns(std::size_t first) {
  for (auto& columns : values_)
    for (std::size_t i = first; i < max_columns; ++i) columns[i] = no_values;
  steps_.resize(first);
}

void TensorCourse::begin_column(double step) {
  if (!steps_.empty() && step == steps_.back()) return;
  if (!steps_.empty() && step < steps_.back()) {
    const auto first = std::lower_bound(steps_.begin(), steps_.end(), step);
    clear_columns(static_cast<std::size_t>(first - steps_.begin()));
    measurements_of_last_ = 0;
  }
  if (measurements_of_last_ == 0) {
    if (steps_.size() == max_columns) {
      for (std::size_t i = 0; i < max_columns / 2; ++i) {
        steps_[i] = steps_[2 * i + 1];
        for (auto& columns : values_) {
          columns[i] = columns[2 * i];
          join(columns[i], columns[2 * i + 1]);
        }
      }
      clear_columns(max_columns / 2);
      measurements_per_column_ *= 2;
    }
    steps_.push_back(step);
  }
  steps_.back() = step;
  if (++measurements_of_last_ == measurements_per_column_) measurements_of_last_ = 0;
}

void TensorCourse::add(double step, const std::string& tensor, const Values& values) {
  begin_column(step);
  if (next_ >= tensors_.size() || tensors_[next_] != tensor) {
    const auto [found, is_new] = indices_.try_emplace(tensor, tensors_.size());
    if (is_new && tensors_.size() == max_tensors) {
      indices_.erase(found);
      has_more_ = true;
      return;
    }
    if (is_new) {
      tensors_.push_back(tensor);
      values_.emplace_back().fill(no_values);
    }
    next_ = found->second;
  }
  join(values_[next_++][steps_.size() - 1], values);
}

}  // namespace trireme::report
