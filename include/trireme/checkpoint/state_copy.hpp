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
        copies_(compute.device),
        given_(compute.device),
        made_(compute.device),
        duration_(compute.device) {}

  Arena& memory() { return memory_; }
  const Stream& compute() const { return compute_; }

  /// What the stream that is returned is given from here on finds the state as `compute` has left
  /// it.
  const Stream& begin() {
    given_.record(compute_);
    given_.delay(copies_);
    duration_.start(copies_);
    return copies_;
  }
  void end() {
    duration_.stop(copies_);
    made_.record(copies_);
  }
  /// What `compute` is given from here on may change the state. Where no copy is under way nothing
  /// waits.
  void may_change() const { made_.delay(compute_); }
  /// Until the copies are made; by any thread. Returns the seconds that they took the device.
  double wait() const {
    made_.wait();
    return duration_.seconds();
  }

 private:
  Arena& memory_;
  Stream compute_;
  OwnedStream copies_;
  Event given_, made_;
  Stopwatch duration_;
};

}  // namespace trireme::checkpoint
