// SPDX-License-Identifier: Apache-2.0
//
// Elementwise kernels: ReLU, sums, casts, fill, copy, swap, bias and scale of columns. Called by
// the ops of the same names (src/ops/elementwise.cpp). Plan: one pass without any exchange between
// threads (elements.hpp). Fill and copy have bodies of their own, because they move bytes without
// arithmetic. Memory traffic: each operand is read once, each result is written once. All of these
// kernels are limited by memory bandwidth.

#include "trireme/kernels/elementwise.hpp"

#include <cstring>
#include <type_traits>

#include "kernels/space/elements.hpp"

namespace trireme::kernels {
namespace {

const std::string relu_forward_label = "trireme/kernels/relu_forward";
const std::string relu_backward_label = "trireme/kernels/relu_backward";
const std::string add_label = "trireme/kernels/add";
const std::string cast_label = "trireme/kernels/cast";
const std::string change_channels_label = "trireme/kernels/change_channels";
const std::string fill_label = "trireme/kernels/fill";
const std::string copy_label = "trireme/kernels/copy";
const std::string exchange_label = "trireme/kernels/exchange";
const std::string scaled_copy_label = "trireme/kernels/scaled_copy";
const std::string weighted_sum_label = "trireme/kernels/weighted_sum";
const std::string add_bias_label = "trireme/kernels/add_bias";
const std::string layer_scale_forward_label = "trireme/kernels/layer_scale_forward";
const std::string layer_scale_backward_label = "trireme/kernels/layer_scale_backward";

struct ReluForward {
  KOKKOS_FUNCTION float operator()(float x) const { return x < 0 ? 0 : x; }
};

struct ReluBackward {
  KOKKOS_FUNCTION float operator()(float y, float dy) const { return y > 0 ? dy : 0; }
};

struct Add {
  KOKKOS_FUNCTION float operator()(float y, float x) const { return y + x; }
};

struct Same {
  KOKKOS_FUNCTION float operator()(float x) const { return x; }
};

struct Exchange {
  KOKKOS_FUNCTION Numbers<2> operator()(float x, float y) const { return {{y, x}}; }
};

struct Scale {
  float scale;
  KOKKOS_FUNCTION float operator()(float x) const { return scale * x; }
};

struct AddScaled {
  float scale;
  KOKKOS_FUNCTION float operator()(float y, float x) const { return y + scale * x; }
};

struct WeightedSum {
  float a, b;
  KOKKOS_FUNCTION float operator()(float x, float z) const { return a * x + b * z; }
};

struct ScaleAndAdd {
  KOKKOS_FUNCTION float operator()(float x, float residual, float scale) const {
    return scale * x + residual;
  }
};

/// Returns the gradient of x, and that of the scale in one row.
struct LayerScaleGradient {
  KOKKOS_FUNCTION Numbers<2> operator()(float x, float dy, float scale) const {
    return {{scale * dy, x * dy}};
  }
};

template <class T>
struct AddExactly {
  const T* x;
  T* y;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { y[i] += x[i]; }
};

template <class T>
struct ChangeChannels {
  std::int64_t from, to;
  const T* x;
  T* y;
  bool add;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t row = i / to, channel = i - row * to;
    const float value = channel < from ? to_float(x[row * from + channel]) : 0;
    y[i] = from_float<T>(add ? to_float(y[i]) + value : value);
  }
};

/// Writes one value to a vector: in pieces on the host, as a matrix with rows of warp_packs packs
/// on a device.
template <class T>
struct Fill {
  T value;
  T* y;
  std::int64_t count;
  /// a pack filled with the value
  PackWords full;
  static constexpr int lanes = static_cast<int>(pack_bytes / sizeof(T)), rows_at_once = 4;
  static constexpr std::int64_t width = warp_packs * lanes;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t piece) const {
    const std::int64_t left = count - piece * piece_elements;
    return left < piece_elements ? left : piece_elements;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    const T local = value;
    T* target = y + piece * piece_elements;
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) target[i] = local;
  }

  template <int rows, int pack>
  KOKKOS_FUNCTION void process(std::int64_t row, std::int64_t column) const {
    for (int j = 0; j < rows; ++j) {
      T* const target = y + (row + j) * width + column;
      if constexpr (pack == lanes) {
        write_words(full, target);
      } else {
        *target = value;
      }
    }
  }
};

constexpr std::int64_t piece_bytes = 4 * piece_elements;

/// Copies bytes: in pieces on the host; on a device as a matrix with rows of warp_packs Units of
/// 16, 4 or 1 bytes.
template <class Unit>
struct Copy {
  const unsigned char* x;
  unsigned char* y;
  std::int64_t bytes;
  static constexpr std::int64_t width = warp_packs * sizeof(Unit);
  static constexpr int lanes = sizeof(Unit), rows_at_once = 4;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t piece) const {
    const std::int64_t left = bytes - piece * piece_bytes;
    return left < piece_bytes ? left : piece_bytes;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    memcpy(y + piece * piece_bytes + begin, x + piece * piece_bytes + begin,
           static_cast<std::size_t>(end - begin));
  }

  template <int rows, int pack>
  KOKKOS_FUNCTION void process(std::int64_t row, std::int64_t column) const {
    using Taken = std::conditional_t<pack == lanes, Unit, unsigned char>;
    const std::int64_t at = row * width + column;
    Taken taken[rows];
    for (int j = 0; j < rows; ++j) taken[j] = *reinterpret_cast<const Taken*>(x + at + j * width);
    for (int j = 0; j < rows; ++j) {
      if constexpr (std::is_same_v<Taken, PackWords>) {
        write_words(taken[j], y + at + j * width);
      } else {
        *reinterpret_cast<Taken*>(y + at + j * width) = taken[j];
      }
    }
  }
};

template <class Space, class T>
void run_fill(const Space& space, const Fill<T>& body) {
  if constexpr (on_host<Space>) {
    for_each_piece(space, fill_label, (body.count + piece_elements - 1) / piece_elements, body);
  } else {
    const std::int64_t width = body.width;
    packs_fit(body.y)
        ? for_each_pack<body.lanes>(space, fill_label, body.count / width, warp_packs,
                                    body.count % width, body)
        : for_each_pack<1>(space, fill_label, body.count / width, width, body.count % width, body);
  }
}

template <class Unit, class Space>
void copy_units(const Space& space, std::int64_t bytes, const unsigned char* x, unsigned char* y) {
  using Body = Copy<Unit>;
  for_each_pack<Body::lanes>(space, copy_label, bytes / Body::width, warp_packs,
                             bytes % Body::width, Body{x, y, bytes});
}

template <class Space>
void run_copy(const Space& space, std::int64_t bytes, const unsigned char* x, unsigned char* y) {
  if constexpr (on_host<Space>) {
    using Body = Copy<PackWords>;
    for_each_piece(space, copy_label, (bytes + piece_bytes - 1) / piece_bytes, Body{x, y, bytes});
  } else {
    if (packs_fit(x, y)) {
      copy_units<PackWords>(space, bytes, x, y);
    } else if ((reinterpret_cast<std::uintptr_t>(x) | reinterpret_cast<std::uintptr_t>(y)) %
                   sizeof(std::uint32_t) ==
               0) {
      copy_units<std::uint32_t>(space, bytes, x, y);
    } else {
      copy_units<unsigned char>(space, bytes, x, y);
    }
  }
}

}  // namespace

template <class T>
void relu_forward(const Stream& stream, std::int64_t count, const T* x, T* y) {
  for_each_element(stream, relu_forward_label, count, ReluForward{}, std::tuple(y), std::tuple(x));
}
template void relu_forward(const Stream&, std::int64_t, const float*, float*);
template void relu_forward(const Stream&, std::int64_t, const BFloat16*, BFloat16*);
template void relu_forward(const Stream&, std::int64_t, const Float16*, Float16*);

template <class T>
void relu_backward(const Stream& stream, std::int64_t count, const T* y, const T* dy, T* dx) {
  for_each_element(stream, relu_backward_label, count, ReluBackward{}, std::tuple(dx),
                   std::tuple(y, dy));
}
template void relu_backward(const Stream&, std::int64_t, const float*, const float*, float*);
template void relu_backward(const Stream&, std::int64_t, const BFloat16*, const BFloat16*,
                            BFloat16*);
template void relu_backward(const Stream&, std::int64_t, const Float16*, const Float16*, Float16*);

template <class From, class To>
void add(const Stream& stream, std::int64_t count, const From* x, To* y) {
  for_each_element(stream, add_label, count, Add{}, std::tuple(y), std::tuple(y, x));
}
template void add(const Stream&, std::int64_t, const float*, float*);
template void add(const Stream&, std::int64_t, const BFloat16*, BFloat16*);
template void add(const Stream&, std::int64_t, const Float16*, Float16*);
template void add(const Stream&, std::int64_t, const BFloat16*, float*);

/// Some thousands of counts, or a few float64 sums: not worth packs.
template <class T>
void add_exactly(const Stream& stream, std::int64_t count, const T* x, T* y) {
  dispatch(stream, [=](const auto& space) {
    for_each_index(space, add_label, count, AddExactly<T>{x, y});
  });
}
template <>
void add(const Stream& stream, std::int64_t count, const std::int32_t* x, std::int32_t* y) {
  add_exactly(stream, count, x, y);
}
template <>
void add(const Stream& stream, std::int64_t count, const double* x, double* y) {
  add_exactly(stream, count, x, y);
}

template <class From, class To>
void cast(const Stream& stream, std::int64_t count, const From* x, To* y) {
  for_each_element(stream, cast_label, count, Same{}, std::tuple(y), std::tuple(x));
}
template void cast(const Stream&, std::int64_t, const float*, BFloat16*);
template void cast(const Stream&, std::int64_t, const float*, Float16*);
template void cast(const Stream&, std::int64_t, const BFloat16*, float*);
template void cast(const Stream&, std::int64_t, const Float16*, float*);

template <class T>
void change_channels(const Stream& stream, std::int64_t rows, std::int64_t from, const T* x,
                     std::int64_t to, T* y, bool add) {
  dispatch(stream, [=](const auto& space) {
    for_each_index(space, change_channels_label, rows * to, ChangeChannels<T>{from, to, x, y, add});
  });
}
template void change_channels(const Stream&, std::int64_t, std::int64_t, const float*, std::int64_t,
                              float*, bool);
template void change_channels(const Stream&, std::int64_t, std::int64_t, const BFloat16*,
                              std::int64_t, BFloat16*, bool);
template void change_channels(const Stream&, std::int64_t, std::int64_t, const Float16*,
                              std::int64_t, Float16*, bool);

template <class T>
void fill(const Stream& stream, std::int64_t count, float value, T* y) {
  T element;
  if constexpr (std::is_integral_v<T>) {
    element = static_cast<T>(value);
  } else {
    element = from_float<T>(value);
  }
  Fill<T> body{element, y, count, {}};
  for (int k = 0; k < body.lanes; ++k)
    memcpy(reinterpret_cast<T*>(&body.full) + k, &element, sizeof element);
  dispatch(stream, [=](const auto& space) { run_fill(space, body); });
}
template void fill(const Stream&, std::int64_t, float, float*);
template void fill(const Stream&, std::int64_t, float, BFloat16*);
template void fill(const Stream&, std::int64_t, float, Float16*);
template void fill(const Stream&, std::int64_t, float, std::int32_t*);

void copy(const Stream& stream, std::int64_t bytes, const void* x, void* y) {
  dispatch(stream, [=](const auto& space) {
    run_copy(space, bytes, static_cast<const unsigned char*>(x), static_cast<unsigned char*>(y));
  });
}

void swap(const Stream& stream, std::int64_t count, float* x, float* y) {
  for_each_element(stream, exchange_label, count, Exchange{}, std::tuple(x, y), std::tuple(x, y));
}

void scaled_copy(const Stream& stream, std::int64_t count, const float* x, float scale, bool add,
                 float* y) {
  add ? for_each_element(stream, scaled_copy_label, count, AddScaled{scale}, std::tuple(y),
                         std::tuple(y, x))
      : for_each_element(stream, scaled_copy_label, count, Scale{scale}, std::tuple(y),
                         std::tuple(x));
}

template <class T>
void weighted_sum(const Stream& stream, std::int64_t count, float a, const T* x, float b,
                  const float* z, T* y) {
  for_each_element(stream, weighted_sum_label, count, WeightedSum{a, b}, std::tuple(y),
                   std::tuple(x, z));
}
template void weighted_sum(const Stream&, std::int64_t, float, const float*, float, const float*,
                           float*);
template void weighted_sum(const Stream&, std::int64_t, float, const BFloat16*, float, const float*,
                           BFloat16*);

template <class From, class To>
void add_bias(const Stream& stream, std::int64_t rows, std::int64_t width, const float* bias,
              const From* x, To* y) {
  for_each_element(stream, add_bias_label, rows, width, Add{}, std::tuple(Matrix<To>{y, width}),
                   std::tuple(Matrix<const From>{x, width}, Shared<const float>{bias}));
}
template void add_bias(const Stream&, std::int64_t, std::int64_t, const float*, const float*,
                       float*);
template void add_bias(const Stream&, std::int64_t, std::int64_t, const float*, const float*,
                       BFloat16*);
template void add_bias(const Stream&, std::int64_t, std::int64_t, const float*, const float*,
                       Float16*);
template void add_bias(const Stream&, std::int64_t, std::int64_t, const float*, const BFloat16*,
                       BFloat16*);
template void add_bias(const Stream&, std::int64_t, std::int64_t, const float*, const Float16*,
                       Float16*);

template <class T>
void layer_scale_forward(const Stream& stream, std::int64_t rows, std::int64_t width,
                         const float* scale, const T* x, const T* residual, T* y) {
  for_each_element(stream, layer_scale_forward_label, rows, width, ScaleAndAdd{},
                   std::tuple(Matrix<T>{y, width}),
                   std::tuple(Matrix<const T>{x, width}, Matrix<const T>{residual, width},
                              Shared<const float>{scale}));
}
template <class T>
void layer_scale_backward(const Stream& stream, std::int64_t rows, std::int64_t width,
                          const float* scale, const T* x, const T* dy, T* dx, float* product) {
  for_each_element(stream, layer_scale_backward_label, rows, width, LayerScaleGradient{},
                   std::tuple(Matrix<T>{dx, width}, Matrix<float>{product, width}),
                   std::tuple(Matrix<const T>{x, width}, Matrix<const T>{dy, width},
                              Shared<const float>{scale}));
}
template void layer_scale_forward(const Stream&, std::int64_t, std::int64_t, const float*,
                                  const float*, const float*, float*);
template void layer_scale_backward(const Stream&, std::int64_t, std::int64_t, const float*,
                                   const float*, const float*, float*, float*);
template void layer_scale_forward(const Stream&, std::int64_t, std::int64_t, const float*,
                                  const BFloat16*, const BFloat16*, BFloat16*);
template void layer_scale_backward(const Stream&, std::int64_t, std::int64_t, const float*,
                                   const BFloat16*, const BFloat16*, BFloat16*, float*);
template void layer_scale_forward(const Stream&, std::int64_t, std::int64_t, const float*,
                                  const Float16*, const Float16*, Float16*);
template void layer_scale_backward(const Stream&, std::int64_t, std::int64_t, const float*,
                                   const Float16*, const Float16*, Float16*, float*);

}  // namespace trireme::kernels
