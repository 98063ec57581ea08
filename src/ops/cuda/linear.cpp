// SPDX-License-Identifier: Apache-2.0
//
// A linear product on cuBLASLt: description, choice of the algorithm, run.
//
// 1. The constructor describes operands, result and epilogue. It takes the known algorithm if the
//    library still accepts it, otherwise it asks for proposals.
// 2. The first run that assigns (=) times the proposals, keeps the fastest and stores its name.
// 3. Later runs are enqueued through launch().
//
// DeviceLibrary::multiply keeps one MatrixProduct for each problem.

#include "linear.hpp"

#include <memory>
#include <optional>
#include <utility>

#include "library.hpp"
#include "ops/float8.hpp"
#include "trials.hpp"
#include "trireme/base/check.hpp"

namespace trireme::ops::cuda {
namespace {

constexpr int max_proposals = 16;

cudaDataType_t library_type(DType type) {
  switch (type) {
    case DType::float32: return CUDA_R_32F;
    case DType::bfloat16: return CUDA_R_16BF;
    case DType::float16: return CUDA_R_16F;
    default:
      throw Failure(std::string("cuBLASLt products are not supported in ") + to_string(type));
  }
}

/// Returns the library's type of an operand that is read: in float8, e5m2 for gradients and e4m3
/// for others.
cudaDataType_t operand_type(const Linear& linear, const Operand& operand) {
  if (!linear.in_float8()) return library_type(linear.dtype);
  return operand.source == Operand::Source::y ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

/// Returns the library's description of a matrix. Throws Failure.
cublasLtMatrixLayout_t layout_of(cudaDataType_t type, const Operand& operand) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(operand.rows),
                                   static_cast<std::uint64_t>(operand.columns), operand.rows),
        "describing a matrix");
  return layout;
}

/// Returns the library's name of an epilogue. Its GELU is the tanh form, as in activation.hpp.
cublasLtEpilogue_t library_epilogue(Epilogue epilogue, const Operands& operands,
                                    const ProductData& data) {
  switch (epilogue) {
    case Epilogue::none: return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::bias: return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::gelu:
      return data.vector != nullptr ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::gelu_gradient: return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::column_sums:
      return dy_is_first(operands) ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB;
  }
  throw Failure("internal error: unexpected kind of epilogue");
}

}  // namespace

std::int64_t ProductData::alignment() const {
  constexpr std::uintptr_t limit = Arena::alignment;
  std::uintptr_t bits = limit;
  for (const void* pointer : {x, w, y, vector, matrix, added})
    bits |= reinterpret_cast<std::uintptr_t>(pointer);
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

void ProductData::split_codes(const Operands& operands) {
  const auto split = [&](const Operand& operand, const void*& inverse) {
    inverse = pointer(operand);
    pointer(operand) = static_cast<std::byte*>(pointer(operand)) + float8_header_bytes;
  };
  split(operands.first, first_inverse);
  split(operands.second, second_inverse);
}

MatrixProduct::MatrixProduct(cublasLtHandle_t handle, Problem::Kind kind, Epilogue epilogue,
                             const Linear& linear, const ProductData& data, Options options,
                             AlgorithmEntry entry, Trials& trials)
    : handle_(handle),
      operands_(operands_of(kind, linear)),
      no_epilogue_(epilogue == Epilogue::none),
      entry_(std::move(entry)),
      label_(std::move(options.label)),
      trials_(trials) {
  first_ = layout_of(operand_type(linear, operands_.first), operands_.first);
  second_ = layout_of(operand_type(linear, operands_.second), operands_.second);
  result_ = layout_of(library_type(operands_.result_type), operands_.result);
  // float32 products are exact float32 unless the options allow TF32, which is another type of
  // computation.
  const bool rounds = options.tfloat32 && linear.dtype == DType::float32;
  check(cublasLtMatmulDescCreate(
            &description_, rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "describing a product");
  set(CUBLASLT_MATMUL_DESC_TRANSA, operands_.first.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, operands_.second.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, library_epilogue(epilogue, operands_, data));
  if (data.matrix != nullptr) {
    // The matrices of an epilogue must have rows of a multiple of 8 elements. Otherwise there are
    // no proposals, and run() returns false.
    constexpr std::int64_t matrix_rows = 8;
    if (operands_.result.rows % matrix_rows != 0) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, operands_.result.rows);
  }
  if (data.vector != nullptr)
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
        epilogue == Epilogue::column_sums ? CUDA_R_32F : library_type(operands_.result_type));
  set_pointers(data);
  if (!use_known_algorithm()) propose(data.alignment(), options.deterministic ? 1 : max_proposals);
  ensure(!no_epilogue_ || !proposals_.empty(),
         "cuBLASLt has no algorithm for a linear layer of {} rows from {} to {} in {}", linear.rows,
         linear.in, linear.out, linear.in_float8() ? "float8" : to_string(linear.dtype));
}

MatrixProduct::~MatrixProduct() {
  if (description_ != nullptr) cublasLtMatmulDescDestroy(description_);
  for (cublasLtMatrixLayout_t layout : {first_, second_, result_})
    if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
}

template <class Value>
void MatrixProduct::set(cublasLtMatmulDescAttributes_t attribute, const Value& value) const {
  check(cublasLtMatmulDescSetAttribute(description_, attribute, &value, sizeof value),
        "describing a product");
}

void MatrixProduct::set_pointers(const ProductData& data) const {
  if (data.vector != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, data.vector);
  if (data.matrix != nullptr) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, data.matrix);
  if (data.first_inverse != nullptr) set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, data.first_inverse);
  if (data.second_inverse != nullptr)
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, data.second_inverse);
}

/// Takes the known algorithm if there is one and the library accepts it; it is then the only
/// proposal. Returns whether it did.
bool MatrixProduct::use_known_algorithm() {
  cublasLtMatmulHeuristicResult_t known{};
  const std::string* name = entry_.algorithm();
  if (name == nullptr || !parse_words(*name, known.algo.data)) return false;
  cublasLtMatmulHeuristicResult_t check_result{};
  const bool works =
      cublasLtMatmulAlgoCheck(handle_, description_, first_, second_, result_, result_, &known.algo,
                              &check_result) == CUBLAS_STATUS_SUCCESS &&
      check_result.workspaceSize <= static_cast<std::size_t>(usable_workspace_bytes);
  if (!works) clear_launch_error();
  if (works) proposals_ = {known};
  return works;
}

/// Asks the library for its proposals, best first. Leaves none if it does not support the problem.
void MatrixProduct::propose(std::int64_t alignment, int limit) {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "describing a product");
  const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                        cublasStatus_t (*)(cublasLtMatmulPreference_t)>
      owner(preference, cublasLtMatmulPreferenceDestroy);
  const std::size_t max_workspace_bytes = usable_workspace_bytes;
  check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &max_workspace_bytes, sizeof max_workspace_bytes),
        "describing a product");
  // Without this attribute the library assumes an alignment of 256 bytes.
  const auto aligned = static_cast<std::uint32_t>(alignment);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &aligned, sizeof aligned),
          "describing a product");
  }
  proposals_.resize(static_cast<std::size_t>(limit));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, description_, first_, second_, result_, result_,
                                     preference, limit, proposals_.data(), &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "choosing an algorithm");
  clear_launch_error();
  proposals_.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(count) : 0);
  std::erase_if(proposals_, [](const cublasLtMatmulHeuristicResult_t& proposal) {
    return proposal.state != CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t MatrixProduct::multiply(const Stream& stream, const ProductData& data, Write write,
                                       void* workspace,
                                       const cublasLtMatmulAlgo_t& algorithm) const {
  // The result is alpha first second + beta addend. The addend is the result itself, or the tensor
  // `added`.
  set_pointers(data);
  void* result = data.pointer(operands_.result);
  const void* addend = data.added != nullptr ? data.added : result;
  const float alpha = 1, beta = write == Write::add || data.added != nullptr ? 1 : 0;
  return cublasLtMatmul(handle_, description_, &alpha, data.pointer(operands_.first), first_,
                        data.pointer(operands_.second), second_, &beta, addend, result_, result,
                        result_, &algorithm, workspace,
                        static_cast<std::size_t>(usable_workspace_bytes),
                        static_cast<cudaStream_t>(stream.handle));
}

bool MatrixProduct::run(const Stream& stream, const ProductData& data, Write write,
                        void* workspace) {
  if (proposals_.empty()) return false;
  const auto multiply_by = [&](const cublasLtMatmulHeuristicResult_t& proposal) {
    return multiply(stream, data, write, workspace, proposal.algo);
  };
  // 1. The algorithm is settled: enqueue.
  if (algorithm_settled_) {
    launch(stream, [this, data, write, workspace](const Stream& to) {
      check_launch_by(multiply(to, data, write, workspace, proposals_.front().algo), label_);
    });
    return true;
  }
  const DirectLaunches direct(stream);
  // 2. Trials overwrite the result, so only a run that assigns it makes them.
  std::optional<std::size_t> fastest;
  if (proposals_.size() > 1 && write == Write::assign) {
    fastest = trials_.fastest(
        proposals_.size(),
        [&](std::size_t i) { return multiply_by(proposals_[i]) == CUBLAS_STATUS_SUCCESS; },
        {workspace, usable_workspace_bytes});
    proposals_ = {proposals_[fastest.value_or(0)]};
  }
  // 3. Run the first proposal. The library may propose an algorithm that it then cannot run with
  //    this epilogue.
  const cublasStatus_t status = multiply_by(proposals_.front());
  if (status == CUBLAS_STATUS_NOT_SUPPORTED && !no_epilogue_) {
    clear_launch_error();
    proposals_.clear();
    return false;
  }
  check_launch_by(status, label_);
  if (fastest) entry_.set(name_of(proposals_.front().algo.data));
  algorithm_settled_ = proposals_.size() == 1;
  return true;
}

}  // namespace trireme::ops::cuda
