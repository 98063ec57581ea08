#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/device/device.hpp"

// What kernels and libraries are asked to do on a stream goes through launch(), as a value: so what
// a step gives a device can be kept, compared with what the same step gave it before, and where
// nothing has changed be given as one CUDA graph.

namespace trireme {

/// What a stream is given in a LaunchSection is kept back until something comes that is no launch
/// (an event, a copy, a wait: stream.hpp), and then given at once: as a CUDA graph, where what was
/// kept at this place of the section is to the byte what was given here the time before (more
/// often, where such graphs had to be dropped before), else call by call. Whoever gives it knows
/// nothing of that, and nothing must stay the same for the numbers to be right. On an emulated
/// device the calls themselves are made of what was kept.
class LaunchGraphs {
 public:
  /// `enabled`: else all is given at once, call by call.
  explicit LaunchGraphs(bool enabled);
  ~LaunchGraphs();
  LaunchGraphs(const LaunchGraphs&) = delete;
  LaunchGraphs& operator=(const LaunchGraphs&) = delete;

  /// Ends all graphs, those that still run when they are done: before memory that they use is given
  /// back.
  void clear();
  /// Gives what was kept back. What follows belongs to the next part of the section. Outside of
  /// sections nothing.
  void flush();

  using Run = void (*)(const Stream& stream, const void* call);
  /// Whether launches are kept back now.
  bool is_recording() const { return is_recording_; }
  /// `call`: `bytes` with no padding unset, copied.
  void record(Run run, const void* call, std::size_t bytes);

  /// Launches kept back so far, those of them given by graphs, and the graphs that there are.
  std::int64_t launch_count() const { return launch_count_; }
  std::int64_t replayed_launch_count() const { return replayed_launch_count_; }
  std::int64_t graph_count() const { return graph_count_; }
  /// Why the device refused a graph, the first one if several: what it would have been of is given
  /// call by call.
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
  std::size_t section_ = 0, list_index_ = 0, next_launch_ = 0;  ///< where the next launch belongs
  bool enabled_, is_recording_ = false;
  std::int64_t launch_count_ = 0, replayed_launch_count_ = 0, graph_count_ = 0;
  std::string refusal_reason_;
};

/// A part of a step that is the same in most steps: launches on a stream that has LaunchGraphs are
/// kept back from here to end(). Not within another one. On other streams nothing. One that is left
/// without end(), by an exception, gives nothing of what it still kept.
class LaunchSection {
 public:
  LaunchSection(const Stream& stream, std::size_t number);
  ~LaunchSection();
  LaunchSection(const LaunchSection&) = delete;
  LaunchSection& operator=(const LaunchSection&) = delete;
  void end();

 private:
  LaunchGraphs* graphs_;
};

/// While one lives, launches on the stream are made when they are asked for, behind all that was
/// kept back.
class DirectLaunches {
 public:
  explicit DirectLaunches(const Stream& stream);
  ~DirectLaunches();
  DirectLaunches(const DirectLaunches&) = delete;
  DirectLaunches& operator=(const DirectLaunches&) = delete;

 private:
  LaunchGraphs* graphs_;
};

/// call(stream), now or when what the stream was given is flushed; of no effect but on the stream's
/// device. A call is a function object of plain values: what its pointers point to is the device's
/// memory, or lives as long as the stream.
template <class Call>
void launch(const Stream& stream, const Call& call) {
  static_assert(
      std::is_trivially_copy_constructible_v<Call> && std::is_trivially_destructible_v<Call>,
      "a launch is kept as bytes");
  static_assert(alignof(Call) <= alignof(std::max_align_t));
  if (stream.graphs == nullptr || !stream.graphs->is_recording()) return call(stream);
  Call kept = call;
#if __has_builtin(__builtin_clear_padding)  // else what stands between the values makes launches
                                            // that are the same look different, at worst
  __builtin_clear_padding(&kept);
#endif
  stream.graphs->record(
      [](const Stream& to, const void* bytes) { (*static_cast<const Call*>(bytes))(to); }, &kept,
      sizeof(Call));
}

}  // namespace trireme
