#include "library.hpp"

#include <unordered_map>

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
  explicit DeviceLibrary(const Stream& stream) : stream_(static_cast<cudaStream_t>(stream.handle)), handles_(stream) {}

  void multiply(Problem::Kind kind, const Linear& l, const Tensor& x, const Tensor& w, const Tensor& y, Write write, const Tensor& workspace) override {
    std::unique_ptr<MatrixProduct>& product = products_[problem_of(kind, l, false, l.result_dtype())];
    if (!product) product = std::make_unique<MatrixProduct>(handles_.cublas, kind, l);
    product->run(stream_, x.data, w.data, y.data, write, workspace.data);
  }

  void convolve(Problem::Kind kind, const Convolution& c, const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& workspace) override {
    std::unique_ptr<Plan>& plan = plans_[problem_of(kind, c)];
    if (!plan) plan = make_convolution(handles_.cudnn, kind, c);
    plan->run({x.data, w.data, y.data}, workspace.data);
  }

 private:
  cudaStream_t stream_;
  Handles handles_;
  std::unordered_map<Problem, std::unique_ptr<MatrixProduct>, ProblemHash> products_;
  std::unordered_map<Problem, std::unique_ptr<Plan>, ProblemHash> plans_;
};

}  // namespace

std::unique_ptr<Library> make_library(const Stream& stream) { return std::make_unique<DeviceLibrary>(stream); }

}  // namespace trireme::ops::cuda
