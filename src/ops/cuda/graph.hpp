// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cudnn.h>

#include "algorithm_entry.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::ops::cuda {

class PlanBuilders;
class Trials;

/// Owner of a descriptor of cuDNN's graph interface.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;

  /// Sets an attribute. Throws Failure if cuDNN refuses it.
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  std::int64_t count, const void* values);
  Descriptor& set(cudnnBackendAttributeName_t name, std::int64_t value) {
    return set(name, CUDNN_TYPE_INT64, 1, &value);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const std::vector<std::int64_t>& values) {
    return set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value);
  /// Completes the descriptor; attributes are fixed from then on. Throws Failure.
  Descriptor& finalize();
  /// Completes the descriptor. Returns false if cuDNN does not support it.
  bool try_finalize();
  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// Returns cuDNN's name of a compute type. Throws Failure for other types.
cudnnDataType_t library_type(DType type);

/// A tensor of a graph: its unique number, type, extents and strides. `storage` is device memory,
/// none (an intermediate result between two operations of the graph), or a number in host memory.
struct GraphTensor {
  enum class Storage : std::uint8_t { device, intermediate, host };
  std::int64_t uid;
  cudnnDataType_t type;
  std::vector<std::int64_t> extents, strides;
  Storage storage = Storage::device;
};
/// Returns the completed cuDNN descriptor of a tensor.
Descriptor describe(const GraphTensor& tensor);

/// Returns the descriptor of a tensor in device memory. `extents` are in cuDNN's order (batch,
/// channels, height, width); in memory the channels are last.
Descriptor tensor_nhwc(std::int64_t uid, DType type, const std::vector<std::int64_t>& extents);

/// The device that a plan is made for. With `handle`: the handle's device, and the plan runs on the
/// handle's stream. With `properties` (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR): a device that is not
/// present, to learn what cuDNN supports there.
struct PlanTarget {
  cudnnHandle_t handle = nullptr;
  const Descriptor* properties = nullptr;
  /// Excludes engines whose sums have no fixed order, and takes the first of the others without a
  /// trial.
  bool deterministic = false;
  /// Table entry of the engine.
  AlgorithmEntry entry = {};
  /// Name of the problem, for messages.
  std::string label = {};
  /// Times the candidates; must outlive the plan. Without it the first candidate is taken.
  Trials* trials = nullptr;
  /// Builds several candidates at a time; must outlive the plan. Without it this thread builds one
  /// after the other.
  PlanBuilders* builders = nullptr;
};

/// cuDNN's notes on how an engine computes.
using NumericalNotes = std::vector<cudnnBackendNumericalNote_t>;

/// Returns the name of an engine configuration that cuDNN proposes, for example "engine 34, knobs
/// 2=10 14=4". cuDNN can make it again from these numbers.
std::string name_of(const Descriptor& proposal);

/// An executable graph of operations, run by one of the engines that cuDNN's heuristics propose and
/// that fit the workspace.
///
///   find()      heuristics -> candidates (at most max_trials; a known engine: that one alone),
///               built by several threads (PlanBuilders)
///   first run   candidates timed (Trials; the host waits) -> fastest kept, name stored
///   later runs  enqueued without waiting; they allocate nothing, but cuDNN does
class Plan {
 public:
  /// Returns a plan, or null if no engine supports the graph. `tensors`: the unique numbers of the
  /// graph's tensors on device and host, in the order of run()'s pointers. If the target's table
  /// entry names an engine, it is the only candidate. Engines with one of the `avoided` notes are
  /// excluded.
  static std::unique_ptr<Plan> find(const PlanTarget& target,
                                    const std::vector<Descriptor>& operations,
                                    const std::vector<std::int64_t>& tensors,
                                    std::int64_t max_workspace_bytes, std::size_t max_trials = 1,
                                    NumericalNotes avoided = {});
  /// Enqueues the graph on the handle's stream. `data`: the pointers of the tensors, in the order
  /// of find(). The first run of a plan with several candidates times them; the host waits for
  /// that.
  cudnnStatus_t run(std::span<void* const> data, void* workspace);
  cudnnStatus_t run(std::initializer_list<void*> data, void* workspace) {
    return run(std::span(data.begin(), data.size()), workspace);
  }
  /// Returns the stream of the handle, on which run() enqueues.
  cudaStream_t stream() const;
  /// Returns PlanTarget::label.
  const std::string& label() const { return label_; }
  /// Returns whether a run has succeeded. The engine is fixed then.
  bool has_run() const { return has_run_; }
  /// Returns the names of the candidates: several until the first run, one after it or if the
  /// engine was known.
  std::vector<std::string> engines() const;
  /// Returns whether cuDNN says of a candidate that it uses the tensor cores.
  bool has_tensor_cores() const;
  /// Returns the bytes of workspace that cuDNN reports for the candidates, the largest number.
  std::int64_t workspace_bytes() const;

 private:
  /// An engine configuration that meets the conditions on its notes and its name.
  struct Proposal {
    Descriptor engine;
    std::string name;
    bool has_tensor_cores = false;
  };
  /// An engine's plan and its name in the table of known algorithms.
  struct Candidate {
    Descriptor plan;
    std::string name;
    bool has_tensor_cores = false;
    std::int64_t workspace_bytes = 0;
  };
  /// Conditions on the candidates.
  struct Limits {
    std::int64_t workspace;
    std::size_t count;
    const NumericalNotes& avoided;
    const std::string* name;  ///< the only engine wanted; null: any
  };
  static std::vector<Proposal> wanted_proposals(const PlanTarget& target, const Descriptor& graph,
                                                cudnnBackendHeurMode_t mode, const Limits& limits);
  static std::optional<Candidate> build(const PlanTarget& target, cudnnHandle_t handle,
                                        const Proposal& proposal, std::int64_t max_workspace_bytes);
  static std::vector<Candidate> candidates(const PlanTarget& target, const Descriptor& graph,
                                           const Limits& limits);

  Plan(const PlanTarget& target, std::vector<Candidate> candidates,
       std::vector<std::int64_t> tensors, std::int64_t max_workspace_bytes);
  cudnnHandle_t handle_;
  AlgorithmEntry entry_;
  std::string label_;
  Trials* trials_;
  std::vector<Candidate> candidates_;  ///< after the first run only the fastest
  bool has_run_ = false;               ///< a run has succeeded
  std::vector<std::int64_t> tensors_;
  std::int64_t max_workspace_bytes_;
};

}  // namespace trireme::ops::cuda
