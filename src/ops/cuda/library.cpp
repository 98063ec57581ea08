// SPDX-License-Identifier: Apache-2.0
//
// The CUDA libraries of a context: handles of cuBLASLt and cuDNN, and caches of prepared products.
//
// For each call:
//   1. the problem's key is looked up in the cache (no allocation);
//   2. at the first use a product is prepared, from its known algorithm or from proposals;
//   3. the first run times the proposals, and the host waits;
//   4. later runs are enqueued through launch(), so that they can become part of a CUDA graph.
// Called by products.cpp and attention.cpp.

#include "library.hpp"

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "attention_graph.hpp"
#include "convolution.hpp"
#include "linear.hpp"
#include "plan_builders.hpp"
#include "status.hpp"
#include "trials.hpp"

namespace trireme::ops::cuda {
namespace {

/// Handles of the two libraries for a stream's device. Throws Failure if the device or a library
/// cannot be used.
struct Handles {
  cublasLtHandle_t cublas = nullptr;
  cudnnHandle_t cudnn = nullptr;

  explicit Handles(const Stream& stream) {
    check(cudaSetDevice(stream.device.index), "selecting the device");
    check(cublasLtCreate(&cublas), "initializing the library");
    check(cudnnCreate(&cudnn), "initializing the library");
    check(cudnnSetStream(cudnn, static_cast<cudaStream_t>(stream.handle)),
          "initializing the library");
  }
  ~Handles() {
    if (cudnn != nullptr) cudnnDestroy(cudnn);
    if (cublas != nullptr) cublasLtDestroy(cublas);
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
};

/// Returns the device's name, which is part of the keys of known algorithms.
std::string device_name(Device device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device.index), "querying the device name");
  return properties.name;
}

/// Returns the address of the workspace's usable_workspace_bytes, aligned for the libraries.
void* aligned_workspace(const Tensor& workspace) {
  const auto begin = reinterpret_cast<std::uintptr_t>(workspace.data);
  return static_cast<std::byte*>(workspace.data) +
         (workspace_alignment - begin % workspace_alignment) % workspace_alignment;
}

/// Returns the value in the table of algorithms of a pass of attention that cuDNN does not run.
std::string own_kernel_of(const Tensor& workspace) {
  if (workspace.bytes() < max_attention_workspace_bytes) return AlgorithmTable::own_kernel;
  return fmt::format("{}: cuDNN has no plan for it in {} MiB of workspace",
                     AlgorithmTable::own_kernel, max_attention_workspace_bytes >> 20);
}

/// Caches every product by its problem. Looking up a known product allocates nothing.
class DeviceLibrary final : public Library {
 public:
  DeviceLibrary(const Stream& stream, ContextOptions options, AlgorithmTable& known)
      : stream_(stream),
        options_(options),
        known_(known),
        device_(device_name(stream.device)),
        handles_(stream),
        builders_(stream.device, PlanBuilders::default_threads()),
        trials_(stream) {}

  bool multiply(Problem::Kind kind, Epilogue epilogue, const Linear& l, const ProductTensors& t,
                Write write, const Tensor& workspace) override {
    const auto place = [](const Tensor& tensor) {
      return tensor.defined() ? tensor.data : nullptr;
    };
    ProductData data{t.x.data,        t.w.data,        t.y.data,
                     place(t.vector), place(t.matrix), place(t.added)};
    if (l.in_float8()) data.split_codes(operands_of(kind, l));
    // The key also holds everything else that the choice of an algorithm depends on.
    Problem problem = problem_of(kind, l, t.vector.defined(), l.result_dtype());
    problem.extents[4] = data.alignment();
    problem.extents[5] = static_cast<std::int64_t>(epilogue);
    problem.extents[6] = static_cast<std::int64_t>(l.in_float8());
    problem.extents[7] = static_cast<std::int64_t>(l.fixed_algorithm);
    std::unique_ptr<MatrixProduct>& product = products_[problem];
    if (!product)
      product = std::make_unique<MatrixProduct>(
          handles_.cublas, kind, epilogue, l, data,
          MatrixProduct::Options{options_.deterministic || l.fixed_algorithm,
                                 options_.tfloat32 && !l.fixed_algorithm,
                                 "of cuBLASLt for " + to_string(problem)},
          l.fixed_algorithm ? AlgorithmEntry()
                            : entry_of(problem, "cuBLASLt", cublasLtGetVersion()),
          trials_);
    return product->run(stream_, data, write, aligned_workspace(workspace));
  }

  void convolve(Problem::Kind kind, const Convolution& c, const Tensor& x, const Tensor& w,
                const Tensor& y, const Tensor& workspace) override {
    const Problem problem = problem_of(kind, c);
    std::unique_ptr<Plan>& plan = plans_[problem];
    if (!plan) plan = make_convolution(target(problem), kind, c, options_.tfloat32);
    check_launch_by(
        launch_plan(*plan, [x, w, y, place = aligned_workspace(workspace)](
                               Plan& to) { return to.run({x.data, w.data, y.data}, place); }),
        plan->label());
  }

  bool convolve_with_sums(const Convolution& c, const Tensor& x, const Tensor& w, const Tensor& y,
                          const Tensor& sums, const Tensor& workspace) override {
    const std::unique_ptr<Plan>& plan =
        plan_with_sums(problem_of(Problem::Kind::convolution_statistics_forward, c), c);
    return plan &&
           launch_plan(*plan, [x, w, y, sums, place = aligned_workspace(workspace)](Plan& to) {
             return to.run({x.data, w.data, y.data, sums.data, sums.as<float>() + sums.shape[1]},
                           place);
           }) == CUDNN_STATUS_SUCCESS;
  }

  bool is_faster_with_sums(const Convolution& c, const Tensor& scratch,
                           const std::function<bool(bool)>& run_variant) override {
    const Problem problem = problem_of(Problem::Kind::convolution_statistics_forward, c);
    // 1. Decided earlier in this run, or known from an earlier start.
    if (const auto decided = first_is_faster_.find(problem); decided != first_is_faster_.end())
      return decided->second;
    const AlgorithmEntry entry = entry_of(problem, "cuDNN", cudnnGetVersion());
    const std::string* known = entry.algorithm();
    std::optional<bool> faster;
    if (known != nullptr && *known == AlgorithmTable::one_by_one) {
      faster = false;
    } else {
      const std::unique_ptr<Plan>& plan = plan_with_sums(problem, c);
      if (known != nullptr && plan && plan->engines() == std::vector<std::string>{*known}) {
        faster = true;
      } else {
        // 2. Otherwise time both variants.
        faster = plan ? time_both(run_variant, scratch) : false;
        if (faster) entry.set(*faster ? plan->engines().front() : AlgorithmTable::one_by_one);
      }
    }
    return first_is_faster_[problem] = faster.value_or(false);
  }

  bool is_faster_with_epilogue(Problem::Kind kind, Epilogue epilogue, const Linear& l,
                               const Trial& trial,
                               const std::function<bool(bool)>& run_variant) override {
    if (options_.deterministic) return true;
    Problem problem = problem_of(kind, l, false, l.result_dtype());
    problem.extents[5] = static_cast<std::int64_t>(epilogue);
    problem.extents[6] = static_cast<std::int64_t>(l.in_float8());
    problem.extents[7] = 1;  // the choice, not the algorithm of the product
    return choose(problem, "cuBLASLt", cublasLtGetVersion(),
                  {AlgorithmTable::fused, AlgorithmTable::one_by_one}, trial, true, run_variant);
  }

  bool is_faster_as_product(Problem::Kind kind, const Convolution& c, bool adds, const Trial& trial,
                            const std::function<bool(bool)>& run_variant) override {
    if (options_.deterministic) return false;
    Problem problem = problem_of(kind, c);
    problem.in_out = true;  // the choice, not the engine of the convolution
    problem.added = adds;
    return choose(problem, "cuDNN", cudnnGetVersion(),
                  {AlgorithmTable::product, AlgorithmTable::convolution}, trial, false,
                  run_variant);
  }

  bool attend(Problem::Kind kind, const Attention& a, const AttentionTensors& t,
              const Tensor& workspace) override {
    const Problem problem{
        kind,
        a.dtype,
        false,
        false,
        {a.batch, a.context, a.heads, a.kv_heads, a.head_width, static_cast<std::int64_t>(a.mask)}};
    const auto [place, is_new] = plans_.try_emplace(problem);
    const bool forward = kind == Problem::Kind::attention_forward;
    if (is_new)
      place->second = (forward ? make_attention_forward : make_attention_backward)(
          target(problem), a, workspace.bytes() - workspace_alignment);
    if (!place->second) {
      if (is_new) entry_of(problem, "cuDNN", cudnnGetVersion()).set(own_kernel_of(workspace));
      return false;
    }
    const auto run = forward ? run_attention_forward : run_attention_backward;
    check_launch_by(launch_plan(*place->second, [run, a, t, place = aligned_workspace(workspace)](
                                                    Plan& to) { return run(to, a, t, place); }),
                    place->second->label());
    return true;
  }

  const TrialReport& trials() const override { return trials_.report(); }

 private:
  /// Returns whether the first of two variants, run_variant(true), is faster. Looks in this run's
  /// choices, then in the table, whose values are `names`, then times both if the trial allows it.
  /// Returns `otherwise` if the answer stays unknown. A decided problem allocates nothing.
  bool choose(const Problem& problem, const char* library, std::size_t version,
              const std::pair<const char*, const char*>& names, const Trial& trial, bool otherwise,
              const std::function<bool(bool)>& run_variant) {
    if (const auto decided = first_is_faster_.find(problem); decided != first_is_faster_.end())
      return decided->second;
    const AlgorithmEntry entry = entry_of(problem, library, version);
    std::optional<bool> faster;
    if (const std::string* known = entry.algorithm())
      faster = *known == names.first;
    else if (trial.may_repeat)
      faster = time_both(run_variant, trial.scratch);
    else
      return otherwise;
    first_is_faster_.emplace(problem, faster.value_or(otherwise));
    if (faster) entry.set(*faster ? names.first : names.second);
    return faster.value_or(otherwise);
  }
  /// Returns whether run_variant(true) is faster than run_variant(false); none if no time is left
  /// for the trial.
  std::optional<bool> time_both(const std::function<bool(bool)>& run_variant,
                                const Tensor& scratch) {
    if (trials_.refuses()) return std::nullopt;
    // The first runs choose the algorithms of both variants.
    if (!run_variant(true)) return false;
    run_variant(false);
    const std::optional<std::size_t> fastest =
        trials_.fastest(2, [&](std::size_t i) { return run_variant(i == 0); },
                        {scratch.data, static_cast<std::size_t>(scratch.bytes())});
    if (!fastest) return std::nullopt;
    return *fastest == 0;
  }
  /// Runs the plan. The first run is made at once, because its status shows if the plan can be run.
  /// Later runs are launched; an error then throws Failure.
  template <class Run>
  cudnnStatus_t launch_plan(Plan& plan, const Run& run) {
    if (!plan.has_run()) {
      const DirectLaunches direct(stream_);
      const cudnnStatus_t status = run(plan);
      if (status == CUDNN_STATUS_SUCCESS)
        check_launch(plan.label());
      else
        clear_launch_error();
      return status;
    }
    launch(stream_,
           [plan = &plan, run](const Stream&) { check_launch_by(run(*plan), plan->label()); });
    return CUDNN_STATUS_SUCCESS;
  }
  /// Returns the plan of a convolution with sums from the cache, null if cuDNN has none.
  const std::unique_ptr<Plan>& plan_with_sums(const Problem& problem, const Convolution& c) {
    const auto [place, is_new] = plans_.try_emplace(problem);
    if (is_new) place->second = make_convolution_with_sums(target(problem), c);
    return place->second;
  }
  /// Attention takes cuDNN's first engine, which needs no entry in the table.
  PlanTarget target(const Problem& problem) {
    const bool is_attention = problem.kind == Problem::Kind::attention_forward ||
                              problem.kind == Problem::Kind::attention_backward;
    return {
        .handle = handles_.cudnn,
        .deterministic = options_.deterministic,
        .entry = is_attention ? AlgorithmEntry{} : entry_of(problem, "cuDNN", cudnnGetVersion()),
        .label = "of cuDNN for " + to_string(problem),
        .trials = &trials_,
        .builders = &builders_};
  }
  /// Returns the table entry of a problem. Deterministic runs use the library's first algorithm, so
  /// they have no table.
  AlgorithmEntry entry_of(const Problem& problem, const char* library, std::size_t version) {
    if (options_.deterministic) return {};
    return {known_, fmt::format("{}, {} {}{}, {}", device_, library, version,
                                options_.tfloat32 ? ", tfloat32" : "", to_string(problem))};
  }

  Stream stream_;
  ContextOptions options_;
  AlgorithmTable& known_;
  std::string device_;
  Handles handles_;
  PlanBuilders builders_;
  Trials trials_;
  std::unordered_map<Problem, std::unique_ptr<MatrixProduct>, ProblemHash> products_;
  std::unordered_map<Problem, std::unique_ptr<Plan>, ProblemHash> plans_;
  /// By problem with two ways: the first one is faster.
  std::unordered_map<Problem, bool, ProblemHash> first_is_faster_;
};

}  // namespace

std::unique_ptr<Library> make_library(const Stream& stream, ContextOptions options,
                                      AlgorithmTable& known) {
  return std::make_unique<DeviceLibrary>(stream, options, known);
}

}  // namespace trireme::ops::cuda
