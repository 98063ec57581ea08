// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "trireme/device/device.hpp"

// Kernel launches and library calls go to a stream through launch(), as function objects of plain
// bytes. So the launches of a step can be recorded, compared with those of the step before, and
// replayed as one CUDA graph if nothing has changed.
//
//   section of step n         launch 1..40 | event | launch 41..60 | copy | launch 61..99 | end
//   recorded as                  list 0    |       |    list 1     |      |    list 2     |
//
//   step 1   each launch list is submitted call by call, and its bytes are kept
//   step 2   equal bytes: the list is captured as a CUDA graph, which is launched
//   step 3   equal bytes: the graph is launched
//   step 4   one byte differs: the graph is destroyed, the list is submitted call by call

namespace trireme {

/// Records the launches of a LaunchSection and replays them as CUDA graphs. A replica owns one.
///
/// Launches are held until an operation that is not a launch (an event, a copy or a wait, see
/// stream.hpp). Then the whole launch list is submitted: as one graph if it equals the previous
/// list at the same place byte by byte, else call by call. After graphs at a place were destroyed,
/// more equal repetitions are required before the next one. Callers of launch() need not know about
/// this, and results never depend on it. On an emulated device the recorded calls run one by one,
/// so tests cover the comparison without a GPU.
class LaunchGraphs {
 public:
  /// `enabled` = false: every launch runs at once, call by call.
  explicit LaunchGraphs(bool enabled);
  ~LaunchGraphs();
  LaunchGraphs(const LaunchGraphs&) = delete;
  LaunchGraphs& operator=(const LaunchGraphs&) = delete;

  /// Destroys all graphs. Call it before memory that the graphs use is freed. CUDA completes a
  /// graph that is still running.
  void clear();
  /// Submits the launches held so far. Later launches belong to the next launch list of the
  /// section. Does nothing outside of a section. Throws Failure if the device refuses a launch.
  void flush();

  using Run = void (*)(const Stream& stream, const void* call);
  /// Returns whether launches are held now.
  bool is_recording() const { return is_recording_; }
  /// Records one launch by copying `bytes` bytes of `call`. Padding must be cleared, because calls
  /// are compared byte by byte. Called by launch().
  void record(Run run, const void* call, std::size_t bytes);

  /// Launches recorded so far.
  std::int64_t launch_count() const { return launch_count_; }
  /// Launches that graphs have replayed so far.
  std::int64_t replayed_launch_count() const { return replayed_launch_count_; }
  /// Graphs that exist now.
  std::int64_t graph_count() const { return graph_count_; }
  /// Returns why the device refused to capture or instantiate a graph (the first reason); empty if
  /// it never did. Refused lists are submitted call by call.
  const std::string& refusal_reason() const { return refusal_reason_; }

 private:
  friend class DirectLaunches;
  friend class LaunchSection;
  struct LaunchList;
  void begin_section(const Stream& stream, std::size_t section);
  void end_section();
  void submit(LaunchList& list);
  bool capture_graph(LaunchList& list);

  std::vector<std::vector<LaunchList>> sections_;
  Stream stream_;
  std::size_t section_ = 0, list_index_ = 0, next_launch_ = 0;  ///< position of the next launch
  bool enabled_, is_recording_ = false;
  std::int64_t launch_count_ = 0, replayed_launch_count_ = 0, graph_count_ = 0;
  std::string refusal_reason_;
};

/// Marks a part of a step that repeats in most steps: from the constructor to end(), launches on a
/// stream with LaunchGraphs are held. Has no effect on other streams. Sections must not be nested.
/// If an exception leaves the section before end(), the launches still held are dropped.
class LaunchSection {
 public:
  /// `number`: identifies this part of the step; launch lists are compared with those of the same
  /// number.
  LaunchSection(const Stream& stream, std::size_t number);
  ~LaunchSection();
  LaunchSection(const LaunchSection&) = delete;
  LaunchSection& operator=(const LaunchSection&) = delete;
  /// Submits the remaining launches and closes the section. Throws Failure if the device refuses
  /// one.
  void end();

 private:
  LaunchGraphs* graphs_;
};

/// During its lifetime launches on the stream run at once. The constructor first submits all held
/// launches. Used for calls that cannot be captured, such as timing a library's algorithms.
class DirectLaunches {
 public:
  explicit DirectLaunches(const Stream& stream);
  ~DirectLaunches();
  DirectLaunches(const DirectLaunches&) = delete;
  DirectLaunches& operator=(const DirectLaunches&) = delete;

 private:
  LaunchGraphs* graphs_;
};

/// Throws Failure "kernel LABEL could not be launched: TEXT (CODE)" if CUDA has refused a launch of
/// this thread, or reports that earlier work has failed. Called after each launch: neither Kokkos
/// nor CUDA's launch syntax reports a refused one. Does not wait, and may be called during a
/// capture. Without CUDA it does nothing.
///
/// The error stays CUDA's last error of this thread.
void check_launch(std::string_view label);

/// Clears CUDA's last error of this thread, after calls that may fail without harm: the trial of an
/// algorithm, a capture, an allocation. check_launch() would attribute it to the next kernel.
void clear_launch_error();

/// Runs call(stream), now or when the stream's LaunchGraphs submits its launch list. The call must
/// enqueue work on the stream and have no other effect. `Call` is a function object of plain
/// values. Its pointers must refer to device memory, or to objects that live as long as the stream.
template <class Call>
void launch(const Stream& stream, const Call& call) {
  static_assert(
      std::is_trivially_copy_constructible_v<Call> && std::is_trivially_destructible_v<Call>,
      "a launch is kept as bytes");
  static_assert(alignof(Call) <= alignof(std::max_align_t));
  if (stream.graphs == nullptr || !stream.graphs->is_recording()) return call(stream);
  Call kept = call;
// Without this builtin, bytes between the members may make equal launches look different. That
// costs graphs, not correctness.
//
// With the builtin of GCC 12 there is one kind of call that must not be launched: it cleared other
// bytes than padding where an array of structures with padding had members behind it. No assertion
// here can exclude that. std::has_unique_object_representations is false for every call with a
// float or with padding anywhere, which most have and which is right. So a call that has a list of
// structures asserts it for itself, as CastTensors (kernels/cast_tensors.cpp), the only one.
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&kept);
#endif
  stream.graphs->record(
      [](const Stream& to, const void* bytes) { (*static_cast<const Call*>(bytes))(to); }, &kept,
      sizeof(Call));
}

}  // namespace trireme
