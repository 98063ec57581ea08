#include "graph.hpp"

#include <utility>

#include "status.hpp"

namespace trireme::ops::cuda {
namespace {

constexpr std::int64_t byte_alignment = 16;
constexpr std::int64_t most_candidates = 16;

/// Engines that the heuristics of this mode propose, the best first.
std::vector<Descriptor> candidates(const Descriptor& graph, cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (!heuristics.supported()) return {};
  std::vector<Descriptor> found;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < most_candidates; ++i) raw.push_back(found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, most_candidates, &count, raw.data()),
        "asking cuDNN for engines");
  found.erase(found.begin() + count, found.end());
  return found;
}

}  // namespace

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) { check(cudnnBackendCreateDescriptor(type, &descriptor_), "making a descriptor of cuDNN"); }

Descriptor::~Descriptor() {
  if (descriptor_ != nullptr) cudnnBackendDestroyDescriptor(descriptor_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, nullptr)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count, const void* values) {
  check(cudnnBackendSetAttribute(descriptor_, name, type, count, values), "describing a graph to cuDNN");
  return *this;
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& value) {
  const cudnnBackendDescriptor_t raw = value.get();
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
}

Descriptor& Descriptor::finalize() {
  check(cudnnBackendFinalize(descriptor_), "completing a descriptor of cuDNN");
  return *this;
}

bool Descriptor::supported() { return cudnnBackendFinalize(descriptor_) == CUDNN_STATUS_SUCCESS; }

cudnnDataType_t library_type(DType type) {
  switch (type) {
    case DType::float32: return CUDNN_DATA_FLOAT;
    case DType::bfloat16: return CUDNN_DATA_BFLOAT16;
    default: throw Failure(std::string("cuDNN is not asked for products in ") + to_string(type));
  }
}

Descriptor tensor_nhwc(std::int64_t number, DType type, const std::vector<std::int64_t>& extents) {
  const std::int64_t channels = extents[1], height = extents[2], width = extents[3];
  const cudnnDataType_t data_type = library_type(type);
  Descriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &data_type);
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, extents);
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, std::vector<std::int64_t>{height * width * channels, 1, width * channels, channels});
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, number);
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, byte_alignment);
  return std::move(tensor.finalize());
}

Plan::Plan(cudnnHandle_t handle, Descriptor plan, std::vector<std::int64_t> tensors)
    : handle_(handle), plan_(std::move(plan)), tensors_(std::move(tensors)) {}

std::unique_ptr<Plan> Plan::find(cudnnHandle_t handle, const Descriptor& operation, const std::vector<std::int64_t>& tensors, std::int64_t most_workspace) {
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  if (!graph.supported()) return nullptr;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (const Descriptor& engine : candidates(graph, mode)) {
      Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine);
      if (!plan.supported()) continue;
      std::int64_t workspace = 0, count = 0;
      check(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &workspace), "asking cuDNN for a workspace");
      if (workspace <= most_workspace) return std::unique_ptr<Plan>(new Plan(handle, std::move(plan), tensors));
    }
  }
  return nullptr;
}

void Plan::run(const std::vector<void*>& data, void* workspace) const {
  TRIREME_EXPECT(data.size() == tensors_.size());
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, tensors_);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, static_cast<std::int64_t>(data.size()), data.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finalize();
  check(cudnnBackendExecute(handle_, plan_.get(), pack.get()), "running a plan of cuDNN");
}

}  // namespace trireme::ops::cuda
