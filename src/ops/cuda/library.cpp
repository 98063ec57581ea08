#include "library.hpp"

#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "attention_graph.hpp"
#include "convolution.hpp"
#include "linear.hpp"
#include "status.hpp"
#include "timing.hpp"

namespace trireme::ops::cuda {
namespace {

/// Handles of the two libraries, made for the device of a stream.
struct Handles {
  cublasLtHandle_t cublas = nullptr;
  cudnnHandle_t cudnn = nullptr;

  explicit Handles(const Stream& stream) {
    check(cudaSetDevice(stream.device.index), "choosing the device");
    check(cublasLtCreate(&cublas), "starting");
    check(cudnnCreate(&cudnn), "starting");
    check(cudnnSetStream(cudnn, static_cast<cudaStream_t>(stream.handle)), "starting");
  }
  ~Handles() {
    if (cudnn != nullptr) cudnnDestroy(cudnn);
    if (cublas != nullptr) cublasLtDestroy(cublas);
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
};

std::string device_name(Device device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device.index), "asking the device for its name");
  return properties.name;
}

/// Where its usable_workspace_bytes begin.
void* usable(const Tensor& workspace) {
  const auto begin = reinterpret_cast<std::uintptr_t>(workspace.data);
  return static_cast<std::byte*>(workspace.data) +
         (workspace_alignment - begin % workspace_alignment) % workspace_alignment;
}

/// Looking up a product that was met before allocates nothing.
class DeviceLibrary final : public Library {
 public:
  DeviceLibrary(const Stream& stream, ContextOptions options, Algorithms& known)
      : stream_(stream),
        options_(options),
        known_(known),
        device_(device_name(stream.device)),
        handles_(stream) {}

  bool multiply(Problem::Kind kind, Epilogue epilogue, const Linear& l, const ProductTensors& t,
                Write write, const Tensor& workspace) override {
    const auto place = [](const Tensor& tensor) {
      return tensor.defined() ? tensor.data : nullptr;
    };
    ProductData data{t.x.data,        t.w.data,        t.y.data,
                     place(t.vector), place(t.matrix), place(t.added)};
    if (l.in_float8()) data.part_codes(operands_of(kind, l));
    Problem problem = problem_of(kind, l, t.vector.defined(), l.result_dtype());
    problem.extents[4] = data.alignment();
    problem.extents[5] = static_cast<std::int64_t>(epilogue);
    problem.extents[6] = static_cast<std::int64_t>(l.in_float8());
    std::unique_ptr<MatrixProduct>& product = products_[problem];
    if (!product)
      product = std::make_unique<MatrixProduct>(
          handles_.cublas, kind, epilogue, l, data,
          MatrixProduct::Options{options_.deterministic, options_.tfloat32},
          choice_of(problem, "cuBLASLt", cublasLtGetVersion()));
    return product->run(stream_, data, write, usable(workspace));
  }

  void convolve(Problem::Kind kind, const Convolution& c, const Tensor& x, const Tensor& w,
                const Tensor& y, const Tensor& workspace) override {
    const Problem problem = problem_of(kind, c);
    std::unique_ptr<Plan>& plan = plans_[problem];
    if (!plan)
      plan = make_convolution(target(choice_of(problem, "cuDNN", cudnnGetVersion())), kind, c,
                              options_.tfloat32);
    check(start(*plan, [x, w, y, place = usable(workspace)](
                           Plan& to) { return to.run({x.data, w.data, y.data}, place); }),
          "running a plan of cuDNN");
  }

  bool convolve_with_sums(const Convolution& c, const Tensor& x, const Tensor& w, const Tensor& y,
                          const Tensor& sums, const Tensor& workspace) override {
    const std::unique_ptr<Plan>& plan =
        plan_with_sums(problem_of(Problem::Kind::convolution_statistics_forward, c), c);
    return plan &&
           start(*plan, [x, w, y, sums, place = usable(workspace)](Plan& to) {
             return to.run({x.data, w.data, y.data, sums.data, sums.as<float>() + sums.shape[1]},
                           place);
           }) == CUDNN_STATUS_SUCCESS;
  }

  bool is_faster_with_sums(const Convolution& c, const std::function<bool(bool)>& do_it) override {
    const Problem problem = problem_of(Problem::Kind::convolution_statistics_forward, c);
    const auto [place, unknown] = with_sums_.try_emplace(problem, false);
    if (!unknown) return place->second;
    const Choice choice = choice_of(problem, "cuDNN", cudnnGetVersion());
    const std::string* known = choice.algorithm();
    if (known != nullptr && *known == Algorithms::one_by_one) return false;
    const std::unique_ptr<Plan>& plan = plan_with_sums(problem, c);
    if (known != nullptr && plan && plan->engines() == std::vector<std::string>{*known})
      return place->second = true;
    place->second =
        plan && fastest_of(stream_, 2, [&](std::size_t i) { return do_it(i == 0); }) == 0;
    choice.keep(place->second ? plan->engines().front() : Algorithms::one_by_one);
    return place->second;
  }

  bool attend(Problem::Kind kind, const Attention& a, const AttentionTensors& t,
              const Tensor& workspace) override {
    const Problem problem{
        kind, a.dtype, false, false, {a.batch, a.context, a.heads, a.kv_heads, a.head_width}};
    const auto [place, unknown] = plans_.try_emplace(problem);
    const bool forward = kind == Problem::Kind::attention_forward;
    if (unknown)
      place->second = (forward ? make_attention_forward : make_attention_backward)(
          target({}), a, usable_workspace_bytes);
    if (!place->second) {
      if (unknown) choice_of(problem, "cuDNN", cudnnGetVersion()).keep(Algorithms::own_kernel);
      return false;
    }
    const auto run = forward ? run_attention_forward : run_attention_backward;
    check(start(*place->second,
                [run, a, t, place = usable(workspace)](Plan& to) { return run(to, a, t, place); }),
          "running a plan of cuDNN");
    return true;
  }

 private:
  /// run(plan), launched; the first run of a plan at once, whose status tells whether it can be
  /// run.
  template <class Run>
  cudnnStatus_t start(Plan& plan, const Run& run) {
    if (!plan.proven()) {
      const DirectLaunches direct(stream_);
      return run(plan);
    }
    launch(stream_,
           [plan = &plan, run](const Stream&) { check(run(*plan), "running a plan of cuDNN"); });
    return CUDNN_STATUS_SUCCESS;
  }
  const std::unique_ptr<Plan>& plan_with_sums(const Problem& problem, const Convolution& c) {
    const auto [place, unknown] = plans_.try_emplace(problem);
    if (unknown)
      place->second =
          make_convolution_with_sums(target(choice_of(problem, "cuDNN", cudnnGetVersion())), c);
    return place->second;
  }
  PlanTarget target(Choice choice) const {
    return {handles_.cudnn, nullptr, options_.deterministic, std::move(choice)};
  }
  /// Where every run takes a library's first algorithm there is nothing to choose.
  Choice choice_of(const Problem& problem, const char* library, std::size_t version) {
    if (options_.deterministic) return {};
    return {known_, fmt::format("{}, {} {}{}, {}", device_, library, version,
                                options_.tfloat32 ? ", tfloat32" : "", to_string(problem))};
  }

  Stream stream_;
  ContextOptions options_;
  Algorithms& known_;
  std::string device_;
  Handles handles_;
  std::unordered_map<Problem, std::unique_ptr<MatrixProduct>, ProblemHash> products_;
  std::unordered_map<Problem, std::unique_ptr<Plan>, ProblemHash> plans_;
  std::unordered_map<Problem, bool, ProblemHash>
      with_sums_;  ///< which convolutions are taken with sums
};

}  // namespace

std::unique_ptr<Library> make_library(const Stream& stream, ContextOptions options,
                                      Algorithms& known) {
  return std::make_unique<DeviceLibrary>(stream, options, known);
}

}  // namespace trireme::ops::cuda
