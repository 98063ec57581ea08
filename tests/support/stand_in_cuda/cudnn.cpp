// SPDX-License-Identifier: Apache-2.0
//
// The stand-in for cuDNN's backend API.
//
// The real library describes graphs and proposes engines and plans, using the properties of an H200
// instead of a handle. The stand-in removes the handle from the attributes, and records what each
// descriptor contains. In place of running a plan, cudnnBackendExecute() checks the memory of its
// tensors.

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include <cudnn.h>

#include "record.hpp"
#include "state.hpp"

struct cudnnContext {
  int device;
  cudaStream_t stream;
  std::atomic<bool> is_building = false;  ///< a plan is being built with it
};

namespace stand_in {
namespace {

struct Tensor {
  std::size_t bytes;
  bool is_virtual, by_value;
};

/// The attributes of a descriptor, including those of the descriptors it contains.
struct DescriptorState {
  cudnnBackendDescriptorType_t type;
  std::vector<std::int64_t> extents, strides, numbers;
  std::vector<void*> pointers;
  std::int64_t number = 0;
  std::size_t element = 4;
  bool is_virtual = false, by_value = false, finalized = false;
  bool computes_channel_sums = false;  ///< computes channel sums and sums of squares (GEN_STATS)
  void* workspace = nullptr;
  cudnnHandle_t handle = nullptr;  ///< of a plan
  std::map<std::int64_t, Tensor> tensors;
};

struct Graphs {
  std::mutex mutex;
  std::map<cudnnBackendDescriptor_t, DescriptorState> said;
  cudnnBackendDescriptor_t properties = nullptr;
};

Graphs& graphs() {
  static auto* const all = new Graphs;
  return *all;
}

constexpr char h200[] =
    R"({"deviceName":"NVIDIA H200","cudaDeviceId":0,"deviceVer":900,"driverVer":13000,)"
    R"("multiProcessorCount":132,"maxGridSize":[2147483647,65535,65535],)"
    R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"warpSize":32,)"
    R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,)"
    R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)"
    R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,)"
    R"("isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,)"
    R"("memClockRateKHz":3201000,"l2CacheSize":62914560,"totalGlobalMem":150000000000})";

cudnnStatus_t set_device_properties(cudnnBackendDescriptor_t descriptor,
                                    cudnnBackendAttributeName_t attribute) {
  Graphs& g = graphs();
  if (g.properties == nullptr) {
    REAL_FUNCTION(cudnnBackendCreateDescriptor)(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &g.properties);
    REAL_FUNCTION(cudnnBackendSetAttribute)(g.properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                            CUDNN_TYPE_CHAR, sizeof h200 - 1, h200);
    REAL_FUNCTION(cudnnBackendFinalize)(g.properties);
  }
  return REAL_FUNCTION(cudnnBackendSetAttribute)(descriptor, attribute,
                                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g.properties);
}

void store_attribute(DescriptorState& said, cudnnBackendAttributeName_t name,
                     cudnnBackendAttributeType_t type, std::int64_t count, const void* values) {
  const auto list = [&] {
    return std::vector<std::int64_t>(static_cast<const std::int64_t*>(values),
                                     static_cast<const std::int64_t*>(values) + count);
  };
  switch (name) {
    case CUDNN_ATTR_TENSOR_DIMENSIONS: said.extents = list(); break;
    case CUDNN_ATTR_TENSOR_STRIDES: said.strides = list(); break;
    case CUDNN_ATTR_TENSOR_UNIQUE_ID: said.number = list()[0]; break;
    case CUDNN_ATTR_TENSOR_DATA_TYPE: {
      const auto type = *static_cast<const cudnnDataType_t*>(values);
      said.element = type == CUDNN_DATA_BFLOAT16 || type == CUDNN_DATA_HALF ? 2 : 4;
      break;
    }
    case CUDNN_ATTR_TENSOR_IS_VIRTUAL: said.is_virtual = *static_cast<const bool*>(values); break;
    case CUDNN_ATTR_TENSOR_IS_BY_VALUE: said.by_value = *static_cast<const bool*>(values); break;
    case CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS: said.numbers = list(); break;
    case CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS:
      said.pointers.assign(static_cast<void* const*>(values),
                           static_cast<void* const*>(values) + count);
      break;
    case CUDNN_ATTR_VARIANT_PACK_WORKSPACE:
      said.workspace = *static_cast<void* const*>(values);
      break;
    default: break;
  }
  if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) return;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto part = graphs().said.find(static_cast<const cudnnBackendDescriptor_t*>(values)[i]);
    if (part == graphs().said.end()) {
      fault("a used cuDNN descriptor does not exist");
      continue;
    }
    if (!part->second.finalized) fault("a used cuDNN descriptor is not finalized");
    if (part->second.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
      std::size_t elements = 1;
      for (std::size_t d = 0; d < part->second.extents.size(); ++d)
        elements +=
            static_cast<std::size_t>((part->second.extents[d] - 1) * part->second.strides[d]);
      said.tensors[part->second.number] = {elements * part->second.element, part->second.is_virtual,
                                           part->second.by_value};
    }
    said.tensors.insert(part->second.tensors.begin(), part->second.tensors.end());
    said.computes_channel_sums = said.computes_channel_sums || part->second.computes_channel_sums ||
                                 part->second.type == CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR;
  }
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

STAND_IN_API cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  touch_device("cuDNN");
  *handle = new cudnnContext{current_device(), nullptr};
  return CUDNN_STATUS_SUCCESS;
}

STAND_IN_API cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

STAND_IN_API cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (device_of_stream(stream, "cudnnSetStream") != handle->device)
    fault("the stream for cuDNN is on another device");
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

STAND_IN_API cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

STAND_IN_API cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                        cudnnBackendDescriptor_t* descriptor) {
  const cudnnStatus_t status = REAL_FUNCTION(cudnnBackendCreateDescriptor)(type, descriptor);
  Graphs& g = graphs();
  const std::lock_guard lock(g.mutex);
  if (status == CUDNN_STATUS_SUCCESS) g.said[*descriptor].type = type;
  return status;
}

STAND_IN_API cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  Graphs& g = graphs();
  const std::lock_guard lock(g.mutex);
  if (g.said.erase(descriptor) == 0) fault("a destroyed cuDNN descriptor does not exist");
  return REAL_FUNCTION(cudnnBackendDestroyDescriptor)(descriptor);
}

STAND_IN_API cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                                    cudnnBackendAttributeName_t name,
                                                    cudnnBackendAttributeType_t type,
                                                    std::int64_t count, const void* values) {
  Graphs& g = graphs();
  const std::lock_guard lock(g.mutex);
  const auto found = g.said.find(descriptor);
  if (found == g.said.end()) {
    fault("a used cuDNN descriptor does not exist");
    return CUDNN_STATUS_BAD_PARAM;
  }
  DescriptorState& said = found->second;
  if (said.finalized) fault("a finalized cuDNN descriptor is changed");
  if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE) return CUDNN_STATUS_SUCCESS;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_HANDLE) {
    said.handle = *static_cast<const cudnnHandle_t*>(values);
    if (said.handle->device != current_device())
      fault("a cuDNN plan is built for another device than the thread's");
    return set_device_properties(descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
  }
  if (name == CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)
    set_device_properties(descriptor, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
  store_attribute(said, name, type, count, values);
  return REAL_FUNCTION(cudnnBackendSetAttribute)(descriptor, name, type, count, values);
}

STAND_IN_API cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                                    cudnnBackendAttributeName_t name,
                                                    cudnnBackendAttributeType_t type,
                                                    std::int64_t asked, std::int64_t* count,
                                                    void* values) {
  Graphs& g = graphs();
  const std::lock_guard lock(g.mutex);
  const auto found = g.said.find(descriptor);
  if (found == g.said.end()) {
    fault("a used cuDNN descriptor does not exist");
    return CUDNN_STATUS_BAD_PARAM;
  }
  const cudnnStatus_t status =
      REAL_FUNCTION(cudnnBackendGetAttribute)(descriptor, name, type, asked, count, values);
  if (status != CUDNN_STATUS_SUCCESS || type != CUDNN_TYPE_BACKEND_DESCRIPTOR) return status;
  for (std::int64_t i = 0; i < *count; ++i) {
    DescriptorState& part = g.said[static_cast<cudnnBackendDescriptor_t*>(values)[i]];
    part.finalized = true;
    part.tensors = found->second.tensors;
    part.computes_channel_sums = found->second.computes_channel_sums;
  }
  return status;
}

STAND_IN_API cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  Graphs& g = graphs();
  cudnnHandle_t handle = nullptr;
  {
    const std::lock_guard lock(g.mutex);
    const auto found = g.said.find(descriptor);
    if (found == g.said.end()) {
      fault("a used cuDNN descriptor does not exist");
      return CUDNN_STATUS_BAD_PARAM;
    }
    handle = found->second.handle;
  }
  // Without the mutex, because several threads build plans at a time, each with its handle.
  if (handle != nullptr && handle->is_building.exchange(true))
    fault("two threads use a cuDNN handle at the same time");
  const cudnnStatus_t status = REAL_FUNCTION(cudnnBackendFinalize)(descriptor);
  if (handle != nullptr) handle->is_building = false;
  const std::lock_guard lock(g.mutex);
  g.said[descriptor].finalized = status == CUDNN_STATUS_SUCCESS;
  return status;
}

STAND_IN_API cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                               cudnnBackendDescriptor_t pack) {
  {
    Graphs& g = graphs();
    const std::lock_guard lock(g.mutex);
    if (g.said[plan].computes_channel_sums && std::getenv("STAND_IN_CUDA_PLAIN") != nullptr)
      return CUDNN_STATUS_EXECUTION_FAILED;
  }
  if (begin_launch(LaunchKind::plan) != cudaSuccess)
    return is_broken() ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
  count_on_stream(handle->stream, Counter::cudnn_plan);
  if (device_of_stream(handle->stream, "a plan of cuDNN") != handle->device ||
      current_device() != handle->device)
    fault("a cuDNN plan runs on another device than the thread's");
  DescriptorState with, of;
  {
    Graphs& g = graphs();
    const std::lock_guard lock(g.mutex);
    of = g.said[plan];
    with = g.said[pack];
  }
  if (!of.finalized || !with.finalized) fault("a cuDNN plan that is not finalized is run");
  std::int64_t bytes = 0, count = 0;
  cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                           &count, &bytes);
  if (bytes > 0)
    expect_on_device(with.workspace, static_cast<std::size_t>(bytes), handle->device,
                     "the workspace of a plan of cuDNN");
  for (const auto& [number, tensor] : of.tensors) {
    if (tensor.is_virtual) continue;
    std::size_t i = 0;
    while (i < with.numbers.size() && with.numbers[i] != number) ++i;
    if (i == with.numbers.size() || i >= with.pointers.size()) {
      fault("a cuDNN plan is run without one of its tensors");
      continue;
    }
    if (tensor.by_value) {
      if (memory_at(with.pointers[i])) fault("a host scalar of a cuDNN plan is in device memory");
      continue;
    }
    expect_on_device(with.pointers[i], tensor.bytes, handle->device, "a tensor of a plan of cuDNN");
    if (reinterpret_cast<std::uintptr_t>(with.pointers[i]) % 16 != 0)
      fault("a cuDNN tensor is not aligned to 16 bytes");
  }
  return CUDNN_STATUS_SUCCESS;
}
