// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// While it exists, ops are not counted: an op counts the same on all devices, although other ops
/// implement it on one of them.
class CountingPause {
 public:
  explicit CountingPause(Context& context) : context_(context) { ++context_.counting_pauses_; }
  ~CountingPause() { --context_.counting_pauses_; }
  CountingPause(const CountingPause&) = delete;
  CountingPause& operator=(const CountingPause&) = delete;

 private:
  Context& context_;
};

}  // namespace trireme::ops
