#include "trireme/kernels/elementwise.hpp"

#include <cstring>

#include "launch.hpp"

// Bound by memory: each operand is read once, each result written once. An element's result depends on its own operands only, so the
// cut into pieces shows nowhere, and a result may lie on an operand.

namespace trireme::kernels {
namespace {

const std::string relu_forward_label = "trireme/kernels/relu_forward";
const std::string relu_backward_label = "trireme/kernels/relu_backward";
const std::string add_label = "trireme/kernels/add";
const std::string cast_label = "trireme/kernels/cast";
const std::string fill_label = "trireme/kernels/fill";
const std::string copy_label = "trireme/kernels/copy";

constexpr std::int64_t piece_elements = 16384;  // 64 KiB of float32: some microseconds of work, many pieces for many threads

/// A vector cut into pieces; `body(i)` is one element.
template <class Body>
struct Elements {
  std::int64_t count;
  Body body;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t piece) const {
    const std::int64_t left = count - piece * piece_elements;
    return left < piece_elements ? left : piece_elements;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    const Body local = body;  // its pointers in registers: stores through them cannot change them
    const std::int64_t first = piece * piece_elements;
#pragma omp simd
    for (std::int64_t i = first + begin; i < first + end; ++i) local(i);
  }
};

template <class Body>
void for_each_element(const Stream& stream, const std::string& label, std::int64_t count, const Body& body) {
  dispatch(stream, [&](const auto& space) {
    for_each_piece(space, label, (count + piece_elements - 1) / piece_elements, Elements<Body>{count, body});
  });
}

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
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { y[i] = from_float<T>(to_float(y[i]) + to_float(x[i])); }
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

template <class From, class To>
void cast(const Stream& stream, std::int64_t count, const From* x, To* y) {
  for_each_element(stream, cast_label, count, Cast<From, To>{x, y});
}
template void cast(const Stream&, std::int64_t, const float*, BFloat16*);
template void cast(const Stream&, std::int64_t, const BFloat16*, float*);

template <class T>
void fill(const Stream& stream, std::int64_t count, float value, T* y) {
  for_each_element(stream, fill_label, count, Fill<T>{from_float<T>(value), y});
}
template void fill(const Stream&, std::int64_t, float, float*);
template void fill(const Stream&, std::int64_t, float, BFloat16*);

void copy(const Stream& stream, std::int64_t bytes, const void* x, void* y) {
  const Copy body{static_cast<const unsigned char*>(x), static_cast<unsigned char*>(y), bytes};
  dispatch(stream, [&](const auto& space) { for_each_piece(space, copy_label, (bytes + Copy::piece_bytes - 1) / Copy::piece_bytes, body); });
}

}  // namespace trireme::kernels
