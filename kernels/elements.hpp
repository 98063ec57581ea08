#pragma once

// Kernels that go element by element over vectors. An element's result depends on its own operands only, so the cut into pieces shows
// nowhere, and a result may lie on an operand.

#include "launch.hpp"

namespace trireme::kernels {

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
  dispatch(stream, [&](const auto& space) { for_each_piece(space, label, (count + piece_elements - 1) / piece_elements, Elements<Body>{count, body}); });
}

}  // namespace trireme::kernels
