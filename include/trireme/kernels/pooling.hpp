// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Square pooling windows over images [batch, height, width, channels].
/// Requires padding < kernel <= 15, so that every window overlaps the image and the index of an
/// element in its window fits a byte.
/// Windows of kernel x kernel elements. The padding is smaller than the kernel, so every window has
/// an element of the image.
struct PoolWindows {
  std::int64_t batch = 0, height = 0, width = 0, channels = 0;
  std::int64_t out_height = 0, out_width = 0;
  std::int64_t kernel = 0, stride = 0, padding = 0;
};

/// y = maximum of each window; winners = its index in the window (argmax): the first of equal
/// values, or the first NaN.
template <class T>
void max_pool_forward(const Stream&, const PoolWindows&, const T* x, T* y, std::uint8_t* winners);
/// dx = sum of dy over the windows whose maximum the element was, in row-major order of the
/// windows.
template <class T>
void max_pool_backward(const Stream&, const PoolWindows&, const T* dy, const std::uint8_t* winners,
                       T* dx);

/// y = mean of each window; elements outside of the image are 0.
template <class T>
void mean_pool_forward(const Stream&, const PoolWindows&, const T* x, T* y);
/// dx = sum of dy over the windows that an element is in, over kernel^2, in row-major order.
template <class T>
void mean_pool_backward(const Stream&, const PoolWindows&, const T* dy, T* dx);

/// Arguments of sum_rows() and broadcast_rows(). sum_rows(): y [batch, columns] = or, if `add`, +=
/// scale * (sum over the rows of x [batch, rows, columns]).
/// Each column has one order of summation: float32 with a partial sum per 128 rows and, on a
/// device, per slice. Results do not depend on the number of threads.
struct RowSums {
  std::int64_t batch = 1, rows = 0, columns = 0;
  float scale = 1;
  bool add = false;
};
/// Returns the number of slices into which a device cuts the rows of an image.
std::int64_t row_slice_count(const RowSums&);
/// Returns the number of floats in the workspace `partials`.
std::int64_t row_sum_partial_count(const RowSums&);
// Enqueues the sum. Out is T or float. Reads x once.
template <class T, class Out>
void sum_rows(const Stream&, const RowSums&, const T* x, float* partials, Out* y);

/// y [batch, rows, columns] = scale * x [batch, columns], repeated for every row.
template <class T>
void broadcast_rows(const Stream&, const RowSums&, const T* x, T* y);

}  // namespace trireme::kernels
