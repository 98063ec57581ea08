#include "trireme/kernels/elementwise.hpp"

#include <cstring>
#include <type_traits>

#include "elements.hpp"

// Bound by memory: each operand is read once, each result written once.

namespace trireme::kernels {
namespace {

const std::string relu_forward_label = "trireme/kernels/relu_forward";
const std::string relu_backward_label = "trireme/kernels/relu_backward";
const std::string add_label = "trireme/kernels/add";
const std::string cast_label = "trireme/kernels/cast";
const std::string fill_label = "trireme/kernels/fill";
const std::string copy_label = "trireme/kernels/copy";
const std::string exchange_label = "trireme/kernels/exchange";
const std::string scaled_copy_label = "trireme/kernels/scaled_copy";
const std::string add_bias_label = "trireme/kernels/add_bias";

template <class T>
struct ReluForward {
  const T* x;
  T* y;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const float value = to_float(x[i]);
    y[i] = from_float<T>(value < 0 ? 0 : value);
  }
};

template <class T>
struct ReluBackward {
  const T *y, *dy;
  T* dx;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { dx[i] = from_float<T>(to_float(y[i]) > 0 ? to_float(dy[i]) : 0); }
};

template <class T>
struct Add {
  const T* x;
  T* y;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    if constexpr (std::is_integral_v<T>) {
      y[i] += x[i];
    } else {
      y[i] = from_float<T>(to_float(y[i]) + to_float(x[i]));
    }
  }
};

template <class From, class To>
struct Cast {
  const From* x;
  To* y;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { y[i] = from_float<To>(to_float(x[i])); }
};

template <class T>
struct Fill {
  T value;
  T* y;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { y[i] = value; }
};

struct Exchange {
  float *x, *y;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const float value = x[i];
    x[i] = y[i];
    y[i] = value;
  }
};

template <bool add>
struct ScaledCopy {
  float scale;
  const float* x;
  float* y;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { y[i] = add ? y[i] + scale * x[i] : scale * x[i]; }
};

/// A piece is a row.
template <class From, class To>
struct AddBias {
  std::int64_t width;
  const float* bias;
  const From* x;
  To* y;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return width; }
  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    const float* shift = bias;
    const From* source = x + row * width;
    To* target = y + row * width;
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) target[i] = from_float<To>(to_float(source[i]) + shift[i]);
  }
};

struct Copy {
  const unsigned char* x;
  unsigned char* y;
  std::int64_t bytes;
  static constexpr std::int64_t piece_bytes = 4 * piece_elements;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t piece) const {
    const std::int64_t left = bytes - piece * piece_bytes;
    return left < piece_bytes ? left : piece_bytes;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    memcpy(y + piece * piece_bytes + begin, x + piece * piece_bytes + begin, static_cast<std::size_t>(end - begin));
  }
};

}  // namespace

template <class T>
void relu_forward(const Stream& stream, std::int64_t count, const T* x, T* y) {
  for_each_element(stream, relu_forward_label, count, ReluForward<T>{x, y});
}
template void relu_forward(const Stream&, std::int64_t, const float*, float*);
template void relu_forward(const Stream&, std::int64_t, const BFloat16*, BFloat16*);

template <class T>
void relu_backward(const Stream& stream, std::int64_t count, const T* y, const T* dy, T* dx) {
  for_each_element(stream, relu_backward_label, count, ReluBackward<T>{y, dy, dx});
}
template void relu_backward(const Stream&, std::int64_t, const float*, const float*, float*);
template void relu_backward(const Stream&, std::int64_t, const BFloat16*, const BFloat16*, BFloat16*);

template <class T>
void add(const Stream& stream, std::int64_t count, const T* x, T* y) {
  for_each_element(stream, add_label, count, Add<T>{x, y});
}
template void add(const Stream&, std::int64_t, const float*, float*);
template void add(const Stream&, std::int64_t, const BFloat16*, BFloat16*);
template void add(const Stream&, std::int64_t, const std::int32_t*, std::int32_t*);

template <class From, class To>
void cast(const Stream& stream, std::int64_t count, const From* x, To* y) {
  for_each_element(stream, cast_label, count, Cast<From, To>{x, y});
}
template void cast(const Stream&, std::int64_t, const float*, BFloat16*);
template void cast(const Stream&, std::int64_t, const BFloat16*, float*);

template <class T>
void fill(const Stream& stream, std::int64_t count, float value, T* y) {
  if constexpr (std::is_integral_v<T>) {
    for_each_element(stream, fill_label, count, Fill<T>{static_cast<T>(value), y});
  } else {
    for_each_element(stream, fill_label, count, Fill<T>{from_float<T>(value), y});
  }
}
template void fill(const Stream&, std::int64_t, float, float*);
template void fill(const Stream&, std::int64_t, float, BFloat16*);
template void fill(const Stream&, std::int64_t, float, std::int32_t*);

void copy(const Stream& stream, std::int64_t bytes, const void* x, void* y) {
  const Copy body{static_cast<const unsigned char*>(x), static_cast<unsigned char*>(y), bytes};
  dispatch(stream, [&](const auto& space) { for_each_piece(space, copy_label, (bytes + Copy::piece_bytes - 1) / Copy::piece_bytes, body); });
}

void exchange(const Stream& stream, std::int64_t count, float* x, float* y) { for_each_element(stream, exchange_label, count, Exchange{x, y}); }

void scaled_copy(const Stream& stream, std::int64_t count, const float* x, float scale, bool add, float* y) {
  add ? for_each_element(stream, scaled_copy_label, count, ScaledCopy<true>{scale, x, y})
      : for_each_element(stream, scaled_copy_label, count, ScaledCopy<false>{scale, x, y});
}

template <class From, class To>
void add_bias(const Stream& stream, std::int64_t rows, std::int64_t width, const float* bias, const From* x, To* y) {
  dispatch(stream, [&](const auto& space) { for_each_piece(space, add_bias_label, rows, AddBias<From, To>{width, bias, x, y}); });
}
template void add_bias(const Stream&, std::int64_t, std::int64_t, const float*, const float*, float*);
template void add_bias(const Stream&, std::int64_t, std::int64_t, const float*, const float*, BFloat16*);
template void add_bias(const Stream&, std::int64_t, std::int64_t, const float*, const BFloat16*, BFloat16*);

}  // namespace trireme::kernels
