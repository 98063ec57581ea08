// SPDX-License-Identifier: Apache-2.0
//
// The text of a problem is a key in saved tables of algorithms: see problem.hpp before changing it.

#include "problem.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/base/philox.hpp"

namespace trireme::ops {

namespace {

constexpr const char* kind_names[] = {
    "convolution_forward", "convolution_backward_data", "convolution_backward_weight",
    "linear_forward",      "linear_backward_data",      "linear_backward_weight",
    "attention_forward",   "attention_backward",        "convolution_statistics_forward"};

}  // namespace

std::string to_string(const Problem& problem) {
  return fmt::format("{} {}{}{}{} {}", kind_names[static_cast<std::size_t>(problem.kind)],
                     to_string(problem.dtype), problem.bias ? " bias" : "",
                     problem.in_out ? " in_out" : "", problem.added ? " added" : "",
                     fmt::join(problem.extents, "x"));
}

std::size_t ProblemHash::operator()(const Problem& problem) const {
  std::uint64_t hash = static_cast<std::uint64_t>(problem.kind) << 32 |
                       static_cast<std::uint64_t>(problem.dtype) << 16 |
                       static_cast<std::uint64_t>(problem.added) << 2 |
                       static_cast<std::uint64_t>(problem.bias) << 1 |
                       static_cast<std::uint64_t>(problem.in_out);
  for (const std::int64_t extent : problem.extents)
    hash = mix64(hash ^ static_cast<std::uint64_t>(extent));
  return hash;
}

// Stride and dilation are one number, which is the stride without dilation.
Problem problem_of(Problem::Kind kind, const Convolution& c) {
  return {kind,
          c.dtype,
          false,
          false,
          {c.batch, c.height, c.width, c.in_channels, c.out_channels, c.kernel,
           c.stride + ((c.dilation - 1) << 32), c.padding.code()},
          false};
}

}  // namespace trireme::ops
