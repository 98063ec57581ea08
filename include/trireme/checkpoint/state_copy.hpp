#pragma once

#include "trireme/device/stream.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::checkpoint {

/// How state comes to host memory while the device that works on it goes on. Made once a run; one
/// checkpoint after the other takes it:
///
///   compute stream   step n |  forward and backward of step n + 1  | may_change | update of step n
///   + 1 copies                  | begin  all copies  end               | a thread                |
///   wait                                 | digests, file ...
///
/// The copies come behind what the compute stream was given before begin(), and before what it is
/// given after may_change(); the host waits for neither. Where the device works in host memory they
/// are made when they are given.
class StateCopy {
 public:
  /// `memory`: of the host; pinned where the device's is its own. `compute`: the stream that
  /// changes the state; outlives this.
  StateCopy(Arena& memory, const Stream& compute)
      : memory_(memory),
        compute_(compute),
        copy_stream_(compute.device),
        state_ready_(compute.device),
        copies_done_(compute.device),
        duration_(compute.device) {}

  Arena& memory() { return memory_; }
  const Stream& compute() const { return compute_; }

  /// What the stream that is returned is given from here on finds the state as `compute` has left
  /// it.
  const Stream& begin() {
    state_ready_.record(compute_);
    state_ready_.delay(copy_stream_);
    duration_.start(copy_stream_);
    return copy_stream_;
  }
  void end() {
    duration_.stop(copy_stream_);
    copies_done_.record(copy_stream_);
  }
  /// What `compute` is given from here on may change the state. Where no copy is under way nothing
  /// waits.
  void wait_before_update() const { copies_done_.delay(compute_); }
  /// Until the copies are made; by any thread. Returns the seconds that they took the device.
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
