#include "trireme/kernels/dropout.hpp"

#include "dropout_mask.hpp"
#include "launch.hpp"

// A piece is a row of the matrix, which lies in one sample, so in one run of the mask's elements. Each operand is read once, the result
// written once; the mask is drawn in registers, a block at a time. An element is read before the same place is written.

namespace trireme::kernels {
namespace {

const std::string dropout_label = "trireme/kernels/dropout";
const std::string dropout_add_label = "trireme/kernels/dropout_add";

/// Philox calls side by side: on the host two vector registers' worth, on a device the thread's own.
template <class Space>
constexpr int calls = on_host<Space> ? 32 : 1;

template <class From, class To>
struct Operands {
  const From* x;
  const float* bias;
  const To* residual;
  To* y;
};

template <class From, class To, bool masked, bool bias, bool residual, int width>
struct Apply {
  DropoutMask mask;
  Operands<From, To> operands;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return mask.width; }

  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    if constexpr (!masked) {
      apply(row, begin, end, nullptr);
    } else {
      const std::int64_t global_row = mask.first_row + row;
      const std::uint64_t key = mix64(mask.key ^ mask.sample_keys[global_row / mask.context]);
      const std::int64_t row_element = global_row % mask.context * mask.width;  // of column 0 in its sample
      float numbers[4 * width];
      for (std::int64_t column = begin; column < end;) {
        const std::int64_t element = row_element + column, call = element / 4, skipped = element - 4 * call;
        const std::int64_t left = end - column, drawn = 4 * width - skipped, stop = column + (left < drawn ? left : drawn);
        draw_uniform<width>(key, static_cast<std::uint64_t>(call), numbers);
        apply(row, column, stop, numbers + skipped);
        column = stop;
      }
    }
  }

  /// numbers[0] is of column `begin`.
  KOKKOS_FUNCTION void apply(std::int64_t row, std::int64_t begin, std::int64_t end, const float* numbers) const {
    const float probability = mask.probability, scale = 1.0f / (1.0f - probability);
    const std::int64_t offset = row * mask.width;
    const From* x = operands.x + offset;
    const float* shift = operands.bias;
    const To* other = residual ? operands.residual + offset : nullptr;
    To* y = operands.y + offset;
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      float value = to_float(x[i]);
      if constexpr (bias) value += shift[i];
      if constexpr (masked) value = numbers[i - begin] >= probability ? value * scale : 0.0f;
      if constexpr (residual) value += to_float(other[i]);
      y[i] = from_float<To>(value);
    }
  }
};

template <bool bias, bool residual, class Space, class From, class To>
void run(const Space& space, const std::string& label, const DropoutMask& mask, const Operands<From, To>& operands) {
  mask.probability > 0 ? for_each_piece(space, label, mask.rows, Apply<From, To, true, bias, residual, calls<Space>>{mask, operands})
                       : for_each_piece(space, label, mask.rows, Apply<From, To, false, bias, residual, calls<Space>>{mask, operands});
}

}  // namespace

template <class T>
void dropout(const Stream& stream, const DropoutMask& mask, const T* x, T* y) {
  dispatch(stream, [&](const auto& space) { run<false, false>(space, dropout_label, mask, Operands<T, T>{x, nullptr, nullptr, y}); });
}
template void dropout(const Stream&, const DropoutMask&, const float*, float*);
template void dropout(const Stream&, const DropoutMask&, const BFloat16*, BFloat16*);

template <class From, class To>
void dropout_add(const Stream& stream, const DropoutMask& mask, const From* x, const float* bias, const To* residual, To* y) {
  const Operands<From, To> operands{x, bias, residual, y};
  dispatch(stream, [&](const auto& space) {
    bias != nullptr ? run<true, true>(space, dropout_add_label, mask, operands) : run<false, true>(space, dropout_add_label, mask, operands);
  });
}
template void dropout_add(const Stream&, const DropoutMask&, const float*, const float*, const float*, float*);
template void dropout_add(const Stream&, const DropoutMask&, const float*, const float*, const BFloat16*, BFloat16*);
template void dropout_add(const Stream&, const DropoutMask&, const BFloat16*, const float*, const BFloat16*, BFloat16*);

}  // namespace trireme::kernels
