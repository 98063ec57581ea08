#include "linear.hpp"

#include <memory>

#include "library.hpp"
#include "status.hpp"

namespace trireme::ops::cuda {
namespace {

cudaDataType_t library_type(DType type) {
  switch (type) {
    case DType::float32: return CUDA_R_32F;
    case DType::bfloat16: return CUDA_R_16BF;
    default: throw Failure(std::string("cuBLASLt is not asked for products in ") + to_string(type));
  }
}

cublasLtMatrixLayout_t layout_of(DType type, const Operand& operand) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, library_type(type), static_cast<std::uint64_t>(operand.rows), static_cast<std::uint64_t>(operand.columns), operand.rows),
        "describing a matrix");
  return layout;
}

}  // namespace

MatrixProduct::MatrixProduct(cublasLtHandle_t handle, Problem::Kind kind, const Linear& linear) : handle_(handle), operands_(operands_of(kind, linear)) {
  first_ = layout_of(linear.dtype, operands_.first);
  second_ = layout_of(linear.dtype, operands_.second);
  result_ = layout_of(operands_.result_type, operands_.result);
  // float32 is float32: tensor cores that round it to 10 bits are another type of computation.
  check(cublasLtMatmulDescCreate(&description_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  const auto turn = [&](cublasLtMatmulDescAttributes_t attribute, bool turned) {
    const cublasOperation_t operation = turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublasLtMatmulDescSetAttribute(description_, attribute, &operation, sizeof operation), "describing a product");
  };
  turn(CUBLASLT_MATMUL_DESC_TRANSA, operands_.first.turned);
  turn(CUBLASLT_MATMUL_DESC_TRANSB, operands_.second.turned);

  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "describing a product");
  const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, cublasStatus_t (*)(cublasLtMatmulPreference_t)> owner(preference, cublasLtMatmulPreferenceDestroy);
  const std::size_t most = workspace_bytes;
  check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most), "describing a product");
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, description_, first_, second_, result_, result_, preference, 1, &found, &count), "choosing an algorithm");
  ensure(count > 0, "cuBLASLt has no algorithm for a linear layer of {} rows from {} to {} in {}", linear.rows, linear.in, linear.out, to_string(linear.dtype));
  algorithm_ = found.algo;
}

MatrixProduct::~MatrixProduct() {
  if (description_ != nullptr) cublasLtMatmulDescDestroy(description_);
  for (cublasLtMatrixLayout_t layout : {first_, second_, result_})
    if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
}

void MatrixProduct::run(cudaStream_t stream, void* x, void* w, void* y, Write write, void* workspace) const {
  const auto data = [&](const Operand& operand) { return operand.of == Operand::Of::x ? x : operand.of == Operand::Of::w ? w : y; };
  void* result = data(operands_.result);
  const float alpha = 1, beta = write == Write::add ? 1 : 0;
  check(cublasLtMatmul(handle_, description_, &alpha, data(operands_.first), first_, data(operands_.second), second_, &beta, result, result_, result, result_, &algorithm_, workspace,
                       static_cast<std::size_t>(workspace_bytes), stream),
        "a matrix product");
}

}  // namespace trireme::ops::cuda
