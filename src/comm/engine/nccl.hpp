// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "call_list.hpp"
#include "trireme/comm/engine/engine.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::comm {

/// Runs requests on CUDA device memory with NCCL. Only the main thread calls it.
///
/// The sums and gathers of each group have their own NCCL communicator and stream. So has each
/// message route, at whose ends a rank only sends or only receives.
///
///   compute stream    kernels | record `submitted` | other kernels ...    | waits | uses the sum
///   channel's stream            waits | NCCL calls ... | record `done` ---->
///
/// There is no deadlock between streams:
/// - A stream delays only later requests of the same group or route.
/// - All ranks of a group submit its requests in the same order.
/// - On a route the receiver takes messages in the order of sending, so the first message is the
///   one it needs. An unmatched send delays later sends of its route, but no receive, no sum, and
///   no computation before its wait().
/// - Kernels of different communicators must be able to run concurrently. They are few and take at
///   most `max_blocks` thread blocks each. Compute kernels end by themselves, so they delay NCCL's
///   kernels only for a time.
class Nccl {
 public:
  struct Channel;  ///< a communicator and its stream

  /// Returns whether this build contains NCCL.
  static bool built();

  /// Orders requests after the work of `compute`. Throws Failure in a build without CUDA.
  explicit Nccl(const Stream& compute);
  /// Aborts all communicators, and with them unfinished requests.
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  /// Creates the communicator for the sums and gathers of a group and uses it once. Collective over
  /// the group. Throws Failure on all ranks when NCCL fails or a rank does not arrive within 600 s.
  void connect(const Communicator& group);
  /// Creates the communicators of the routes of this rank. Collective over the group, with the same
  /// routes on all ranks.
  void connect(const Communicator& group, std::span<const Engine::MessageRoute> routes);
  /// Returns the channel of a group, or of a message; null if none was created.
  Channel* channel_of(const Communicator& group) const;
  Channel* channel_of(const Communicator& group, int from, int to, int tag) const;

  /// Registers all memory allocated so far on the device with every communicator, so that NCCL can
  /// access it without copies. Returns the reason if NCCL refuses, otherwise an empty text. Not
  /// collective; but if it fails on one rank, all ranks must call deregister_memory().
  std::string register_memory();
  /// Undoes the registration, before the memory is freed. No request may be under way.
  void deregister_memory();
  /// Returns the registered bytes; 0 also with NCCL_LOCAL_REGISTER=0.
  std::size_t registered_bytes() const;

  const Stream& compute() const;
  /// Enqueues the calls on the channel's stream, behind the current work of the compute stream.
  /// Records `done` after them. On a route the sender is rank 0 and the receiver is rank 1.
  void enqueue(Channel& channel, const CallList& plan, Event& done);
  /// Throws Failure if NCCL has reported an error, and aborts all communicators. Does not wait.
  void check();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm
