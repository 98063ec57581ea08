// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "trireme/ops/convolution.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme::ops {

/// The key of a product in a device library's cache: everything that its primitives depend on.
struct Problem {
  enum class Kind : std::uint8_t {
    convolution_forward,
    convolution_backward_data,
    convolution_backward_weight,
    linear_forward,
    linear_backward_data,
    linear_backward_weight,
    attention_forward,
    attention_backward,
    convolution_statistics_forward
  };
  Kind kind;
  DType dtype;
  bool bias = false, in_out = false;
  std::array<std::int64_t, 8> extents{};
  bool added = false;  ///< another tensor is added to the result
  bool operator==(const Problem&) const = default;
};

/// Returns the problem's name in the table of algorithms, for example "linear_forward bfloat16
/// 8192x768x3072x...". A change of this text makes tables of earlier versions useless: then
/// increase the number in the first line of such a file.
std::string to_string(const Problem& problem);

struct ProblemHash {
  std::size_t operator()(const Problem& problem) const;
};

/// Returns the key of a convolution.
Problem problem_of(Problem::Kind kind, const Convolution& convolution);

/// Returns the key of a linear product. `variant`: the result's type for forward and backward data;
/// `Write` for the weight's gradient.
template <class Variant>
Problem problem_of(Problem::Kind kind, const Linear& l, bool bias, Variant variant) {
  return {kind,
          l.dtype,
          bias,
          l.order == MatrixOrder::in_out,
          {l.rows, l.in, l.out, static_cast<std::int64_t>(variant)}};
}

}  // namespace trireme::ops
