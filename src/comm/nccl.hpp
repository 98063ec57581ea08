#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "call_list.hpp"
#include "trireme/comm/engine.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::comm {

/// Requests on a CUDA device's memory by NCCL. Each group's sums and gathers have a communicator
/// and a stream of their own, and so has each lane of messages, which at a rank only sends or only
/// receives. All calls are made by the main thread when it is asked, in an order that the schedule
/// fixes.
///
/// No circle of waits: what a stream holds back is only what was asked for later of the same group
/// or lane. Within a group that is one order on all its ranks. In a lane the receiver takes
/// messages in the order of sending, so what stands in front is what it needs next; a send that has
/// not been taken holds back later sends of its lane, never a receive, a sum, or what is computed
/// (until that waits for it). Kernels of different communicators must be on the device side by
/// side: they are few
/// (`most_blocks` thread blocks each), and computation, which ends by itself, cannot keep them out
/// for good.
class Nccl {
 public:
  struct Channel;  // a communicator and its stream

  /// Whether this build has it.
  static bool built();

  explicit Nccl(const Stream& compute);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  /// Collective over the group; makes what its sums and gathers go through. Throws Failure, on all
  /// ranks, where NCCL fails or a rank does not come in time.
  void connect(const Communicator& group);
  /// Collective over the group; makes its lanes, alike on all its ranks.
  void connect(const Communicator& group, std::span<const Engine::MessageRoute> routes);
  /// Null where none was made.
  Channel* channel_of(const Communicator& group) const;
  Channel* channel_of(const Communicator& group, int from, int to, int tag) const;

  /// Tells every communicator of all memory that the compute stream's device has given so far, so
  /// that NCCL may read and write it without copies of its own. Nothing need be done by all ranks
  /// together; but what one rank registers, all must: where a rank cannot, all forget theirs. Gives
  /// the reason; empty where there is none.
  std::string register_memory();
  /// Before that memory goes. Nothing may be under way.
  void deregister_memory();
  /// What the communicators know: 0 also where NCCL was told to take none (NCCL_LOCAL_REGISTER=0).
  std::size_t registered_bytes() const;

  const Stream& compute() const;
  /// After what the compute stream has been given so far; `done` stands for its end. In a lane the
  /// sender is rank 0 and the receiver 1.
  void enqueue(Channel& channel, const CallList& plan, Event& done);
  /// Throws Failure where NCCL met an error meanwhile; all communicators are ended then.
  void check();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm
