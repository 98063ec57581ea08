// SPDX-License-Identifier: Apache-2.0
//
// Records launches in sections, compares each launch list with the previous one, and replays equal
// lists as CUDA graphs.
//
// Order of events: LaunchSection calls begin_section(); launch() calls record() for each call; an
// event, copy or wait calls flush(), which submits the list; LaunchSection::end() submits the
// last one. train/step/step_pipeline.cpp opens the sections of a step. Graphs save launch overhead
// on the host: one call replaces dozens.

#include "trireme/device/launch.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/check.hpp"
#include "trireme/base/expect.hpp"
#include "trireme/device/stream.hpp"

#if defined(TRIREME_ENABLE_CUDA)
#include "cuda.hpp"
#endif

namespace trireme {
namespace {

// Smallest number of launches in a graph; fewer do not pay for the capture.
constexpr std::size_t min_launches = 4;
// After n destroyed graphs at one place, 2^min(n, 5) equal repetitions are required before the next
// graph.
constexpr int max_backoff_exponent = 5;

#if defined(TRIREME_ENABLE_CUDA)
/// Throws Failure "WORK could not be launched: TEXT (CODE)" unless `error` is cudaSuccess. `work`
/// is a format of WORK with `value`.
template <class T>
void expect_launched(cudaError_t error, fmt::format_string<const T&> work, const T& value) {
  if (error == cudaSuccess) return;
  throw Failure(fmt::format("{} could not be launched: {} ({}){}", fmt::format(work, value),
                            cudaGetErrorString(error), static_cast<int>(error),
                            cuda::is_of_earlier_work(error)
                                ? "; an earlier kernel failed, which a run with "
                                  "CUDA_LAUNCH_BLOCKING=1 and run.graphs = false names"
                                : ""));
}
#endif

}  // namespace

/// The launches between two operations that are not launches.
struct LaunchGraphs::LaunchList {
  struct Launch {
    Run run;
    std::size_t begin, bytes;  ///< position in `call_bytes`
  };
  std::vector<Launch> launches;
  std::vector<std::byte> call_bytes;
  bool changed = true;           ///< since the last submission
  int unchanged_count = 0;       ///< consecutive submissions without a change
  int graphs_created = 0;        ///< graphs created so far
  bool capture_refused = false;  ///< the device refused to capture it; never tried again
  bool has_graph = false;        ///< a graph exists
  /// The cudaGraphExec_t. Null on an emulated device, which repeats the recorded launches.
  void* graph = nullptr;

  LaunchList() = default;
  LaunchList(LaunchList&& other) noexcept
      : launches(std::move(other.launches)),
        call_bytes(std::move(other.call_bytes)),
        changed(other.changed),
        unchanged_count(other.unchanged_count),
        graphs_created(other.graphs_created),
        capture_refused(other.capture_refused),
        has_graph(other.has_graph),
        graph(std::exchange(other.graph, nullptr)) {}
  ~LaunchList() { destroy_graph(); }
  LaunchList& operator=(LaunchList&&) = delete;

  void destroy_graph() {
#if defined(TRIREME_ENABLE_CUDA)
    if (graph != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
#endif
    graph = nullptr;
    has_graph = false;
  }
  /// Drops the launches from `index` on and marks the list as changed.
  void truncate_at(std::size_t index) {
    if (index < launches.size()) {
      call_bytes.resize(launches[index].begin);
      launches.resize(index);
    }
    changed = true;
  }
  void run(const Stream& stream) const {
    for (const Launch& launch : launches) launch.run(stream, call_bytes.data() + launch.begin);
  }
};

LaunchGraphs::LaunchGraphs(bool enabled) : enabled_(enabled) {}
LaunchGraphs::~LaunchGraphs() = default;

void LaunchGraphs::begin_section(const Stream& stream, std::size_t section) {
  TRIREME_EXPECT(!is_recording_);
  if (!enabled_) return;
  if (section >= sections_.size()) sections_.resize(section + 1);
  stream_ = stream;
  section_ = section;
  list_index_ = next_launch_ = 0;
  is_recording_ = true;
}

void LaunchGraphs::clear() {
  sections_.clear();
  graph_count_ = 0;
}

void LaunchGraphs::end_section() {
  flush();
  is_recording_ = false;
}

void LaunchGraphs::record(Run run, const void* call, std::size_t bytes) {
  std::vector<LaunchList>& lists = sections_[section_];
  if (list_index_ == lists.size()) lists.emplace_back();
  LaunchList& list = lists[list_index_];
  const std::size_t index = next_launch_++;
  if (index < list.launches.size()) {
    const LaunchList::Launch& known = list.launches[index];
    if (known.run == run && known.bytes == bytes &&
        std::memcmp(list.call_bytes.data() + known.begin, call, bytes) == 0)
      return;
    list.truncate_at(index);
  }
  constexpr std::size_t alignment = alignof(std::max_align_t);
  const std::size_t begin = (list.call_bytes.size() + alignment - 1) / alignment * alignment;
  list.call_bytes.resize(begin + bytes);
  std::memcpy(list.call_bytes.data() + begin, call, bytes);
  list.launches.push_back({run, begin, bytes});
  list.changed = true;
}

void LaunchGraphs::flush() {
  if (!is_recording_ || next_launch_ == 0) return;
  LaunchList& list = sections_[section_][list_index_];
  if (next_launch_ < list.launches.size()) list.truncate_at(next_launch_);
  ++list_index_;
  launch_count_ += static_cast<std::int64_t>(std::exchange(next_launch_, 0));
  is_recording_ = false;  // launches now run instead of being recorded
  submit(list);
  is_recording_ = true;
}

void LaunchGraphs::submit(LaunchList& list) {
  if (std::exchange(list.changed, false)) {
    list.unchanged_count = 0;
    if (list.has_graph) {
      // CUDA frees a running graph when it is done.
      list.destroy_graph();
      --graph_count_;
    }
    return list.run(stream_);
  }
  ++list.unchanged_count;
  if (!list.has_graph && !capture_graph(list)) return list.run(stream_);
  replayed_launch_count_ += static_cast<std::int64_t>(list.launches.size());
#if defined(TRIREME_ENABLE_CUDA)
  if (stream_.device.kind == DeviceKind::cuda)
    return expect_launched(cudaGraphLaunch(static_cast<cudaGraphExec_t>(list.graph),
                                           static_cast<cudaStream_t>(stream_.handle)),
                           "graph of {} kernels", list.launches.size());
#endif
  list.run(stream_);
}

/// Captures the list as a CUDA graph. Returns false if it is too short, too new, or refused by
/// the device.
bool LaunchGraphs::capture_graph(LaunchList& list) {
  // 1. Is a graph worth it, and allowed?
  if (list.capture_refused || list.launches.size() < min_launches ||
      list.unchanged_count < 1 << std::min(list.graphs_created, max_backoff_exponent))
    return false;
#if defined(TRIREME_ENABLE_CUDA)
  if (stream_.device.kind == DeviceKind::cuda) {
    // 2. Capture the launches. A launch that throws still requires the end of the capture.
    const auto stream = static_cast<cudaStream_t>(stream_.handle);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t made = nullptr;
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    std::string failure;
    if (error == cudaSuccess) {
      try {
        list.run(stream_);
      } catch (const std::exception& thrown) {
        failure = thrown.what();
      }
      error = cudaStreamEndCapture(stream, &graph);
      if (error == cudaSuccess) error = cudaGraphInstantiate(&made, graph, 0);
      // Take the graph's device memory now, not at its first launch.
      if (error == cudaSuccess) error = cudaGraphUpload(made, stream);
      if (graph != nullptr) cudaGraphDestroy(graph);
    }
    // 3. If the device refused, submit this list call by call from now on.
    if (error != cudaSuccess && failure.empty()) failure = cudaGetErrorString(error);
    if (!failure.empty()) {
      if (made != nullptr) cudaGraphExecDestroy(made);
      clear_launch_error();
      if (refusal_reason_.empty()) refusal_reason_ = failure;
      list.capture_refused = true;
      return false;
    }
    list.graph = made;
  }
#endif
  list.has_graph = true;
  ++list.graphs_created;
  ++graph_count_;
  return true;
}

void check_launch([[maybe_unused]] std::string_view label) {
#if defined(TRIREME_ENABLE_CUDA)
  const cudaError_t error = cudaPeekAtLastError();
  // A query of an event or a stream may leave "not ready" behind, also one by another library.
  if (error == cudaErrorNotReady) return clear_launch_error();
  expect_launched(error, "kernel {}", label);
#endif
}

void clear_launch_error() {
#if defined(TRIREME_ENABLE_CUDA)
  static_cast<void>(cudaGetLastError());
#endif
}

LaunchSection::LaunchSection(const Stream& stream, std::size_t number) : graphs_(stream.graphs) {
  if (graphs_ != nullptr) graphs_->begin_section(stream, number);
}

LaunchSection::~LaunchSection() {
  if (graphs_ == nullptr) return;
  graphs_->is_recording_ = false;
  graphs_->next_launch_ = 0;
}

void LaunchSection::end() {
  if (graphs_ != nullptr) std::exchange(graphs_, nullptr)->end_section();
}

DirectLaunches::DirectLaunches(const Stream& stream)
    : graphs_(stream.graphs != nullptr && stream.graphs->is_recording() ? stream.graphs : nullptr) {
  if (graphs_ == nullptr) return;
  graphs_->flush();
  graphs_->is_recording_ = false;
}

DirectLaunches::~DirectLaunches() {
  if (graphs_ != nullptr) graphs_->is_recording_ = true;
}

}  // namespace trireme
