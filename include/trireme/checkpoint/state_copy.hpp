// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/device/stream.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::checkpoint {

/// Copies the training state to host memory while the device trains on. Created once a run; one
/// checkpoint after another uses it:
///
///   compute stream  step n | forward and backward of n + 1 | wait_before_update | update of n + 1
///   copy stream            | begin   all copies   end      |                    |
///   checkpoint thread      |                        wait   | digests, file ...
///
/// The copies run after the work that was enqueued on the compute stream before begin(). The work
/// that is enqueued after wait_before_update() runs after the copies. The host waits for neither.
/// If the device works in host memory, each copy is made by the call that enqueues it.
class StateCopy {
 public:
  /// `memory` is host memory, pinned if the device has memory of its own. `compute` is the stream
  /// that updates the state; it must outlive this object.
  StateCopy(Arena& memory, const Stream& compute)
      : memory_(memory),
        compute_(compute),
        copy_stream_(compute.device),
        state_ready_(compute.device),
        copies_done_(compute.device),
        duration_(compute.device) {}

  Arena& memory() { return memory_; }
  const Stream& compute() const { return compute_; }

  /// Returns the copy stream. Copies enqueued on it from now on see the state as `compute` leaves
  /// it now.
  const Stream& begin() {
    state_ready_.record(compute_);
    state_ready_.delay(copy_stream_);
    duration_.start(copy_stream_);
    return copy_stream_;
  }
  /// Marks the end of the copies: call it after the last one is enqueued.
  void end() {
    duration_.stop(copy_stream_);
    copies_done_.record(copy_stream_);
  }
  /// Makes the compute stream wait for the copies: work enqueued from now on may change the state.
  /// Call it before every update. Costs nothing if no copy is in flight.
  void wait_before_update() const { copies_done_.delay(compute_); }
  /// Waits until the copies are complete and returns the seconds that they took on the device. Any
  /// thread may call it.
  double wait() const {
    copies_done_.wait();
    return duration_.seconds();
  }

 private:
  Arena& memory_;
  Stream compute_;
  OwnedStream copy_stream_;
  Event state_ready_, copies_done_;
  Stopwatch duration_;
};

}  // namespace trireme::checkpoint
