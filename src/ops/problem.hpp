#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "trireme/ops/convolution.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme::ops {

/// What names a product in a device library's cache: everything its primitives depend on.
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
  bool operator==(const Problem&) const = default;
};

/// The problem's name in a list of algorithms, "linear_forward bfloat16 8192x768x3072": what
/// changes here makes other problems of the old ones, and belongs to the number in the first line
/// of such a list.
std::string to_string(const Problem& problem);

struct ProblemHash {
  std::size_t operator()(const Problem& problem) const;
};

Problem problem_of(Problem::Kind kind, const Convolution& convolution);

/// `variant`: of forward and backward data the result's type, of the weight's gradient whether it
/// is added.
template <class Variant>
Problem problem_of(Problem::Kind kind, const Linear& l, bool bias, Variant variant) {
  return {kind,
          l.dtype,
          bias,
          l.order == MatrixOrder::in_out,
          {l.rows, l.in, l.out, static_cast<std::int64_t>(variant)}};
}

}  // namespace trireme::ops
