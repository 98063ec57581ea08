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

constexpr std::size_t least_launches = 4;  // of a graph: with fewer nothing is won
constexpr int most_patience = 5;  // a part of which graphs were made in vain must have been the
                                  // same so many times, as a power of two

}  // namespace

/// What was given between two things that are no launches.
struct LaunchGraphs::Part {
  struct Launch {
    Run run;
    std::size_t begin, bytes;  ///< of `calls`
  };
  std::vector<Launch> launches;
  std::vector<std::byte> calls;
  bool changed = true;   ///< since it was given last
  int same = 0;          ///< times in a row that it was not
  int made = 0;          ///< graphs so far
  bool refused = false;  ///< the device takes none of it
  bool whole = false;    ///< there is a graph
  void* graph =
      nullptr;  ///< CUDA's (cudaGraphExec_t); an emulated device goes by the launches themselves

  Part() = default;
  Part(Part&& other) noexcept
      : launches(std::move(other.launches)),
        calls(std::move(other.calls)),
        changed(other.changed),
        same(other.same),
        made(other.made),
        refused(other.refused),
        whole(other.whole),
        graph(std::exchange(other.graph, nullptr)) {}
  ~Part() { drop(); }
  Part& operator=(Part&&) = delete;

  void drop() {
#if defined(TRIREME_ENABLE_CUDA)
    if (graph != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
#endif
    graph = nullptr;
    whole = false;
  }
  /// From the launch `index` on it is another one.
  void cut(std::size_t index) {
    if (index < launches.size()) {
      calls.resize(launches[index].begin);
      launches.resize(index);
    }
    changed = true;
  }
  void run(const Stream& stream) const {
    for (const Launch& launch : launches) launch.run(stream, calls.data() + launch.begin);
  }
};

LaunchGraphs::LaunchGraphs(bool enabled) : enabled_(enabled) {}
LaunchGraphs::~LaunchGraphs() = default;

void LaunchGraphs::begin(const Stream& stream, std::size_t section) {
  TRIREME_EXPECT(!open_);
  if (!enabled_) return;
  if (section >= sections_.size()) sections_.resize(section + 1);
  stream_ = stream;
  section_ = section;
  part_ = next_ = 0;
  open_ = true;
}

void LaunchGraphs::forget() {
  sections_.clear();
  graphs_ = 0;
}

void LaunchGraphs::end() {
  flush();
  open_ = false;
}

void LaunchGraphs::keep(Run run, const void* call, std::size_t bytes) {
  std::vector<Part>& parts = sections_[section_];
  if (part_ == parts.size()) parts.emplace_back();
  Part& part = parts[part_];
  const std::size_t index = next_++;
  if (index < part.launches.size()) {
    const Part::Launch& known = part.launches[index];
    if (known.run == run && known.bytes == bytes &&
        std::memcmp(part.calls.data() + known.begin, call, bytes) == 0)
      return;
    part.cut(index);
  }
  constexpr std::size_t alignment = alignof(std::max_align_t);
  const std::size_t begin = (part.calls.size() + alignment - 1) / alignment * alignment;
  part.calls.resize(begin + bytes);
  std::memcpy(part.calls.data() + begin, call, bytes);
  part.launches.push_back({run, begin, bytes});
  part.changed = true;
}

void LaunchGraphs::flush() {
  if (!open_ || next_ == 0) return;
  Part& part = sections_[section_][part_];
  if (next_ < part.launches.size()) part.cut(next_);
  ++part_;
  launches_ += static_cast<std::int64_t>(std::exchange(next_, 0));
  open_ = false;  // what is given now is given
  give(part);
  open_ = true;
}

void LaunchGraphs::give(Part& part) {
  if (std::exchange(part.changed, false)) {
    part.same = 0;
    if (part.whole) {
      part.drop();  // CUDA frees one that still runs when it is done
      --graphs_;
    }
    return part.run(stream_);
  }
  ++part.same;
  if (!part.whole && !make_graph(part)) return part.run(stream_);
  by_graph_ += static_cast<std::int64_t>(part.launches.size());
#if defined(TRIREME_ENABLE_CUDA)
  if (stream_.device.kind == DeviceKind::cuda)
    return cuda::check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(part.graph),
                                       static_cast<cudaStream_t>(stream_.handle)),
                       "giving a graph");
#endif
  part.run(stream_);
}

/// False where there is to be none.
bool LaunchGraphs::make_graph(Part& part) {
  if (part.refused || part.launches.size() < least_launches ||
      part.same < 1 << std::min(part.made, most_patience))
    return false;
#if defined(TRIREME_ENABLE_CUDA)
  if (stream_.device.kind == DeviceKind::cuda) {
    const auto stream = static_cast<cudaStream_t>(stream_.handle);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t made = nullptr;
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    std::string failure;
    if (error == cudaSuccess) {
      try {
        part.run(stream_);
      } catch (const std::exception& thrown) {
        failure = thrown.what();
      }
      error = cudaStreamEndCapture(stream, &graph);
      if (error == cudaSuccess) error = cudaGraphInstantiate(&made, graph, 0);
      if (error == cudaSuccess)
        error = cudaGraphUpload(made, stream);  // what memory it takes it has now
      if (graph != nullptr) cudaGraphDestroy(graph);
    }
    if (error != cudaSuccess && failure.empty()) failure = cudaGetErrorString(error);
    if (!failure.empty()) {
      if (made != nullptr) cudaGraphExecDestroy(made);
      cudaGetLastError();  // forgotten: whoever launches a kernel next asks for the last error
      if (why_refused_.empty()) why_refused_ = failure;
      part.refused = true;
      return false;
    }
    part.graph = made;
  }
#endif
  part.whole = true;
  ++part.made;
  ++graphs_;
  return true;
}

LaunchSection::LaunchSection(const Stream& stream, std::size_t number) : graphs_(stream.graphs) {
  if (graphs_ != nullptr) graphs_->begin(stream, number);
}

LaunchSection::~LaunchSection() {
  if (graphs_ == nullptr) return;
  graphs_->open_ = false;
  graphs_->next_ = 0;
}

void LaunchSection::end() {
  if (graphs_ != nullptr) std::exchange(graphs_, nullptr)->end();
}

DirectLaunches::DirectLaunches(const Stream& stream)
    : graphs_(stream.graphs != nullptr && stream.graphs->open() ? stream.graphs : nullptr) {
  if (graphs_ == nullptr) return;
  graphs_->flush();
  graphs_->open_ = false;
}

DirectLaunches::~DirectLaunches() {
  if (graphs_ != nullptr) graphs_->open_ = true;
}

}  // namespace trireme
