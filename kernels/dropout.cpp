// SPDX-License-Identifier: Apache-2.0
//
// Dropout, and dropout of (x + bias) plus a residual; both also with stochastic depth, which drops
// all elements of a sample. Called by src/ops/dropout.cpp, forward and
// backward alike; the mask is drawn again each time instead of being stored.
// Plan: a row belongs to one sample, so it is one contiguous run of the mask. On the host a piece
// is a row, and the mask is drawn block by block. On a device a thread takes a pack; of two rows if
// both have the same key.
// Memory traffic: each operand is read once, the result is written once; the mask stays in
// registers. An element is read before it is written, so y may be an operand.

#include "trireme/kernels/dropout.hpp"

#include <cmath>

#include "dropout_mask.hpp"
#include "kernels/space/packed_rows.hpp"

namespace trireme::kernels {
namespace {

const std::string dropout_label = "trireme/kernels/dropout";
const std::string dropout_add_label = "trireme/kernels/dropout_add";

// Philox calls side by side: two vector registers' worth.
constexpr int host_calls = 32;

template <class From, class To>
struct Operands {
  const From* x;
  const float* bias;
  const To* residual;
  To* y;
};

/// Returns the factor of a sample's branch: 0 or 1 / (1 - probability).
KOKKOS_INLINE_FUNCTION float path_factor(std::uint64_t key, std::uint64_t sample_key,
                                         float probability) {
  const RandomWords words = philox(mix64(key ^ sample_key), 0, 0);
  return uniform_unit(words.word[0]) >= probability ? 1.0f / (1.0f - probability) : 0.0f;
}

/// `path`: with stochastic depth.
template <class From, class To, bool masked, bool path, bool bias, bool residual, int width>
struct Apply {
  DropoutMask mask;
  Operands<From, To> operands;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return mask.width; }

  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    const std::int64_t global_row = mask.first_row + row;
    float factor = 1;
    if constexpr (path)
      factor = path_factor(mask.path_key, mask.sample_keys[global_row / mask.context],
                           mask.path_probability);
    if constexpr (!masked) {
      apply(row, begin, end, nullptr, factor);
    } else {
      const std::uint64_t key = mix64(mask.key ^ mask.sample_keys[global_row / mask.context]);
      // Index of column 0 within the sample.
      const std::int64_t row_element = global_row % mask.context * mask.width;
      float numbers[4 * width];
      for (std::int64_t column = begin; column < end;) {
        const std::int64_t element = row_element + column, call = element / 4,
                           skipped = element - 4 * call;
        const std::int64_t left = end - column, drawn = 4 * width - skipped,
                           stop = column + (left < drawn ? left : drawn);
        draw_uniform<width>(key, static_cast<std::uint64_t>(call), numbers);
        apply(row, column, stop, numbers + skipped, factor);
        column = stop;
      }
    }
  }

  /// numbers[0] belongs to column `begin`.
  KOKKOS_FUNCTION void apply(std::int64_t row, std::int64_t begin, std::int64_t end,
                             const float* numbers, float factor) const {
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
      if constexpr (path) value *= factor;
      if constexpr (residual) value += to_float(other[i]);
      y[i] = from_float<To>(value);
    }
  }
};

/// The mask of rows [first, first + rows) of samples of `context` rows each.
/// An element is kept if its random word is at least `threshold`. This is equivalent to comparing
/// the uniform number, the upper 24 bits of the word, with the probability.
struct MaskWords {
  std::uint64_t key;
  const std::uint64_t* sample_keys;
  std::int64_t first, width;
  Divisor context;
  std::uint32_t threshold;
  std::uint64_t path_key;
  float path_probability;

  explicit MaskWords(const DropoutMask& mask)
      : key(mask.key),
        sample_keys(mask.sample_keys == nullptr ? nullptr
                                                : mask.sample_keys + mask.first_row / mask.context),
        first(mask.first_row % mask.context),
        width(mask.width),
        context(mask.context),
        threshold(
            static_cast<std::uint32_t>(std::ceil(static_cast<double>(mask.probability) * 0x1p24))
            << 8),
        path_key(mask.path_key),
        path_probability(mask.path_probability) {}

  KOKKOS_FUNCTION std::uint64_t key_of(std::int64_t sample) const {
    return mix64(key ^ sample_keys[sample]);
  }
  /// Returns the factor of stochastic depth of row `row`.
  KOKKOS_FUNCTION float path_factor_of(std::int64_t row) const {
    return path_factor(path_key, sample_keys[context.quotient(first + row)], path_probability);
  }
};

/// `keys`: number of different keys among the rows of a thread, 1 or 2; 0: no mask. `path`: with
/// stochastic depth.
template <class From, class To, bool residual, int keys, bool path>
struct ApplyPacks {
  MaskWords mask;
  Operands<From, To> operands;
  float scale;
  static constexpr int lanes =
      static_cast<int>(pack_bytes / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To)));
  static constexpr int rows_at_once = keys == 2 ? 1 : 2;

  template <int rows, int pack>
  KOKKOS_FUNCTION void process(std::int64_t row, std::int64_t column) const {
    float value[rows][pack], other[rows][pack], shift[pack];
    const std::int64_t at = row * mask.width + column;
    for (int j = 0; j < rows; ++j) {
      load<pack>(operands.x + at + j * mask.width, value[j]);
      if constexpr (residual) load<pack>(operands.residual + at + j * mask.width, other[j]);
    }
    if (operands.bias != nullptr) {
      load<pack>(operands.bias + column, shift);
      for (int j = 0; j < rows; ++j) {
        for (int k = 0; k < pack; ++k) value[j][k] += shift[k];
      }
    }
    if constexpr (keys > 0) drop(row, column, value);
    for (int j = 0; j < rows; ++j) {
      if constexpr (path) {
        const float factor = mask.path_factor_of(row + j);
        for (int k = 0; k < pack; ++k) value[j][k] *= factor;
      }
      if constexpr (residual) {
        for (int k = 0; k < pack; ++k) value[j][k] += other[j][k];
      }
      store<pack>(value[j], operands.y + at + j * mask.width);
    }
  }

  template <int rows, int pack>
  KOKKOS_FORCEINLINE_FUNCTION void drop(std::int64_t row, std::int64_t column,
                                        float (&value)[rows][pack]) const {
    const std::int64_t sample = mask.context.quotient(mask.first + row),
                       in_sample = mask.first + row - sample * mask.context.value();
    const std::uint64_t key = mask.key_of(sample);
    for (int j = 0; j < rows; ++j) {
      const std::uint64_t element =
          static_cast<std::uint64_t>((in_sample + j) * mask.width + column);
      if constexpr (pack == 1) {
        const RandomWords words = philox(key, element / 4, 0);
        const std::uint32_t low = element % 2 == 0 ? words.word[0] : words.word[1],
                            high = element % 2 == 0 ? words.word[2] : words.word[3];
        value[j][0] = (element % 4 < 2 ? low : high) >= mask.threshold ? value[j][0] * scale : 0.0f;
        // The width is a multiple of the lanes, so packs begin at the first word of a Philox call.
      } else {
        for (int call = 0; call < pack / 4; ++call) {
          const RandomWords words = philox(key, element / 4 + static_cast<std::uint64_t>(call), 0);
          for (int k = 0; k < 4; ++k)
            value[j][4 * call + k] =
                words.word[k] >= mask.threshold ? value[j][4 * call + k] * scale : 0.0f;
        }
      }
    }
  }
};

template <int keys, bool path, bool residual, class Space, class From, class To>
void run_packs(const Space& space, const std::string& label, const DropoutMask& mask,
               const Operands<From, To>& operands) {
  const bool packed =
      packs_fit(operands.x, operands.residual, operands.y) && packs_fit(operands.bias);
  for_each_row(space, label, mask.rows, mask.width, packed,
               ApplyPacks<From, To, residual, keys, path>{MaskWords(mask), operands,
                                                          1.0f / (1.0f - mask.probability)});
}

template <bool path, bool bias, bool residual, class Space, class From, class To>
void run_form(const Space& space, const std::string& label, const DropoutMask& mask,
              const Operands<From, To>& operands) {
  if constexpr (on_host<Space>) {
    mask.probability > 0
        ? for_each_piece(space, label, mask.rows,
                         Apply<From, To, true, path, bias, residual, host_calls>{mask, operands})
        : for_each_piece(space, label, mask.rows,
                         Apply<From, To, false, path, bias, residual, host_calls>{mask, operands});
  } else if (mask.probability <= 0) {
    run_packs<0, path, residual>(space, label, mask, operands);
  } else if (mask.context % 2 == 0 && mask.first_row % 2 == 0) {
    run_packs<1, path, residual>(space, label, mask, operands);
  } else {
    run_packs<2, path, residual>(space, label, mask, operands);
  }
}

template <bool bias, bool residual, class Space, class From, class To>
void run(const Space& space, const std::string& label, const DropoutMask& mask,
         const Operands<From, To>& operands) {
  mask.path_probability > 0 ? run_form<true, bias, residual>(space, label, mask, operands)
                            : run_form<false, bias, residual>(space, label, mask, operands);
}

}  // namespace

template <class T>
void dropout(const Stream& stream, const DropoutMask& mask, const T* x, T* y) {
  dispatch(stream, [=](const auto& space) {
    run<false, false>(space, dropout_label, mask, Operands<T, T>{x, nullptr, nullptr, y});
  });
}
template void dropout(const Stream&, const DropoutMask&, const float*, float*);
template void dropout(const Stream&, const DropoutMask&, const BFloat16*, BFloat16*);
template void dropout(const Stream&, const DropoutMask&, const Float16*, Float16*);

template <class From, class To>
void dropout_add(const Stream& stream, const DropoutMask& mask, const From* x, const float* bias,
                 const To* residual, To* y) {
  const Operands<From, To> operands{x, bias, residual, y};
  dispatch(stream, [=](const auto& space) {
    bias != nullptr ? run<true, true>(space, dropout_add_label, mask, operands)
                    : run<false, true>(space, dropout_add_label, mask, operands);
  });
}
template void dropout_add(const Stream&, const DropoutMask&, const float*, const float*,
                          const float*, float*);
template void dropout_add(const Stream&, const DropoutMask&, const float*, const float*,
                          const BFloat16*, BFloat16*);
template void dropout_add(const Stream&, const DropoutMask&, const float*, const float*,
                          const Float16*, Float16*);
template void dropout_add(const Stream&, const DropoutMask&, const BFloat16*, const float*,
                          const BFloat16*, BFloat16*);
template void dropout_add(const Stream&, const DropoutMask&, const Float16*, const float*,
                          const Float16*, Float16*);

}  // namespace trireme::kernels
