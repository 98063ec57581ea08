#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

/// In which order a sum over ranks is made: `library`: as MPI likes; `tree`: pairwise exchange with rank^1, ^2, ^4 ..., lower + upper:
/// the same bits as one rank that adds all parts by recursive halving (power-of-two groups; others: parts added in rank order).
enum class SumOrder : std::uint8_t { library, tree };

/// The communication engine: makes the MPI calls of a running step while compute goes on. With a thread of its own where a core is free; else
/// its non-blocking calls are driven by progress(), called between blocks. Requests are made, and waited for, by one thread.
/// Asking never waits. All ranks of a group ask for its sums and gathers in one order, and so they are started, a few at once; what other
/// groups do, and messages, are independent of them: a receive may stay for long. No allocation after the first steps: requests are recycled.
/// A group of one sends nothing; one that is not here (meta) touches no memory and counts the bytes that this rank would send.
class Engine {
 public:
  enum class Drive : std::uint8_t { thread, polled };
  /// `thread` where MPI was not granted MPI_THREAD_MULTIPLE, or is not in use, becomes `polled`. The thread inherits the caller's cores:
  /// make the engine before OpenMP binds the main thread to one (before Kokkos).
  /// `longest_call`: floats of MPI's own sum, or bytes of a message, in one MPI call; longer ones take several (MPI counts are int).
  explicit Engine(Drive drive, std::int64_t longest_call = std::int64_t{1} << 30);
  /// What is under way is left as it is: quiesce() first, on every rank.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Names a request; one that had nothing to do is 0, which is done.
  using Ticket = std::uint64_t;
  /// data[0, count) = the sum over the group; the memory is the engine's until wait(). `scratch` (count floats; null for `library`)
  /// receives the partner's part under `tree`. A blocking call that a peer comes to only after its own wait() stands after ours too (polled:
  /// nothing moves in between). `label` outlives the request (a string literal): shown by describe() and the watchdog.
  Ticket all_reduce(const Communicator& group, float* data, float* scratch, std::int64_t count, SumOrder order, std::string_view label);
  /// data [bounds.front(), bounds.back()) of each rank is added over the group; rank r's range [bounds[r], bounds[r+1]) of the sum is written
  /// to `result`, which may not overlap data (bounds: offsets in elements into data, size() + 1 of them; any sizes, some may be empty).
  /// `data` is destroyed; `scratch`: as many floats as data under `tree`, else unused. Tree order gives the bits of all_reduce. Bounds and
  /// memory are the engine's until wait().
  Ticket reduce_scatter(const Communicator& group, float* data, float* scratch, std::span<const std::int64_t> bounds, float* result, SumOrder order,
                        std::string_view label);
  /// In place: rank r's part stands at bytes [bounds[r], bounds[r+1]) of data (any sizes); afterwards all parts do, on all ranks.
  Ticket all_gather(const Communicator& group, std::byte* data, std::span<const std::int64_t> bounds, std::string_view label);
  /// Messages to and from another rank of the group, matched by tag (below 2^14), those of one tag in order. Both sides know the length:
  /// another one is a Failure. Memory is the engine's until wait().
  Ticket send(const Communicator& group, std::span<const std::byte> data, int to, int tag, std::string_view label);
  Ticket receive(const Communicator& group, std::span<std::byte> data, int from, int tag, std::string_view label);
  /// Drives what is under way (Drive::polled; else nothing): cheap, called between blocks.
  void progress();
  /// Until this request is done; drives all others meanwhile. Throws Failure where MPI failed.
  void wait(Ticket ticket);
  /// Until nothing is under way: before collective calls of the main thread (HDF5, checkpoints).
  void quiesce();
  Drive drive() const;
  /// What was asked for and is not done, a line each: for the watchdog, from any thread.
  std::vector<std::string> describe() const;
  /// Whether wait() or quiesce() stands still at this moment; from any thread.
  bool waiting() const;
  /// Bytes sent by requests that are done, and the seconds that wait() stood still.
  double bytes_sent() const;
  double waited_seconds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm
