// SPDX-License-Identifier: Apache-2.0
//
// Mean pooling forward and backward. Called by src/ops/pooling.cpp.
// A piece is a pixel, on a device, too; neighboring threads take neighboring channels. The gradient
// is gathered: one thread writes each element, so results do not depend on the number of threads.
// Memory traffic: inputs are read once and outputs are written once; overlapping windows are read
// again from cache.

#include "kernels/space/launch.hpp"
#include "trireme/kernels/pooling.hpp"

namespace trireme::kernels {
namespace {

const std::string mean_forward_label = "trireme/kernels/mean_pool_forward";
const std::string mean_backward_label = "trireme/kernels/mean_pool_backward";

/// A pixel of y: the sum of its window over kernel^2. On a device, too, a piece is a pixel.
template <class T>
struct MeanPoolForward {
  PoolWindows w;
  const T* x;
  T* y;
  float scale;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return w.channels; }
  KOKKOS_FUNCTION void operator()(std::int64_t pixel, std::int64_t begin, std::int64_t end) const {
    const std::int64_t over = pixel / w.out_width, image = over / w.out_height;
    const std::int64_t top = over % w.out_height * w.stride - w.padding,
                       left = pixel % w.out_width * w.stride - w.padding;
    const std::int64_t first_row = top < 0 ? 0 : top, first_column = left < 0 ? 0 : left;
    const std::int64_t row_end = top + w.kernel < w.height ? top + w.kernel : w.height,
                       column_end = left + w.kernel < w.width ? left + w.kernel : w.width;
    for (std::int64_t channel = begin; channel < end; ++channel) {
      float sum = 0;
      for (std::int64_t row = first_row; row < row_end; ++row)
        for (std::int64_t column = first_column; column < column_end; ++column)
          sum += to_float(x[((image * w.height + row) * w.width + column) * w.channels + channel]);
      y[pixel * w.channels + channel] = from_float<T>(scale * sum);
    }
  }
};

/// A pixel of dx: the sum of the windows that it is in, over kernel^2.
template <class T>
struct MeanPoolBackward {
  PoolWindows w;
  const T* dy;
  T* dx;
  float scale;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return w.channels; }
  /// Returns the first window that a row or column (with padding) is in, and the end of them.
  KOKKOS_FUNCTION std::int64_t first_window(std::int64_t at) const {
    return at < w.kernel ? 0 : (at - w.kernel) / w.stride + 1;
  }
  KOKKOS_FUNCTION std::int64_t end_of_windows(std::int64_t at, std::int64_t windows) const {
    const std::int64_t end = at / w.stride + 1;
    return end < windows ? end : windows;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t pixel, std::int64_t begin, std::int64_t end) const {
    const std::int64_t over = pixel / w.width, image = over / w.height;
    const std::int64_t row = over % w.height + w.padding, column = pixel % w.width + w.padding;
    const std::int64_t row_end = end_of_windows(row, w.out_height),
                       column_end = end_of_windows(column, w.out_width);
    for (std::int64_t channel = begin; channel < end; ++channel) {
      float sum = 0;
      for (std::int64_t i = first_window(row); i < row_end; ++i)
        for (std::int64_t j = first_window(column); j < column_end; ++j)
          sum +=
              to_float(dy[((image * w.out_height + i) * w.out_width + j) * w.channels + channel]);
      dx[pixel * w.channels + channel] = from_float<T>(scale * sum);
    }
  }
};

float mean_scale(const PoolWindows& w) { return 1.0f / static_cast<float>(w.kernel * w.kernel); }

}  // namespace

template <class T>
void mean_pool_forward(const Stream& stream, const PoolWindows& w, const T* x, T* y) {
  const MeanPoolForward<T> functor{w, x, y, mean_scale(w)};
  dispatch(stream, [=](const auto& space) {
    for_each_piece(space, mean_forward_label, w.batch * w.out_height * w.out_width, functor);
  });
}
template void mean_pool_forward(const Stream&, const PoolWindows&, const float*, float*);
template void mean_pool_forward(const Stream&, const PoolWindows&, const BFloat16*, BFloat16*);
template void mean_pool_forward(const Stream&, const PoolWindows&, const Float16*, Float16*);

template <class T>
void mean_pool_backward(const Stream& stream, const PoolWindows& w, const T* dy, T* dx) {
  const MeanPoolBackward<T> functor{w, dy, dx, mean_scale(w)};
  dispatch(stream, [=](const auto& space) {
    for_each_piece(space, mean_backward_label, w.batch * w.height * w.width, functor);
  });
}
template void mean_pool_backward(const Stream&, const PoolWindows&, const float*, float*);
template void mean_pool_backward(const Stream&, const PoolWindows&, const BFloat16*, BFloat16*);
template void mean_pool_backward(const Stream&, const PoolWindows&, const Float16*, Float16*);

}  // namespace trireme::kernels
