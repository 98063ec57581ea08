// SPDX-License-Identifier: Apache-2.0
//
// cuDNN's graph interface: owners of its descriptors, the search for an engine, and the run of a
// plan.
//
// Plan::find()
//   1. makes the graph of the operations;
//   2. asks the heuristics for engine configurations, best first;
//   3. keeps those that have no excluded numerical note, build a plan and fit the workspace. The
//      threads of PlanBuilders build several at a time.
// Plan::run() times the candidates at the first run, keeps the fastest and stores its name.

#include "graph.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "library.hpp"
#include "plan_builders.hpp"
#include "trials.hpp"

namespace trireme::ops::cuda {
namespace {

/// Alignment of the tensors' memory in bytes, which engines may rely on.
constexpr std::int64_t byte_alignment = 16;
constexpr std::int64_t max_candidates = 32;

/// Returns the engine configurations that the heuristics propose in this mode, best first. Empty if
/// the heuristics do not support the graph.
std::vector<Descriptor> proposals(const PlanTarget& target, const Descriptor& graph,
                                  cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if CUDNN_VERSION >= 90800  // device properties can replace a device
  if (target.properties != nullptr)
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.properties);
#endif
  if (!heuristics.try_finalize()) return {};
  std::vector<Descriptor> found;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < max_candidates; ++i)
    raw.push_back(found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, max_candidates, &count, raw.data()),
        "querying cuDNN for engines");
  found.erase(found.begin() + count, found.end());
  return found;
}

/// Returns the engine of a proposed configuration.
Descriptor engine_of(const Descriptor& proposal) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(proposal.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
        "querying a cuDNN engine");
  return engine;
}

/// Returns an attribute of a descriptor as a number.
std::int64_t number_of(const Descriptor& descriptor, cudnnBackendAttributeName_t name,
                       cudnnBackendAttributeType_t type = CUDNN_TYPE_INT64) {
  // cuDNN's enumerations have 4 bytes, which are the lower ones of `value`.
  std::int64_t value = 0, count = 0;
  check(cudnnBackendGetAttribute(descriptor.get(), name, type, 1, &count, &value),
        "querying a cuDNN attribute");
  return value;
}

/// Returns whether cuDNN attaches one of these notes to the engine.
bool has_any(const Descriptor& proposal, const NumericalNotes& asked) {
  const Descriptor engine = engine_of(proposal);
  std::int64_t count = 0;
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  check(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count,
                                 notes.data()),
        "querying the numerical notes of a cuDNN engine");
  return std::find_first_of(notes.begin(), notes.begin() + count, asked.begin(), asked.end()) !=
         notes.begin() + count;
}

}  // namespace

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  check(cudnnBackendCreateDescriptor(type, &descriptor_), "creating a cuDNN descriptor");
}

Descriptor::~Descriptor() {
  if (descriptor_ != nullptr) cudnnBackendDestroyDescriptor(descriptor_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, nullptr)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                            std::int64_t count, const void* values) {
  check(cudnnBackendSetAttribute(descriptor_, name, type, count, values),
        "describing a graph to cuDNN");
  return *this;
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& value) {
  const cudnnBackendDescriptor_t raw = value.get();
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
}

Descriptor& Descriptor::finalize() {
  check(cudnnBackendFinalize(descriptor_), "finalizing a cuDNN descriptor");
  return *this;
}

bool Descriptor::try_finalize() {
  return cudnnBackendFinalize(descriptor_) == CUDNN_STATUS_SUCCESS;
}

cudnnDataType_t library_type(DType type) {
  switch (type) {
    case DType::float32: return CUDNN_DATA_FLOAT;
    case DType::bfloat16: return CUDNN_DATA_BFLOAT16;
    case DType::float16: return CUDNN_DATA_HALF;
    default: throw Failure(std::string("cuDNN products are not supported in ") + to_string(type));
  }
}

Descriptor describe(const GraphTensor& t) {
  Descriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const bool intermediate = t.storage == GraphTensor::Storage::intermediate,
             by_value = t.storage == GraphTensor::Storage::host;
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t.type);
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, t.extents);
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, t.strides);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, t.uid);
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, byte_alignment);
  tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &intermediate);
  tensor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
  return std::move(tensor.finalize());
}

Descriptor tensor_nhwc(std::int64_t uid, DType type, const std::vector<std::int64_t>& extents) {
  const std::int64_t channels = extents[1], height = extents[2], width = extents[3];
  return describe({uid,
                   library_type(type),
                   extents,
                   {height * width * channels, 1, width * channels, channels}});
}

std::string name_of(const Descriptor& proposal) {
  std::string name =
      fmt::format("engine {}", number_of(engine_of(proposal), CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
  std::vector<Descriptor> knobs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i)
    raw.push_back(knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR).get());
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(proposal.get(), CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS, &count,
                                 raw.data()),
        "querying a cuDNN attribute");
  for (std::int64_t i = 0; i < count; ++i) {
    const Descriptor& knob = knobs[static_cast<std::size_t>(i)];
    name += fmt::format("{} {}={}", i == 0 ? ", knobs" : "",
                        number_of(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE),
                        number_of(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE));
  }
  return name;
}

Plan::Plan(const PlanTarget& target, std::vector<Candidate> candidates,
           std::vector<std::int64_t> tensors, std::int64_t max_workspace_bytes)
    : handle_(target.handle),
      entry_(target.entry),
      label_(target.label),
      trials_(target.trials),
      candidates_(std::move(candidates)),
      tensors_(std::move(tensors)),
      max_workspace_bytes_(max_workspace_bytes) {}

/// Returns the proposals of a mode that meet the limits on notes and name, best first.
std::vector<Plan::Proposal> Plan::wanted_proposals(const PlanTarget& target,
                                                   const Descriptor& graph,
                                                   cudnnBackendHeurMode_t mode,
                                                   const Limits& limits) {
  std::vector<Proposal> wanted;
  for (Descriptor& engine : proposals(target, graph, mode)) {
    std::string name = name_of(engine);
    if (has_any(engine, limits.avoided) || (limits.name != nullptr && name != *limits.name))
      continue;
    const bool has_tensor_cores = has_any(engine, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE});
    wanted.push_back({std::move(engine), std::move(name), has_tensor_cores});
  }
  return wanted;
}

/// Builds the plan of a proposal with a handle of this thread. Some engines are compiled here,
/// which may take a second each. Returns none if cuDNN cannot build it or if it needs more
/// workspace.
std::optional<Plan::Candidate> Plan::build(const PlanTarget& target, cudnnHandle_t handle,
                                           const Proposal& proposal,
                                           std::int64_t max_workspace_bytes) {
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  if (handle != nullptr) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
#if CUDNN_VERSION >= 90800
  if (target.properties != nullptr)
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.properties);
#endif
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, proposal.engine);
  if (!plan.try_finalize()) return std::nullopt;
  const std::int64_t bytes = number_of(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  if (bytes > max_workspace_bytes) return std::nullopt;
  return Candidate{std::move(plan), proposal.name, proposal.has_tensor_cores, bytes};
}

/// Returns the engines that meet the limits, in the order of the library's ranking. Fallback
/// engines are used only if there are no others. Several threads find the same engines as one,
/// unless the time is up.
std::vector<Plan::Candidate> Plan::candidates(const PlanTarget& target, const Descriptor& graph,
                                              const Limits& limits) {
  std::vector<Candidate> found;
  std::optional<Trials::Period> building;
  if (target.trials != nullptr && limits.count > 1) building.emplace(*target.trials);
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    // 1. Each thread takes the next proposal, until enough are built.
    const std::vector<Proposal> wanted = wanted_proposals(target, graph, mode, limits);
    std::vector<std::optional<Candidate>> built(wanted.size());
    std::atomic<std::size_t> next = 0, built_count = 0;
    const auto build_some = [&](cudnnHandle_t handle) {
      while (built_count < limits.count &&
             (built_count == 0 || !building || !building->time_is_up())) {
        const std::size_t i = next++;
        if (i >= wanted.size()) return;
        built[i] = build(target, handle, wanted[i], limits.workspace);
        if (built[i]) ++built_count;
      }
    };
    if (target.builders != nullptr && limits.count > 1)
      target.builders->run(target.handle, build_some);
    else
      build_some(target.handle);
    // 2. Threads may have built more than one thread would have: the first ones count.
    for (std::optional<Candidate>& candidate : built)
      if (candidate && found.size() < limits.count) found.push_back(std::move(*candidate));
    if (!found.empty()) break;
  }
  clear_launch_error();  // of engines that could not be built
  return found;
}

std::unique_ptr<Plan> Plan::find(const PlanTarget& target,
                                 const std::vector<Descriptor>& operations,
                                 const std::vector<std::int64_t>& tensors,
                                 std::int64_t max_workspace_bytes, std::size_t max_trials,
                                 NumericalNotes avoided) {
  // 1. The graph of the operations.
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Descriptor& operation : operations) raw.push_back(operation.get());
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (target.handle != nullptr)
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<std::int64_t>(raw.size()), raw.data());
  if (!graph.try_finalize()) return nullptr;
  // 2. A known engine alone, or else the proposals.
  if (target.deterministic) avoided.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  std::vector<Candidate> found;
  if (const std::string* known = target.entry.algorithm())
    found = candidates(target, graph, {max_workspace_bytes, 1, avoided, known});
  if (found.empty())
    found =
        candidates(target, graph,
                   {max_workspace_bytes, target.deterministic ? 1 : max_trials, avoided, nullptr});
  if (found.empty()) return nullptr;
  return std::unique_ptr<Plan>(new Plan(target, std::move(found), tensors, max_workspace_bytes));
}

std::vector<std::string> Plan::engines() const {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates_) names.push_back(candidate.name);
  return names;
}

bool Plan::has_tensor_cores() const {
  return std::any_of(candidates_.begin(), candidates_.end(),
                     [](const Candidate& candidate) { return candidate.has_tensor_cores; });
}

std::int64_t Plan::workspace_bytes() const {
  std::int64_t bytes = 0;
  for (const Candidate& candidate : candidates_) bytes = std::max(bytes, candidate.workspace_bytes);
  return bytes;
}

cudaStream_t Plan::stream() const {
  cudaStream_t stream = nullptr;
  check(cudnnGetStream(handle_, &stream), "querying cuDNN's stream");
  return stream;
}

cudnnStatus_t Plan::run(std::span<void* const> data, void* workspace) {
  TRIREME_EXPECT(data.size() == tensors_.size());
  // 1. Pointers and workspace of this run. cuDNN refuses new values in a finalized pack, so each
  //    run makes one, in cuDNN's own memory.
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, tensors_);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
           static_cast<std::int64_t>(data.size()), data.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finalize();
  const auto run_one = [&](const Candidate& candidate) {
    return cudnnBackendExecute(handle_, candidate.plan.get(), pack.get());
  };
  // 2. Time the candidates and keep the fastest.
  bool chosen = true;
  if (candidates_.size() > 1) {
    std::optional<std::size_t> fastest;
    if (trials_ != nullptr)
      fastest = trials_->fastest(
          candidates_.size(),
          [&](std::size_t i) { return run_one(candidates_[i]) == CUDNN_STATUS_SUCCESS; },
          {workspace, static_cast<std::size_t>(max_workspace_bytes_)});
    std::swap(candidates_.front(), candidates_[fastest.value_or(0)]);
    candidates_.erase(candidates_.begin() + 1, candidates_.end());
    chosen = fastest.has_value();
  }
  // 3. Run it. The first run that succeeds stores its name, also of an only candidate: if the time
  //    for building ended after one, the next start would find others and try them.
  const cudnnStatus_t status = run_one(candidates_.front());
  if (status == CUDNN_STATUS_SUCCESS && !has_run_) {
    has_run_ = true;
    if (chosen) entry_.set(candidates_.front().name);
  }
  return status;
}

}  // namespace trireme::ops::cuda
