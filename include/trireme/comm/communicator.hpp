// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/check.hpp"

namespace trireme::comm {

enum class Reduction : std::uint8_t { sum, max, min };

/// A group of ranks: a small value that is copied freely and shares one implementation.
///
/// Three implementations exist:
///   self  one rank; every call is a no-op
///   MPI   blocking MPI calls on host memory
///   meta  one rank of a group that does not exist; for planning: calls only count bytes
/// All calls are collective over the group (send and receive: over their two ranks) and block.
/// A failed call throws Failure (exit code 1). The running step uses Engine instead, which does not
/// block.
class Communicator {
 public:
  /// Creates the group of one rank.
  Communicator();
  /// Creates rank `rank` of a group of `size` ranks that does not exist. Its collectives only count
  /// bytes.
  static Communicator meta(int rank, int size, std::string_view name = "unnamed");

  int rank() const;
  int size() const;
  /// Returns the name of the group, such as "data"; empty for a group of one.
  const std::string& name() const;
  void barrier() const;
  void broadcast(std::span<std::byte> data, int root) const;
  /// Returns the text of rank `root` on every rank. Other ranks may pass any text.
  std::string broadcast(const std::string& text, int root) const;
  /// Concatenates the data of all ranks in rank order.
  /// `all` has size() * mine.size() bytes; `mine` has the same size on all ranks.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const;
  /// Returns the texts of all ranks in rank order. Their lengths may differ.
  std::vector<std::string> all_gather(const std::string& mine) const;
  /// Replaces `data` on every rank by its elementwise reduction over the group.
  void all_reduce(std::span<double> data, Reduction) const;
  void all_reduce(std::span<std::int64_t> data, Reduction) const;
  void all_reduce(std::span<std::uint64_t> data, Reduction) const;
  /// Returns the reduction of one value.
  std::int64_t all_reduce(std::int64_t value, Reduction) const;
  /// Sends bytes to rank `to`, which must call receive() with the same tag and length. Blocks like
  /// MPI_Send.
  void send(std::span<const std::byte> data, int to, int tag) const;
  /// Throws Failure when the message has another length than `data`.
  void receive(std::span<std::byte> data, int from, int tag) const;
  /// Returns the group of the ranks that passed the same color, ordered by `key`.
  /// A rank with a negative color receives a group of one. Throws Failure on a meta group.
  /// Reports of hangs print `name`, such as "data".
  Communicator split(int color, int key, std::string_view name = "unnamed") const;
  /// Returns the bytes that a meta rank would have sent so far; 0 for self and MPI.
  double meta_bytes() const;
  /// One call on a meta group, as an observer sees it.
  struct Call {
    enum class Kind : std::uint8_t { barrier, broadcast, all_gather, all_reduce, send, receive };
    Kind kind;
    std::int64_t bytes = 0;  ///< Of the data; all_gather: of the part of one rank.
    int peer = -1;           ///< The root of a broadcast, the other rank of a message.
    int tag = 0;
    int operation = 0;  ///< all_reduce: a number for each pair of element type and reduction.
  };
  using Observer = std::function<void(const Call&)>;
  /// Calls `observer` in every later call on this meta group; an empty one ends this.
  void observe(Observer observer) const;

  /// Returns a pointer to the MPI_Comm; null for self and meta.
  /// Only src/io (parallel HDF5) and src/comm may use it.
  const void* mpi_handle() const;
  struct Implementation;
  explicit Communicator(std::shared_ptr<Implementation> implementation);
  Implementation& implementation() const { return *implementation_; }

 private:
  std::shared_ptr<Implementation> implementation_;
};

/// A wait of this process for other ranks.
struct PeerWait {
  /// A request or a call, with its group: "all_reduce of group world (4 ranks)".
  std::string operation;
  double seconds = 0;      ///< Since the wait began.
  bool is_queued = false;  ///< The operation has not started, because others must end before it.
};

/// Returns the blocking call of a Communicator over MPI that this process executes now; nothing if
/// there is none. Any thread may call it, also while MPI hangs.
std::optional<PeerWait> current_blocking_call();

/// Runs `body` on every rank and makes its errors collective, so that no rank waits for one that
/// threw.
///
///   rank 0   body() returns ----+
///   rank 1   body() throws -----+--> agree() --> every rank throws, or no rank does
///   rank 2   body() returns ----+
///
/// A rank whose body threw rethrows its own error. The others throw the message and the exit code
/// of the first failed rank. Collective; costs one all_reduce of 8 bytes when nothing failed.
template <class Body>
void together(const Communicator& group, Body&& body);
/// Implements together(). Throws on every rank when any rank passes a message or a code other than
/// `done`. Collective.
void agree(const Communicator& group, const std::string& message, ExitCode code);

template <class Body>
void together(const Communicator& group, Body&& body) {
  std::string message;
  ExitCode code = ExitCode::done;
  try {
    body();
  } catch (const std::exception& caught) {
    const Error error = to_error(caught);
    message = error.what();
    code = error.code();
  }
  agree(group, message, code);
}

}  // namespace trireme::comm
