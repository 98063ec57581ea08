// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <cuda_runtime_api.h>

#include "status.hpp"
#include "trial_choice.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/device/launch.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops::cuda {

/// Memory that no variant needs from one run to the next. Filling it removes the operands from the
/// L2 cache.
struct Scratch {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// Times variants of products on a stream, within limits of time: half a second for building the
/// variants of a problem, half a second for running them, and 60 s in all. The first run of each
/// variant, which loads its code, may exceed them, and so may the first two variants. One object
/// per device library.
class Trials {
 public:
  explicit Trials(const Stream& stream) : stream_(stream) {}

  /// A part of the work for a choice. Its time counts from the constructor to the destructor.
  class Period {
   public:
    explicit Period(Trials& trials) : trials_(trials), start_(monotonic_seconds()) {}
    ~Period() { trials_.report_.seconds += seconds(); }
    Period(const Period&) = delete;
    Period& operator=(const Period&) = delete;
    /// Returns whether the limit of the part, or of all trials, is exceeded.
    bool time_is_up() const {
      return seconds() > part_seconds || trials_.report_.seconds + seconds() > start_seconds;
    }

   private:
    double seconds() const { return monotonic_seconds() - start_; }
    PhasePart shown_{"algorithm-trials"};
    Trials& trials_;
    double start_;
  };

  /// Returns whether no time is left for further problems. Counts a problem that is refused.
  bool refuses() {
    if (report_.seconds <= start_seconds) return false;
    ++report_.refused;
    return true;
  }

  /// Returns the fastest of `count` variants; none if no time is left. work(i) enqueues variant i
  /// and returns whether it could be started. A variant also counts as not started if CUDA refused
  /// a launch of it, which a library may not report. Clears its error. The host waits.
  template <class Work>
  std::optional<std::size_t> fastest(std::size_t count, const Work& work, const Scratch& scratch) {
    if (refuses()) return std::nullopt;
    const Period period(*this);
    const DirectLaunches direct(stream_);
    ++report_.problems;
    return choose_fastest(
        count,
        [&](std::size_t i) -> std::optional<double> {
          // The first run loads the code. Of a second one the number of runs follows.
          bool started = true;
          const auto run = [&] {
            started = started && work(i) && cudaPeekAtLastError() == cudaSuccess;
          };
          run();
          const double alone = started ? time_runs(1, scratch, run) : 0;
          const int runs = static_cast<int>(std::clamp(
              std::ceil(group_milliseconds / std::max(alone, 1e-6)), 1.0, double{max_runs}));
          const double mean = started ? time_runs(runs, scratch, run) : 0;
          if (started) return mean;
          clear_launch_error();
          return std::nullopt;
        },
        [&] { return period.time_is_up(); });
  }

  const TrialReport& report() const { return report_; }

 private:
  static constexpr double part_seconds = 0.5, start_seconds = 60, group_milliseconds = 2;
  static constexpr int max_runs = 10;
  using EventOwner =
      std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, cudaError_t (*)(cudaEvent_t)>;

  static EventOwner make_event() {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "timing algorithms");
    return EventOwner(event, cudaEventDestroy);
  }

  static std::array<EventOwner, max_runs> make_events() {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return std::array<EventOwner, max_runs>{(static_cast<void>(i), make_event())...};
    }(std::make_index_sequence<max_runs>{});
  }

  /// Returns the milliseconds of a run, as the mean of so many. Each begins with an empty cache:
  /// otherwise variants would find the operands there, which in training they do not.
  template <class Run>
  double time_runs(int runs, const Scratch& scratch, const Run& run) const {
    const auto stream = static_cast<cudaStream_t>(stream_.handle);
    for (std::size_t i = 0; i < static_cast<std::size_t>(runs); ++i) {
      if (scratch.data != nullptr)
        check(cudaMemsetAsync(scratch.data, 0, scratch.bytes, stream), "timing algorithms");
      check(cudaEventRecord(begins_[i].get(), stream), "timing algorithms");
      run();
      check(cudaEventRecord(ends_[i].get(), stream), "timing algorithms");
    }
    double sum = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(runs); ++i) {
      check(cudaEventSynchronize(ends_[i].get()), "timing algorithms");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begins_[i].get(), ends_[i].get()),
            "timing algorithms");
      sum += static_cast<double>(milliseconds);
    }
    return sum / runs;
  }

  Stream stream_;
  std::array<EventOwner, max_runs> begins_ = make_events(), ends_ = make_events();
  TrialReport report_;
};

}  // namespace trireme::ops::cuda
