#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

/// Short messages between world rank 0 and every other rank over UDP, beside MPI: from any thread,
/// whatever MPI is doing. They may be lost, never delayed by what stands still elsewhere. What does
/// not carry the key that was agreed on at the start is passed over.
class Datagrams {
 public:
  /// No more fits into one of them, so that no network cuts it in pieces.
  static constexpr std::size_t max_bytes = 1024;

  /// Collective: the address of rank 0 and the key go round by MPI. Where a rank has no socket to
  /// be had, or in a group of one, nothing is ever sent or received.
  explicit Datagrams(const Communicator& world);
  ~Datagrams();
  Datagrams(const Datagrams&) = delete;
  Datagrams& operator=(const Datagrams&) = delete;

  /// From a rank to rank 0, or from rank 0 to a rank that it has heard; to others nothing. Never
  /// waits. At most `longest` bytes.
  void send(int to, std::span<const std::byte> data);

  /// One message, if it comes within `seconds`: who sent it; the bytes are in `data`, which is of
  /// the length that all messages have.
  std::optional<int> receive(std::span<std::byte> data, double seconds);

  /// From another thread: receive() waits no more, neither the call under way nor any later one.
  void stop_receiving();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm
