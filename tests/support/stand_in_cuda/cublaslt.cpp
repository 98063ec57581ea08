// SPDX-License-Identifier: Apache-2.0
//
// The stand-in for cuBLASLt.
//
// The real library describes matrices and products, which needs no device, and checks the
// attributes. The stand-in proposes algorithms and checks each product against the rules in the
// library's documentation: shapes, types, alignment, memory.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <cublasLt.h>

#include "record.hpp"
#include "state.hpp"

struct cublasLtContext {
  int device;
};

namespace stand_in {
namespace {

template <class Value>
Value of(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute) {
  Value value{};
  std::size_t written = 0;
  if (REAL_FUNCTION(cublasLtMatmulDescGetAttribute)(product, attribute, &value, sizeof value,
                                                    &written) != CUBLAS_STATUS_SUCCESS)
    fault("the attributes of a product cannot be read");
  return value;
}

bool is_float8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

struct Matrix {
  std::int64_t rows, columns, stride;
  cudaDataType_t type;
  std::size_t bytes() const {
    return static_cast<std::size_t>(((columns - 1) * stride + rows) * (type == CUDA_R_32F ? 4
                                                                       : is_float8(type)  ? 1
                                                                                          : 2));
  }
};

template <class Value>
Value of(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute) {
  Value value{};
  std::size_t written = 0;
  if (REAL_FUNCTION(cublasLtMatrixLayoutGetAttribute)(layout, attribute, &value, sizeof value,
                                                      &written) != CUBLAS_STATUS_SUCCESS)
    fault("the attributes of a matrix cannot be read");
  return value;
}

Matrix matrix_of(cublasLtMatrixLayout_t layout) {
  return {static_cast<std::int64_t>(of<std::uint64_t>(layout, CUBLASLT_MATRIX_LAYOUT_ROWS)),
          static_cast<std::int64_t>(of<std::uint64_t>(layout, CUBLASLT_MATRIX_LAYOUT_COLS)),
          of<std::int64_t>(layout, CUBLASLT_MATRIX_LAYOUT_LD),
          static_cast<cudaDataType_t>(of<std::uint32_t>(layout, CUBLASLT_MATRIX_LAYOUT_TYPE))};
}

/// A matrix product: D = epilogue(op(A) op(B)).
struct Product {
  Matrix a, b, d;
  bool transposed_a, transposed_b;
  std::uint32_t epilogue;

  Product(cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t first, cublasLtMatrixLayout_t second,
          cublasLtMatrixLayout_t result)
      : a(matrix_of(first)),
        b(matrix_of(second)),
        d(matrix_of(result)),
        transposed_a(of<std::int32_t>(product, CUBLASLT_MATMUL_DESC_TRANSA) != CUBLAS_OP_N),
        transposed_b(of<std::int32_t>(product, CUBLASLT_MATMUL_DESC_TRANSB) != CUBLAS_OP_N),
        epilogue(of<std::uint32_t>(product, CUBLASLT_MATMUL_DESC_EPILOGUE)) {}

  bool fits() const {
    const std::int64_t m = transposed_a ? a.columns : a.rows, k = transposed_a ? a.rows : a.columns,
                       inner = transposed_b ? b.columns : b.rows,
                       n = transposed_b ? b.rows : b.columns;
    return m == d.rows && n == d.columns && k == inner && m > 0 && n > 0 && k > 0 &&
           a.stride >= a.rows && b.stride >= b.rows && d.stride >= d.rows &&
           (float8() ? fits_float8() : a.type == b.type);
  }
  bool float8() const { return is_float8(a.type) || is_float8(b.type); }
  /// The library's rules for float8 on tensor cores of compute capability 8.9 and 9.0.
  bool fits_float8() const {
    const bool types = is_float8(a.type) && is_float8(b.type) &&
                       (a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3);
    const bool extents =
        (a.rows | a.columns | a.stride | b.rows | b.columns | b.stride | d.rows | d.stride) % 16 ==
        0;
    return types && extents && transposed_a && !transposed_b &&
           (d.type == CUDA_R_32F || d.type == CUDA_R_16BF) &&
           (epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS);
  }
  /// Returns a hash of the problem. An algorithm carries it, so that its use for another problem is
  /// detected.
  std::uint64_t problem_hash() const {
    std::uint64_t problem_hash = epilogue;
    for (const std::int64_t part :
         {a.rows, a.columns, b.columns, d.rows, static_cast<std::int64_t>(a.type),
          static_cast<std::int64_t>(b.type), static_cast<std::int64_t>(d.type),
          std::int64_t{transposed_a}, std::int64_t{transposed_b}})
      problem_hash = problem_hash * 1000003 + static_cast<std::uint64_t>(part);
    return problem_hash;
  }
  bool has_vector() const {
    return epilogue &
           (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB);
  }
  bool has_matrix() const { return epilogue & 128; }  // the library calls it auxiliary
  std::size_t vector_bytes() const {
    return static_cast<std::size_t>((epilogue == CUBLASLT_EPILOGUE_BGRADB ? d.columns : d.rows) *
                                    (d.type == CUDA_R_32F ? 4 : 2));
  }
};

constexpr std::uint64_t algorithm_tag = 0x7374616e642d696e;

bool refuses(const Product& product) {
  return std::getenv("STAND_IN_CUDA_PLAIN") != nullptr &&
         product.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

STAND_IN_API cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  touch_device("cuBLASLt");
  *handle = new cublasLtContext{current_device()};
  return CUBLAS_STATUS_SUCCESS;
}

STAND_IN_API cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

STAND_IN_API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t first,
    cublasLtMatrixLayout_t second, cublasLtMatrixLayout_t third, cublasLtMatrixLayout_t result,
    cublasLtMatmulPreference_t preference, int max_results,
    cublasLtMatmulHeuristicResult_t results[], int* count) {
  const Product product(description, first, second, result);
  *count = 0;
  if (!product.fits() || matrix_of(third).rows != product.d.rows ||
      matrix_of(third).columns != product.d.columns) {
    fault("a product whose matrices do not fit");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (refuses(product)) return CUBLAS_STATUS_NOT_SUPPORTED;
  std::uint32_t alignment = 256;
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    std::uint32_t said = 0;
    std::size_t written = 0;
    REAL_FUNCTION(cublasLtMatmulPreferenceGetAttribute)(preference, attribute, &said, sizeof said,
                                                        &written);
    alignment = std::min(alignment, said);
  }
  for (int i = 0; i < max_results; ++i) {
    results[i] = {};
    results[i].state = i == 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    results[i].workspaceSize = std::size_t{1} << 20;
    results[i].algo.data[0] = algorithm_tag;
    results[i].algo.data[1] = product.problem_hash();
    results[i].algo.data[2] = alignment;
    results[i].algo.data[3] = static_cast<std::uint64_t>(i);
    ++*count;
  }
  return CUBLAS_STATUS_SUCCESS;
}

STAND_IN_API cublasStatus_t cublasLtMatmulAlgoCheck(
    cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t first,
    cublasLtMatrixLayout_t second, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t result,
    const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* checked) {
  const Product product(description, first, second, result);
  if (algorithm->data[0] != algorithm_tag || algorithm->data[1] != product.problem_hash())
    return CUBLAS_STATUS_INVALID_VALUE;
  *checked = {};
  checked->workspaceSize = std::size_t{1} << 20;
  return CUBLAS_STATUS_SUCCESS;
}

STAND_IN_API cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle,
                                           cublasLtMatmulDesc_t description, const void* alpha,
                                           const void* a, cublasLtMatrixLayout_t first,
                                           const void* b, cublasLtMatrixLayout_t second,
                                           const void* beta, const void* c, cublasLtMatrixLayout_t,
                                           void* d, cublasLtMatrixLayout_t result,
                                           const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                                           std::size_t workspace_bytes, cudaStream_t stream) {
  if (begin_launch(LaunchKind::product) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  count_on_stream(stream, Counter::product);
  if (std::getenv("STAND_IN_CUDA_SLOW_EPILOGUES") != nullptr) {
    const auto epilogue = of<std::uint32_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE);
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT && epilogue != CUBLASLT_EPILOGUE_BIAS) add_time(1);
  }
  // 1. Handle, stream and the description of the product.
  const Product product(description, first, second, result);
  const int device = handle->device;
  if (device_of_stream(stream, "a product") != device || current_device() != device)
    fault("a product on a stream of another device than the handle's, or the thread's");
  if (!product.fits()) fault("a product whose matrices do not fit");
  if (alpha == nullptr || beta == nullptr) fault("a product without factors");
  if (c != d) expect_on_device(c, product.d.bytes(), device, "what is added to a product");
  if (algorithm->data[0] != algorithm_tag || algorithm->data[1] != product.problem_hash())
    fault("the algorithm of a product belongs to another problem");
  // 2. Memory of the matrices and the workspace.
  expect_on_device(a, product.a.bytes(), device, "a product's first matrix");
  expect_on_device(b, product.b.bytes(), device, "a product's second matrix");
  expect_on_device(d, product.d.bytes(), device, "a product's result");
  expect_on_device(workspace, workspace_bytes, device, "a product's workspace");
  // 3. Alignment.
  const auto unaligned = [&](const void* address, std::uint64_t to) {
    return reinterpret_cast<std::uintptr_t>(address) % to != 0;
  };
  if (unaligned(workspace, 256)) fault("a product's workspace is not aligned to 256 bytes");
  for (const void* matrix : {a, b, static_cast<const void*>(d)})
    if (unaligned(matrix, algorithm->data[2]))
      fault("a product's matrix is less aligned than its preference");
  if (product.float8()) {
    for (const void* matrix : {a, b, static_cast<const void*>(d)})
      if (unaligned(matrix, 16)) fault("a float8 product's matrix is not aligned to 16 bytes");
    for (const auto attribute :
         {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER})
      expect_on_device(of<const void*>(description, attribute), sizeof(float), device,
                       "a float8 product's scale");
  }
  // 4. Bias or sums, and the second result.
  if (product.has_vector()) {
    const auto* const vector = of<const void*>(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    expect_on_device(vector, product.vector_bytes(), device, "a product's bias or sums");
  }
  if (product.has_matrix()) {
    const auto stride = of<std::int64_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
    if (stride % 8 != 0 || stride < product.d.rows)
      fault("the row length of a product's second result is not divisible by 8");
    const auto* const matrix =
        of<const void*>(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
    if (unaligned(matrix, 16)) fault("a product's second result is not aligned to 16 bytes");
    expect_on_device(matrix,
                     Matrix{product.d.rows, product.d.columns, stride, product.d.type}.bytes(),
                     device, "a product's second result");
  }
  return CUBLAS_STATUS_SUCCESS;
}
