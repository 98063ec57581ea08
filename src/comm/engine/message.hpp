// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include <fmt/format.h>

#include "calls.hpp"
#include "comm/communicator_implementation.hpp"

namespace trireme::comm {

/// Sends bytes to rank `to`, in one step.
class Send {
 public:
  static constexpr const char* kind = "send";
  Send(std::span<const std::byte> data, int to, int tag) : data_(data), to_(to), tag_(tag) {}

  int steps() const { return 1; }
  void post(Calls& calls, int) const { calls.send(data_, to_); }
  void complete(Calls&, int) const {}
  std::string describe(const Communicator::Implementation& group) const {
    return fmt::format("{} bytes to {}, tag {}", data_.size(), group.describe_rank(to_), tag_);
  }

 private:
  std::span<const std::byte> data_;
  int to_, tag_;
};

/// Receives bytes from rank `from`, in one step.
class Receive {
 public:
  static constexpr const char* kind = "receive";
  Receive(std::span<std::byte> data, int from, int tag) : data_(data), from_(from), tag_(tag) {}

  int steps() const { return 1; }
  void post(Calls& calls, int) const { calls.receive(data_, from_); }
  void complete(Calls&, int) const {}
  std::string describe(const Communicator::Implementation& group) const {
    return fmt::format("{} bytes from {}, tag {}", data_.size(), group.describe_rank(from_), tag_);
  }

 private:
  std::span<std::byte> data_;
  int from_, tag_;
};

}  // namespace trireme::comm
