// SPDX-License-Identifier: Apache-2.0
//
// Layer norm and RMS norm over the rows of x [rows, width], forward and backward. Called by
// src/ops/row_norm.cpp. This is the host form; the device form is in row_norm_device.hpp.
// Forward, one row per thread: mean, variance around the mean (so that a large mean costs no
// digits), y.
// Backward, with g = dy * gamma and xhat = (x - mean) * rstd (RMS norm: without sum(g)):
//   dx = rstd * (g - sum(g) / width - xhat * sum(g * xhat) / width)
//   dgamma = sum dy * xhat,   dbeta = sum dy
// A thread takes a chunk of rows: two sums per row, then dx and the row's terms of dgamma and dbeta
// in one loop. A last kernel adds the chunks of each column in order, in double.
// Memory traffic: forward reads x once (later passes hit the cache) and writes y once; backward
// reads x, dy and dresidual once and writes dx once. An element is read before it is written, so dx
// may be dy or dresidual.

#include "trireme/kernels/norm/row_norm.hpp"

#include <cmath>

#include "row_norm_device.hpp"

namespace trireme::kernels {
namespace {

const std::string forward_label = "trireme/kernels/row_norm_forward";
const std::string backward_label = "trireme/kernels/row_norm_backward";
const std::string parameter_label = "trireme/kernels/row_norm_parameters";

// Numbers per float32 partial sum; the partial sums take 1/16 of a float32 activation.
constexpr std::int64_t chunk_rows = 32;

std::int64_t chunks_of(const RowNormShape& shape) {
  return (shape.rows + chunk_rows - 1) / chunk_rows;
}

template <class T, bool bias>
struct Forward {
  RowNormShape shape;
  RowNormForward<T> args;

  KOKKOS_FUNCTION void operator()(std::int64_t row, const HostGroup& group) const {
    const std::int64_t width = shape.width;
    const T* x = args.x + row * width;
    T* y = args.y + row * width;
    const float *gamma = args.gamma, *beta = args.beta;
    float mean = 0;
    if (!shape.rms) {
      mean = static_cast<float>(
          group.sum(width, [=](std::int64_t i) { return to_float(x[i]); }).value[0] /
          static_cast<double>(width));
    }
    const Sums<1> squares = group.sum(width, [=](std::int64_t i) {
      const float centered = to_float(x[i]) - mean;
      return centered * centered;
    });
    const float rstd =
        static_cast<float>(1 / sqrt(squares.value[0] / static_cast<double>(width) + args.epsilon));
    if (!shape.rms) args.mean[row] = mean;
    args.rstd[row] = rstd;
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) {
      float value = (to_float(x[i]) - mean) * rstd * gamma[i];
      if constexpr (bias) value += beta[i];
      y[i] = from_float<T>(value);
    }
  }
};

template <class T, bool residual>
struct Backward {
  RowNormShape shape;
  RowNormBackward<T> args;

  KOKKOS_FUNCTION void operator()(std::int64_t chunk, const HostGroup& group) const {
    const std::int64_t width = shape.width, begin = chunk * chunk_rows,
                       end = begin + chunk_rows < shape.rows ? begin + chunk_rows : shape.rows;
    float *dgamma = args.partials + chunk * 2 * width, *dbeta = dgamma + width;
    for (std::int64_t i = 0; i < width; ++i) dgamma[i] = dbeta[i] = 0;
    for (std::int64_t row = begin; row < end; ++row) process(row, group, dgamma, dbeta);
  }

  KOKKOS_FUNCTION void process(std::int64_t row, const HostGroup& group, float* __restrict dgamma,
                               float* __restrict dbeta) const {
    const std::int64_t width = shape.width;
    const T *x = args.x + row * width, *dy = args.dy + row * width,
            *dresidual = residual ? args.dresidual + row * width : nullptr;
    T* dx = args.dx + row * width;
    const float* __restrict gamma = args.gamma;
    const float mean = shape.rms ? 0.0f : args.mean[row], rstd = args.rstd[row];
    const Sums<2> sums = group.sum(
        width, [=](std::int64_t i) { return to_float(dy[i]) * gamma[i]; },
        [=](std::int64_t i) { return to_float(dy[i]) * gamma[i] * (to_float(x[i]) - mean); });
    const double scale = 1 / static_cast<double>(width);
    const float level = shape.rms ? 0.0f : static_cast<float>(sums.value[0] * scale);
    // coefficient of xhat
    const float slope = static_cast<float>(sums.value[1] * scale * rstd);
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) {
      const float gradient = to_float(dy[i]), xhat = (to_float(x[i]) - mean) * rstd;
      dgamma[i] += gradient * xhat;
      dbeta[i] += gradient;
      float value = rstd * (gradient * gamma[i] - level - xhat * slope);
      if constexpr (residual) value += to_float(dresidual[i]);
      dx[i] = from_float<T>(value);
    }
  }
};

// Columns per piece of the last kernel.
constexpr std::int64_t block_columns = 64;

/// Adds the partial sums [chunks, 2, width] to dgamma and dbeta. A piece is a block of columns of
/// one of the two.
struct Parameters {
  std::int64_t chunks, width;
  const float* partials;
  float *dgamma, *dbeta;
  bool add;

  KOKKOS_FUNCTION std::int64_t blocks() const {
    return (width + block_columns - 1) / block_columns;
  }
  KOKKOS_FUNCTION std::int64_t extent(std::int64_t piece) const {
    const std::int64_t left = width - piece % blocks() * block_columns;
    return left < block_columns ? left : block_columns;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    const std::int64_t which = piece / blocks(), column = piece % blocks() * block_columns + begin;
    const int count = static_cast<int>(end - begin);
    double total[block_columns] = {};
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      const float* partial = partials + (chunk * 2 + which) * width + column;
      for (int c = 0; c < count; ++c) total[c] += partial[c];
    }
    float* out = (which == 0 ? dgamma : dbeta) + column;
    for (int c = 0; c < count; ++c) out[c] = static_cast<float>(total[c]) + (add ? out[c] : 0.0f);
  }
};

template <class Space, class T>
void run_forward(const Space& space, const RowNormShape& shape, const RowNormForward<T>& args) {
  if constexpr (!on_host<Space>) {
    row_norm_forward_by_teams(space, forward_label, shape, args);
  } else if (args.beta != nullptr) {
    for_each_group(space, forward_label, shape.rows, Forward<T, true>{shape, args});
  } else {
    for_each_group(space, forward_label, shape.rows, Forward<T, false>{shape, args});
  }
}

template <class Space, class T>
void run_backward(const Space& space, const RowNormShape& shape, const RowNormBackward<T>& args) {
  if constexpr (!on_host<Space>) {
    row_norm_backward_by_teams(space, backward_label, parameter_label, shape, args);
  } else {
    args.dresidual != nullptr
        ? for_each_group(space, backward_label, chunks_of(shape), Backward<T, true>{shape, args})
        : for_each_group(space, backward_label, chunks_of(shape), Backward<T, false>{shape, args});
    const Parameters parameters{chunks_of(shape), shape.width, args.partials,
                                args.dgamma,      args.dbeta,  args.add_parameters};
    for_each_piece(space, parameter_label, parameters.blocks() * (args.dbeta != nullptr ? 2 : 1),
                   parameters);
  }
}

}  // namespace

std::int64_t row_norm_partial_count(const RowNormShape& shape) {
  const std::int64_t chunks = chunks_of(shape), teams = max_row_norm_teams(shape);
  return (chunks > teams ? chunks : teams) * 2 * shape.width;
}

template <class T>
void row_norm_forward(const Stream& stream, const RowNormShape& shape,
                      const RowNormForward<T>& args) {
  dispatch(stream, [=](const auto& space) { run_forward(space, shape, args); });
}
template void row_norm_forward(const Stream&, const RowNormShape&, const RowNormForward<float>&);
template void row_norm_forward(const Stream&, const RowNormShape&, const RowNormForward<BFloat16>&);
template void row_norm_forward(const Stream&, const RowNormShape&, const RowNormForward<Float16>&);

template <class T>
void row_norm_backward(const Stream& stream, const RowNormShape& shape,
                       const RowNormBackward<T>& args) {
  dispatch(stream, [=](const auto& space) { run_backward(space, shape, args); });
}
template void row_norm_backward(const Stream&, const RowNormShape&, const RowNormBackward<float>&);
template void row_norm_backward(const Stream&, const RowNormShape&,
                                const RowNormBackward<BFloat16>&);
template void row_norm_backward(const Stream&, const RowNormShape&,
                                const RowNormBackward<Float16>&);

}  // namespace trireme::kernels
