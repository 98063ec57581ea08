// SPDX-License-Identifier: Apache-2.0
//
// CUDA graphs of the stand-in: captures on a stream, and their launches.
//
// A graph is the number of kernels, matrix products and cuDNN plans in it. cudaStreamBeginCapture()
// starts one, count_on_stream() adds to it, cudaGraphLaunch() counts its contents. Calls that a
// capture does not allow are faults.

#include <array>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

#include "record.hpp"
#include "state.hpp"

namespace stand_in {
namespace {

/// The number of operations of each kind in a captured graph.
struct Graph {
  std::array<int, static_cast<std::size_t>(Counter::size)> contents{};
  int device = 0;
};

struct Graphs {
  std::mutex mutex;
  std::set<Graph*> described, executable;
};

Graphs& graphs() {
  static auto* const all = new Graphs;
  return *all;
}

/// The stream that this thread captures (cudaStreamCaptureModeThreadLocal).
thread_local cudaStream_t captured_stream = nullptr;
thread_local Graph* current_capture = nullptr;

bool is_one_of(const std::set<Graph*>& those, Graph* graph, const char* by) {
  if (those.contains(graph)) return true;
  fault(std::string(by) + ": the graph does not exist");
  return false;
}

cudaError_t destroy(std::set<Graph*>& those, Graph* graph, const char* by) {
  expect_no_capture(by);
  const std::lock_guard lock(graphs().mutex);
  if (!is_one_of(those, graph, by)) return cudaErrorInvalidValue;
  those.erase(graph);
  delete graph;
  return cudaSuccess;
}

Graph* of(cudaGraph_t graph) { return reinterpret_cast<Graph*>(graph); }
Graph* of(cudaGraphExec_t graph) { return reinterpret_cast<Graph*>(graph); }

}  // namespace

void count_on_stream(cudaStream_t stream, Counter what) {
  if (current_capture == nullptr) return count_call(what);
  if (stream != captured_stream)
    fault("work enqueued on a stream while another stream is captured");
  ++current_capture->contents[static_cast<std::size_t>(what)];
}

void expect_no_capture(const char* what) {
  if (current_capture != nullptr) fault(std::string("call during a stream capture: ") + what);
}

void expect_no_graph(const char* what) {
  const std::lock_guard lock(graphs().mutex);
  if (!graphs().executable.empty()) fault(std::string("call while graphs exist: ") + what);
}

void report_graph_leaks(const std::function<void(const std::string&)>& report) {
  const std::lock_guard lock(graphs().mutex);
  for (std::size_t i = 0; i < graphs().described.size() + graphs().executable.size(); ++i)
    report("a graph was never destroyed");
}

}  // namespace stand_in

using namespace stand_in;

STAND_IN_API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  count_call(Counter::capture);
  if (std::getenv("STAND_IN_CUDA_NO_GRAPHS") != nullptr)
    return set_last_error(cudaErrorNotSupported);
  if (mode != cudaStreamCaptureModeThreadLocal)
    fault("a capture mode that other threads' calls would break");
  const int device = device_of_stream(stream, "a capture");
  const std::lock_guard lock(graphs().mutex);
  captured_stream = stream;
  current_capture = *graphs().described.insert(new Graph).first;
  current_capture->device = device;
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (current_capture == nullptr || stream != captured_stream)
    fault("a capture ends that never began");
  *graph = reinterpret_cast<cudaGraph_t>(current_capture);
  current_capture = nullptr;
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                              unsigned long long) {
  expect_no_capture("a graph is made");
  const std::lock_guard lock(graphs().mutex);
  if (!is_one_of(graphs().described, of(graph), "making a graph")) return cudaErrorInvalidValue;
  *executable =
      reinterpret_cast<cudaGraphExec_t>(*graphs().executable.insert(new Graph(*of(graph))).first);
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream) {
  expect_no_capture("a graph is uploaded");
  device_of_stream(stream, "uploading a graph");
  const std::lock_guard lock(graphs().mutex);
  return is_one_of(graphs().executable, of(graph), "uploading a graph") ? cudaSuccess
                                                                        : cudaErrorInvalidValue;
}

STAND_IN_API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return destroy(graphs().described, of(graph), "destroying a captured graph");
}
STAND_IN_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return destroy(graphs().executable, of(graph), "destroying a graph");
}

STAND_IN_API cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (const cudaError_t error = device_state(); error != cudaSuccess) return error;
  count_call(Counter::graph_launch);
  expect_no_error("launching a graph");
  const int device = device_of_stream(stream, "launching a graph");
  Graph given;
  {
    const std::lock_guard lock(graphs().mutex);
    if (!is_one_of(graphs().executable, of(graph), "launching a graph"))
      return cudaErrorInvalidValue;
    given = *of(graph);
  }
  if (device != given.device) fault("a graph of one device is launched on another");
  for (std::size_t what = 0; what < given.contents.size(); ++what) {
    for (int i = 0; i < given.contents[what]; ++i) {
      count_call(static_cast<Counter>(what));
      count_call(Counter::replayed);
    }
  }
  return cudaSuccess;
}
