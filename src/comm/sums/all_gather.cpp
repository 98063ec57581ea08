// SPDX-License-Identifier: Apache-2.0
//
// Sends the parts of an all-gather: by recursive doubling (groups of a power of two) or around the
// ring.

#include "all_gather.hpp"

#include <fmt/format.h>

namespace trireme::comm {

void AllGather::post(Calls& calls, int step) const {
  IndexRange sent, received;
  int to = 0, from = 0;
  if (group_.is_power_of_two()) {
    // Both partners own 2^step neighboring parts; their blocks are aligned to 2^step ranks.
    const int held = 1 << step;
    to = from = group_.partner(step);
    sent = parts(group_.rank / held * held, held);
    received = parts(from / held * held, held);
  } else {
    // Forwards the part that arrived in the previous step.
    to = group_.ring_next();
    from = group_.ring_previous();
    sent = parts(group_.ring_previous(step), 1);
    received = parts(group_.ring_previous(step + 1), 1);
  }
  calls.receive(std::span(data_ + received.begin, data_ + received.end), from);
  calls.send(std::span(data_ + sent.begin, data_ + sent.end), to);
}

std::string AllGather::describe(const Communicator::Implementation& group) const {
  return fmt::format("{} bytes over {}", bytes_, group.describe());
}

}  // namespace trireme::comm
