#include "library.hpp"

#include <unordered_map>

#include "attention_graph.hpp"
#include "convolution.hpp"
#include "linear.hpp"
#include "status.hpp"

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

/// Looking up a product that was met before allocates nothing.
class DeviceLibrary final : public Library {
 public:
  DeviceLibrary(const Stream& stream, bool deterministic)
      : stream_(static_cast<cudaStream_t>(stream.handle)), deterministic_(deterministic), handles_(stream) {}

  bool multiply(Problem::Kind kind, const Linear& l, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y, Write write,
                const Tensor& workspace) override {
    const ProductData data{x.data, w.data, y.data, bias.defined() ? bias.data : nullptr};
    Problem problem = problem_of(kind, l, bias.defined(), l.result_dtype());
    problem.extents[4] = data.alignment();
    std::unique_ptr<MatrixProduct>& product = products_[problem];
    if (!product) product = std::make_unique<MatrixProduct>(handles_.cublas, kind, l, data, deterministic_);
    product->run(stream_, data, write, workspace.data);
    return product->adds_bias();
  }

  void convolve(Problem::Kind kind, const Convolution& c, const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& workspace) override {
    std::unique_ptr<Plan>& plan = plans_[problem_of(kind, c)];
    if (!plan) plan = make_convolution({handles_.cudnn, nullptr, deterministic_}, kind, c);
    plan->run({x.data, w.data, y.data}, workspace.data);
  }

  bool attend(Problem::Kind kind, const Attention& a, const AttentionTensors& t, const Tensor& workspace) override {
    const Problem problem{kind, a.dtype, false, false, {a.batch, a.context, a.heads, a.kv_heads, a.head_width}};
    const auto [place, unknown] = plans_.try_emplace(problem);
    const bool forward = kind == Problem::Kind::attention_forward;
    if (unknown) place->second = (forward ? make_attention_forward : make_attention_backward)({handles_.cudnn, nullptr, deterministic_}, a, workspace_bytes);
    if (!place->second) return false;
    (forward ? run_attention_forward : run_attention_backward)(*place->second, a, t, workspace.data);
    return true;
  }

 private:
  cudaStream_t stream_;
  bool deterministic_;
  Handles handles_;
  std::unordered_map<Problem, std::unique_ptr<MatrixProduct>, ProblemHash> products_;
  std::unordered_map<Problem, std::unique_ptr<Plan>, ProblemHash> plans_;
};

}  // namespace

std::unique_ptr<Library> make_library(const Stream& stream, bool deterministic) { return std::make_unique<DeviceLibrary>(stream, deterministic); }

}  // namespace trireme::ops::cuda
