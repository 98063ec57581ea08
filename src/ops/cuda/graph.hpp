#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cudnn.h>

#include "algorithm_entry.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::ops::cuda {

/// A descriptor of cuDNN's graph interface.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;

  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  std::int64_t count, const void* values);
  Descriptor& set(cudnnBackendAttributeName_t name, std::int64_t value) {
    return set(name, CUDNN_TYPE_INT64, 1, &value);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const std::vector<std::int64_t>& values) {
    return set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value);
  /// Complete: nothing may be set any more. Throws Failure.
  Descriptor& finalize();
  /// The same; what cuDNN does not support is `false`.
  bool try_finalize();
  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

cudnnDataType_t library_type(DType type);

/// A tensor of a graph. `place`: in device memory, nowhere (between two operations of the graph),
/// or a number in host memory.
struct GraphTensor {
  enum class Storage : std::uint8_t { device, intermediate, host };
  std::int64_t uid;
  cudnnDataType_t type;
  std::vector<std::int64_t> extents, strides;
  Storage storage = Storage::device;
};
Descriptor describe(const GraphTensor& tensor);

/// One of device memory: extents in cuDNN's order (batch, channels, height, width), which lie in
/// memory with the channels last.
Descriptor tensor_nhwc(std::int64_t uid, DType type, const std::vector<std::int64_t>& extents);

/// The device that a plan is made for: a handle's, on whose stream the plan runs; or, to see what
/// cuDNN supports where there is no device, the one of these properties
/// (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR).
struct PlanTarget {
  cudnnHandle_t handle = nullptr;
  const Descriptor* properties = nullptr;
  bool deterministic = false;  ///< engines whose sums have no order are left out, and the first of
                               ///< the others is taken without a trial
  AlgorithmEntry entry = {};   ///< of the engine
};

/// What cuDNN says of how an engine computes.
using NumericalNotes = std::vector<cudnnBackendNumericalNote_t>;

/// An engine that cuDNN's heuristics propose, by what it is made again from: its number and what
/// its knobs are set to, "engine 34, knobs 2=10 14=4".
std::string name_of(const Descriptor& proposal);

/// A graph of operations as cuDNN runs it: by one of the engines that its heuristics propose and
/// that support it within a workspace.
class Plan {
 public:
  /// `tensors`: numbers of the graph's tensors on the device and the host, in the order of run()'s
  /// pointers. The fastest of `most_trials` engines is found at the first run; where it is known,
  /// it is taken. Engines of which one of `avoided` is said are left out. Empty where no engine
  /// supports the graph.
  static std::unique_ptr<Plan> find(const PlanTarget& target,
                                    const std::vector<Descriptor>& operations,
                                    const std::vector<std::int64_t>& tensors,
                                    std::int64_t max_workspace_bytes, std::size_t max_trials = 1,
                                    NumericalNotes avoided = {});
  /// On the handle's stream. The first run of a plan with several engines tries them, and the host
  /// waits for that.
  cudnnStatus_t run(const std::vector<void*>& data, void* workspace);
  /// Whether it has been run: nothing is left to be found out then.
  bool has_run() const { return has_run_; }
  /// Names of the engines of which it takes one: several until the first run, unless the one was
  /// known.
  std::vector<std::string> engines() const;

 private:
  /// An engine, and its name among the algorithms that are known.
  struct Candidate {
    Descriptor plan;
    std::string name;
  };
  struct Limits {
    std::int64_t workspace;
    std::size_t count;
    const NumericalNotes& avoided;
    const std::string* name;  ///< the one engine that is wanted; null: any
  };
  static std::vector<Candidate> candidates(const PlanTarget& target, const Descriptor& graph,
                                           const Limits& limits);

  Plan(const PlanTarget& target, std::vector<Candidate> candidates,
       std::vector<std::int64_t> tensors);
  cudnnHandle_t handle_;
  AlgorithmEntry entry_;
  std::vector<Candidate> candidates_;  ///< after the first run the fastest
  bool has_run_ = false;               ///< it has been run
  std::vector<std::int64_t> tensors_;
};

}  // namespace trireme::ops::cuda
