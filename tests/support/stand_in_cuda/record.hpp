#pragma once

#include <cstdint>
#include <string>

// A stand-in for CUDA's runtime and NCCL, and for what of cuBLASLt and cuDNN needs a device: a
// library that is loaded before them (LD_PRELOAD). It says that there is an H200 (or several),
// whose memory is host memory that the host may not touch, whose copies are real, and whose kernels
// are counted and do nothing. So the host's side of the program runs where there is no GPU: what it
// allocates, copies, launches and waits for, in which order, with which arguments. NO NUMBER
// COMPUTED UNDER IT MEANS ANYTHING: no kernel ran. Nor does any time.
//
// Real are: all of the program and of Kokkos on the host, cuBLASLt's descriptors, cuDNN's graphs,
// heuristics and plans, NVRTC's compiling of cuDNN's kernels.
//
// Variables of the environment:
//   STAND_IN_CUDA_REPORT   what was counted in each step and what was wrong, in this file with the
//   process's number behind it, at the process's end STAND_IN_CUDA_DEVICES  how many devices there
//   are; 1 STAND_IN_CUDA_UNREGISTERED  a device's number: communicators of that one do not take
//   memory STAND_IN_CUDA_PLAIN    set: cuBLASLt proposes no algorithm with an epilogue, and cuDNN
//   starts no plan that adds up channels STAND_IN_CUDA_NO_GRAPHS  set: no stream's work can be
//   captured STAND_IN_CUDA_TRACE    set: the report names also where the host waits and allocates,
//   as addresses for addr2line NVTX_INJECTION64_PATH  this library again, for it to hear of the
//   ends of steps

// What a program asked of it, and what it did wrong. All functions may be called by several
// threads.

namespace stand_in {

enum class Counter : std::uint8_t {
  launch,             // kernels
  launch_on_default,  // of these, on the default stream, for which all other blocking streams wait
  product,            // cublasLtMatmul
  cudnn_plan,         // cudnnBackendExecute
  graph_launch,       // CUDA graphs given to a stream
  replayed,           // kernels, products and plans in them, which are counted as such too
  capture,            // of a stream's work, to make a graph
  exchange,           // NCCL's operations
  exchange_in_place,  // of these, with all their memory registered
  registration,       // of memory with a communicator
  copy,               // that the host does not wait for
  pageable_copy,    // of these, with ordinary host memory: CUDA stages them, and the host waits for
                    // some
  blocking_copy,    // cudaMemcpy
  memory_fill,      // memsets
  record,           // of events
  event_delay,      // of streams, for events
  query,            // of events
  stream_wait,      // the host waits for a stream,
  event_wait,       // an event,
  late_event_wait,  // of these, of what was given before the last whole step: the device has a
                    // step's work meanwhile
  device_wait,      // a device
  allocation,       // of device memory
  release,
  pinned_allocation,
  pinned_release,
  stream,  // made
  event,   // made
  size
};

void count_call(Counter what);

/// A rule of CUDA was broken.
void fault(const std::string& what);

/// The end of a step: what was counted since the last one is written down.
void end_step();
/// How many there were.
int steps_completed();

}  // namespace stand_in
