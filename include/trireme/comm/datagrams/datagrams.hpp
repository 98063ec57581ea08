// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

/// Short UDP messages between world rank 0 and every other rank, independent of MPI.
///
/// The heartbeats of the watchdog use them: they arrive even while MPI or NCCL blocks.
/// One thread at a time calls send() and receive(). Messages may be lost, as always with UDP.
/// Each message has an authentication code under a random key of this run, which only MPI carries,
/// and a counter. Forged, changed and repeated messages are ignored.
class Datagrams {
 public:
  /// Maximum size of a message in bytes. It fits into one Ethernet frame, so no network fragments
  /// it.
  static constexpr std::size_t max_bytes = 1024;

  /// Collective: distributes the addresses of rank 0's host and a random key over MPI.
  /// Ranks on rank 0's host use loopback alone. Other hosts use neither loopback nor an address
  /// that they have themselves. Throws InputError with both hosts if none is left, Failure without
  /// random numbers. Sends and receives nothing in a group of one, or if no socket can be opened.
  explicit Datagrams(const Communicator& world);
  ~Datagrams();
  Datagrams(const Datagrams&) = delete;
  Datagrams& operator=(const Datagrams&) = delete;

  /// Sends at most `max_bytes` bytes from any rank to rank 0, or from rank 0 to rank `to`.
  /// Rank 0 drops messages to ranks from which it has received none. Never blocks and never throws.
  void send(int to, std::span<const std::byte> data);

  /// Waits up to `seconds` for one message and returns the rank of its sender.
  /// Fills `data`, whose size must equal the size of the message. Returns nothing on timeout,
  /// after stop_receiving(), for a message that is ignored or has another size, and as soon as the
  /// descriptor `interrupt` is readable (-1: none).
  std::optional<int> receive(std::span<std::byte> data, double seconds, int interrupt = -1);

  /// Makes the current receive() and all later ones return without waiting. Called from another
  /// thread.
  void stop_receiving();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm
