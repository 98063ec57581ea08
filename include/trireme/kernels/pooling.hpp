#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Square windows over images [batch, height, width, channels]; padding < kernel <= 15, so that no
/// window lies outside the image and the place of an element in its window fits a byte.
struct PoolWindows {
  std::int64_t batch = 0, height = 0, width = 0, channels = 0;
  std::int64_t out_height = 0, out_width = 0;
  std::int64_t kernel = 0, stride = 0, padding = 0;
};

/// y (=) maximum of each window, winners (=) its place in the window: the first of equals, or the
/// first NaN.
template <class T>
void max_pool_forward(const Stream&, const PoolWindows&, const T* x, T* y, std::uint8_t* winners);
/// dx (=) sum of dy over the windows that the element won, in row-major order of the windows.
template <class T>
void max_pool_backward(const Stream&, const PoolWindows&, const T* dy, const std::uint8_t* winners,
                       T* dx);

/// y [batch, columns] = or += scale times the sum over the rows of x [batch, rows, columns]. Each
/// column is summed in one order (float32, a partial sum every 128 rows; on a device of every slice
/// too): the bits do not depend on the number of threads.
struct RowSums {
  std::int64_t batch = 1, rows = 0, columns = 0;
  float scale = 1;
  bool add = false;
};
/// Slices into which a device cuts an image's rows.
std::int64_t row_slice_count(const RowSums&);
/// Numbers of the workspace `partials`.
std::int64_t row_sum_partial_count(const RowSums&);
template <class T, class Out>  // T or float
void sum_rows(const Stream&, const RowSums&, const T* x, float* partials, Out* y);

/// y [batch, rows, columns] (=) scale times x [batch, columns], for every row.
template <class T>
void broadcast_rows(const Stream&, const RowSums&, const T* x, T* y);

}  // namespace trireme::kernels
