#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cudnn.h>

#include "trireme/tensor/tensor.hpp"

namespace trireme::ops::cuda {

/// A descriptor of cuDNN's graph interface.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;

  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count, const void* values);
  Descriptor& set(cudnnBackendAttributeName_t name, std::int64_t value) { return set(name, CUDNN_TYPE_INT64, 1, &value); }
  Descriptor& set(cudnnBackendAttributeName_t name, const std::vector<std::int64_t>& values) {
    return set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value);
  /// Complete: nothing may be set any more. Throws Failure.
  Descriptor& finalize();
  /// The same; what cuDNN does not support is `false`.
  bool supported();
  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

cudnnDataType_t library_type(DType type);

/// A tensor of a graph: extents in cuDNN's order (batch, channels, height, width), which lie in memory with the channels last.
Descriptor tensor_nhwc(std::int64_t number, DType type, const std::vector<std::int64_t>& extents);

/// An operation as cuDNN runs it: by the first of its heuristics' engines that supports it within a workspace.
class Plan {
 public:
  /// `tensors`: numbers of the graph's tensors, in the order of run()'s pointers. Empty where no engine supports it.
  static std::unique_ptr<Plan> find(cudnnHandle_t handle, const Descriptor& operation, const std::vector<std::int64_t>& tensors, std::int64_t most_workspace);
  /// On the handle's stream.
  void run(const std::vector<void*>& data, void* workspace) const;

 private:
  Plan(cudnnHandle_t handle, Descriptor plan, std::vector<std::int64_t> tensors);
  cudnnHandle_t handle_;
  Descriptor plan_;
  std::vector<std::int64_t> tensors_;
};

}  // namespace trireme::ops::cuda
