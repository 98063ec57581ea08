// SPDX-License-Identifier: Apache-2.0
//
// The Frobenius norm of a matrix, and the matrix divided by it. Called by
// src/ops/orthogonalize.cpp. The order of the sums depends on the extents only. Memory traffic: the
// matrix is read twice and the quotient written once.

#include "trireme/kernels/update/matrix_norm.hpp"
#include "kernels/space/elements.hpp"
#include "kernels/space/row_group.hpp"

namespace trireme::kernels {
namespace {

const std::string row_label = "trireme/kernels/matrix_norm_rows";
const std::string norm_label = "trireme/kernels/matrix_norm";
const std::string quotient_label = "trireme/kernels/divide_by_norm";

/// Square sum of one row.
struct SquaresOfRow {
  const float* x;
  std::int64_t width;
  double* sums;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t row, const Group& group) const {
    const float* from = x + row * width;
    const Sums<1> sum = group.sum(width, [=](std::int64_t i) { return from[i] * from[i]; });
    if (group.is_leader()) sums[row] = sum.value[0];
  }
};

/// The root of the sum of all rows.
struct NormOfRows {
  const double* sums;
  std::int64_t rows;
  float floor;
  float* norm;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t, const Group& group) const {
    const double* from = sums;
    const Sums<1> sum = group.add_in_double(
        Sums<1>(), rows, [=](std::int64_t i, double* term) { term[0] = from[i]; });
    if (!group.is_leader()) return;
    const auto root = static_cast<float>(sqrt(sum.value[0]));
    *norm = root < floor ? floor : root;
  }
};

struct Quotient {
  const float* divisor;
  KOKKOS_FUNCTION float operator()(float x) const { return x / *divisor; }
};

}  // namespace

void matrix_norm(const Stream& stream, const float* x, std::int64_t rows, std::int64_t width,
                 float floor, double* row_sums, float* norm) {
  dispatch(stream, [=](const auto& space) {
    for_each_group(space, row_label, rows, SquaresOfRow{x, width, row_sums});
    for_each_group(space, norm_label, 1, NormOfRows{row_sums, rows, floor, norm});
  });
}

template <class T>
void divide_by_norm(const Stream& stream, std::int64_t count, const float* x, const float* norm,
                    T* y) {
  for_each_element(stream, quotient_label, count, Quotient{norm}, std::tuple(y), std::tuple(x));
}
template void divide_by_norm(const Stream&, std::int64_t, const float*, const float*, float*);
template void divide_by_norm(const Stream&, std::int64_t, const float*, const float*, BFloat16*);

}  // namespace trireme::kernels
