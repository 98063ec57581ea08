// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

// A stand-in for the CUDA runtime and NCCL, and for the parts of cuBLASLt and cuDNN that need a
// device. It is a library loaded before the real ones (LD_PRELOAD).
//
// It presents one or more H200s. Their memory is host memory that the host cannot touch, copies are
// real, and kernels are counted but do nothing. So the host side of the program runs on a machine
// without a GPU. Tests check what it allocates, copies, launches and waits for, in which order and
// with which arguments. NO COMPUTED NUMBER AND NO TIME UNDER THE STAND-IN MEANS ANYTHING: no kernel
// runs.
//
// Real are: the whole program, Kokkos on the host, cuBLASLt's descriptors, cuDNN's graphs,
// heuristics and plans, and NVRTC's compilation of cuDNN's kernels.
//
// Environment variables:
//   STAND_IN_CUDA_REPORT        Path of the report, plus "." and the process number. It has the
//                               counts of each step and all faults; written at process end.
//   STAND_IN_CUDA_DEVICES       Number of devices; default 1.
//   STAND_IN_CUDA_UNREGISTERED  Number of a device whose communicators refuse to register memory.
//   STAND_IN_CUDA_PLAIN         If set, cuBLASLt proposes no algorithm with an epilogue, and cuDNN
//                               runs no plan with channel sums.
//   STAND_IN_CUDA_SLOW_EPILOGUES
//                               If set, a product with another epilogue than a bias takes 1 ms
//                               longer.
//   STAND_IN_CUDA_NO_GRAPHS     If set, no stream can be captured.
//   STAND_IN_CUDA_KERNELS       If set, the report has the launches of each kernel in the last
//                               step, by its mangled name, except those in CUDA graphs.
//   STAND_IN_CUDA_TRACE         If set, the report has the call stacks of waits and allocations,
//                               as addresses for addr2line.
//   STAND_IN_CUDA_REFUSE        "kernel 60": the 60th kernel is refused, and CUDA's last error says
//                               so; "kernel 60+": this one and all later ones. The other kinds are
//                               "product" (cuBLASLt, which reports it) and "plan" (cuDNN, which
//                               reports success).
//   STAND_IN_CUDA_BREAK         Number of a launch of any kind that accesses memory out of bounds:
//                               every later call fails, as on a device.
//   NVTX_INJECTION64_PATH       Path of this library, so that it detects the ends of steps.

// Counters of calls and faults. All functions may be called from any thread.

namespace stand_in {

enum class Counter : std::uint8_t {
  launch,             ///< kernels
  launch_on_default,  ///< kernels on the default stream, for which all blocking streams wait
  product,            ///< cublasLtMatmul
  cudnn_plan,         ///< cudnnBackendExecute
  graph_launch,       ///< launches of CUDA graphs
  replayed,           ///< operations inside these graphs; also counted by their own kind
  capture,            ///< captures of a stream for a graph
  exchange,           ///< NCCL operations
  exchange_in_place,  ///< of these, with all buffers registered
  registration,       ///< registrations of memory with a communicator
  copy,               ///< cudaMemcpyAsync
  pageable_copy,      ///< of these, with pageable host memory, for which the host may wait
  blocking_copy,      ///< cudaMemcpy
  memory_fill,        ///< memsets
  cache_preference,   ///< cache preferences of kernels
  record,             ///< events recorded
  event_delay,        ///< streams that wait for an event
  query,              ///< queries of events
  stream_wait,        ///< waits of the host for a stream
  event_wait,         ///< waits of the host for an event
  late_event_wait,  ///< of these, for events at least one whole step old, so that the device stays
                    ///< busy
  device_wait,      ///< waits of the host for the device
  allocation,       ///< allocations of device memory
  release,
  pinned_allocation,
  pinned_release,
  stream,  ///< streams created
  event,   ///< events created
  size
};

/// Counts one call. Reports a fault if this thread captures a stream.
void count_call(Counter what);

/// Counts one launch of a kernel by its mangled name.
void count_kernel(const std::string& name);

/// Reports that the program broke a rule of CUDA. Prints it once to stderr and counts it in the
/// report.
void fault(const std::string& what);

/// Ends a step: stores the counts since the previous step.
void end_step();
/// Returns the number of steps that have ended.
int steps_completed();

}  // namespace stand_in
