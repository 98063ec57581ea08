// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "siphash.hpp"

namespace trireme::comm {

/// The datagrams of one rank as bytes: each has a code that only ranks with the key can compute.
///
/// A datagram is, in the byte order of the machine:
///
///   bytes 0 to 7    code: SipHash-2-4 of all bytes behind it
///   bytes 8 to 11   rank of the sender
///   bytes 12 to 15  rank of the receiver
///   bytes 16 to 23  counter: larger in each datagram of one sender
///   the rest        the message
///
/// The counter refuses a datagram that was recorded and is sent again. A datagram that another one
/// of its sender has overtaken is refused too, as if the network had lost it. Sender and receiver
/// refuse one that is sent to another rank, or back to its sender.
class SealedDatagrams {
 public:
  static constexpr std::size_t header_bytes = 24;

  /// `rank` is this rank of `ranks`. All ranks have the same key, which nobody else has.
  SealedDatagrams(const SipKey& key, int rank, int ranks)
      : key_(key), rank_(rank), counters_(static_cast<std::size_t>(ranks)) {}

  /// Writes the datagram with a message to rank `to` into `packet`, which has `header_bytes` more
  /// than the message.
  void seal(int to, std::span<const std::byte> message, std::span<std::byte> packet);

  /// Copies the message of a received datagram and returns the rank of its sender. Returns nothing
  /// for a datagram that is not authentic, is not for this rank, was opened before or has a message
  /// of another size than `message`.
  std::optional<int> open(std::span<const std::byte> packet, std::span<std::byte> message);

 private:
  SipKey key_;
  int rank_;
  std::uint64_t last_counter_ = 0;
  std::vector<std::uint64_t> counters_;  ///< Of the latest datagram from each rank.
};

}  // namespace trireme::comm
