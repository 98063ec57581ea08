#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

/// In which order a sum over ranks is made: `library`: as MPI likes; `tree`: pairwise exchange with rank^1, ^2, ^4 ..., lower + upper:
/// the same bits as one rank that adds all parts by recursive halving (power-of-two groups; others: parts added in rank order).
enum class SumOrder : std::uint8_t { library, tree };

/// The communication engine: makes the MPI calls of a running step, in the order they were asked for, while compute goes on.
/// With a thread of its own where a core is free; else its non-blocking calls are driven by progress(), called between blocks.
/// No allocation after the first step: requests are recycled.
class Engine {
 public:
  enum class Drive : std::uint8_t { thread, polled };
  /// `thread` where MPI was not granted MPI_THREAD_MULTIPLE, or is not in use, becomes `polled`. The thread inherits the caller's cores:
  /// make the engine before OpenMP binds the main thread to one (before Kokkos).
  explicit Engine(Drive drive);
  /// What is under way is left as it is: quiesce() first, on every rank.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Number of a request.
  using Ticket = std::uint64_t;
  /// data[0, count) = the sum over the group; the memory is the engine's until wait(). `scratch` (count floats; null for `library`)
  /// receives the partner's part under `tree`. All ranks of a group ask for the same in the same order; a blocking call that a peer
  /// comes to only after its own wait() stands after ours too (polled: nothing moves in between). `label` outlives the request (a string
  /// literal): shown by describe() and the watchdog.
  Ticket all_reduce(const Communicator& group, float* data, float* scratch, std::int64_t count, SumOrder order, std::string_view label);
  /// Drives what is under way (Drive::polled; else nothing): cheap, called between blocks.
  void progress();
  /// Until this request and those asked for before it are done. Throws Failure where MPI failed.
  void wait(Ticket ticket);
  /// Until nothing is under way: before collective calls of the main thread (HDF5, checkpoints).
  void quiesce();
  Drive drive() const;
  /// What is under way, a line each: for the watchdog.
  std::vector<std::string> describe() const;
  /// Bytes sent since the start, and the seconds that wait() stood still.
  double bytes_sent() const;
  double waited_seconds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm
