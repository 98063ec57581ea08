#include "linear.hpp"

#include <memory>

#include "library.hpp"
#include "timing.hpp"

namespace trireme::ops::cuda {
namespace {

constexpr int most_proposals = 8;

cudaDataType_t library_type(DType type) {
  switch (type) {
    case DType::float32: return CUDA_R_32F;
    case DType::bfloat16: return CUDA_R_16BF;
    default: throw Failure(std::string("cuBLASLt is not asked for products in ") + to_string(type));
  }
}

cublasLtMatrixLayout_t layout_of(DType type, const Operand& operand) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, library_type(type), static_cast<std::uint64_t>(operand.rows), static_cast<std::uint64_t>(operand.columns),
                                   operand.rows),
        "describing a matrix");
  return layout;
}

}  // namespace

std::int64_t ProductData::alignment() const {
  constexpr std::uintptr_t most = Arena::alignment;
  std::uintptr_t bits = most;
  for (const void* pointer : {x, w, y, bias}) bits |= reinterpret_cast<std::uintptr_t>(pointer);
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

MatrixProduct::MatrixProduct(cublasLtHandle_t handle, Problem::Kind kind, const Linear& linear, const ProductData& data, bool deterministic)
    : handle_(handle), operands_(operands_of(kind, linear)) {
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
  const auto finish_with = [&](cublasLtEpilogue_t epilogue) {
    check(cublasLtMatmulDescSetAttribute(description_, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue), "describing a product");
    propose(data.alignment(), deterministic ? 1 : most_proposals);
  };
  if (data.bias != nullptr) {
    set_bias(data.bias);
    finish_with(CUBLASLT_EPILOGUE_BIAS);
    adds_bias_ = !proposals_.empty();
  }
  if (!adds_bias_) finish_with(CUBLASLT_EPILOGUE_DEFAULT);
  ensure(!proposals_.empty(), "cuBLASLt has no algorithm for a linear layer of {} rows from {} to {} in {}", linear.rows, linear.in, linear.out,
         to_string(linear.dtype));
}

MatrixProduct::~MatrixProduct() {
  if (description_ != nullptr) cublasLtMatmulDescDestroy(description_);
  for (cublasLtMatrixLayout_t layout : {first_, second_, result_})
    if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
}

void MatrixProduct::set_bias(const void* bias) const {
  check(cublasLtMatmulDescSetAttribute(description_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias), "describing a product");
}

/// The library's proposals, the best by its own judgement first; none where it cannot.
void MatrixProduct::propose(std::int64_t alignment, int most) {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "describing a product");
  const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, cublasStatus_t (*)(cublasLtMatmulPreference_t)> owner(
      preference, cublasLtMatmulPreferenceDestroy);
  const std::size_t most_workspace = workspace_bytes;
  check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most_workspace, sizeof most_workspace),
        "describing a product");
  const auto aligned = static_cast<std::uint32_t>(alignment);  // it takes 256 bytes for granted where nothing is said
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &aligned, sizeof aligned), "describing a product");
  }
  proposals_.resize(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, description_, first_, second_, result_, result_, preference, most, proposals_.data(), &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "choosing an algorithm");
  proposals_.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(count) : 0);
  std::erase_if(proposals_, [](const cublasLtMatmulHeuristicResult_t& proposal) { return proposal.state != CUBLAS_STATUS_SUCCESS; });
}

cublasStatus_t MatrixProduct::multiply(cudaStream_t stream, const ProductData& data, Write write, void* workspace,
                                       const cublasLtMatmulAlgo_t& algorithm) const {
  const auto place = [&](const Operand& operand) { return operand.of == Operand::Of::x ? data.x : operand.of == Operand::Of::w ? data.w : data.y; };
  void* result = place(operands_.result);
  const float alpha = 1, beta = write == Write::add ? 1 : 0;
  return cublasLtMatmul(handle_, description_, &alpha, place(operands_.first), first_, place(operands_.second), second_, &beta, result, result_, result,
                        result_, &algorithm, workspace, static_cast<std::size_t>(workspace_bytes), stream);
}

void MatrixProduct::run(cudaStream_t stream, const ProductData& data, Write write, void* workspace) {
  if (adds_bias_) set_bias(data.bias);
  if (proposals_.size() > 1 && write == Write::assign) {  // trials write the result that is written anyway
    proposals_ = {proposals_[fastest_of(stream, proposals_.size(),
                                        [&](std::size_t i) { return multiply(stream, data, write, workspace, proposals_[i].algo) == CUBLAS_STATUS_SUCCESS; })]};
  }
  check(multiply(stream, data, write, workspace, proposals_.front().algo), "a matrix product");
}

}  // namespace trireme::ops::cuda
