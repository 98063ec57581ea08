// SPDX-License-Identifier: Apache-2.0
//
// Convolutions by Winograd's algorithm F(4x4, 3x3) on the host. Called by winograd.cpp.
//
// The output is cut into tiles of 4x4 pixels, each of which depends on 6x6 pixels of the input:
//
//   y = A^T [ sum over channels of (G g G^T) * (B^T d B) ] A      (winograd_transform.hpp)
//
// The 36 terms are 36 matrix products, [tiles, channels in] times [channels in, channels out]. Each
// thread takes strips of tiles:
//
//   1. v[term][tile][channel in] = B^T d B, with about the size of the L2 cache.
//   2. For each block of channels out (two vector registers):
//      a. m[term][tile][channel] = v times u, with a block of tiles in registers.
//      b. y = A^T m A.
//
// Vectors go along channels, which are contiguous in memory. Terms are computed in the same way in
// every strip, and each sum runs over the channels in order, so strips do not affect bits.
//
// The transformed weight is u[block of channels out][term][channel in][channel of the block], which
// step 2a reads in the order of memory.
//
// Bytes moved: x is read and y written once. Each strip reads u, 36 x 4 bytes for each pair of
// channels, from the cache that all cores share or from memory. v and m stay in the L2 cache: v is
// written once and read once for each block of channels out.
//
// Vectors have 16 lanes with AVX-512, 8 with AVX and 4 without. Only tests run the narrow forms:
// prefers_winograd() needs AVX-512.

#include "winograd_kernel.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <omp.h>

#include "winograd_transform.hpp"

namespace trireme::ops::cpu {
namespace {

using namespace winograd;

/// Channels out of one product in registers, and tiles of it: 28 of AVX-512's 32 registers hold
/// sums, or 12 of 16.
constexpr std::int64_t out_block = 2 * lanes, tile_block = lanes == 16 ? 14 : 6;
/// Bytes of v in a strip. 1 MiB was best on a processor with as much L2 cache for each core: half
/// of it took up to 50 % longer, 2 MiB up to 9 %.
constexpr std::int64_t strip_bytes = std::int64_t{1} << 20;

/// The strips of tiles, and the layout of a thread's scratch: v, m, and a pixel of zeros.
struct Strips {
  TileGrid grid;
  std::int64_t tiles, count;  ///< largest number of tiles in a strip; number of strips
  /// Numbers from one tile to the next one in v, and from one term to the next one in v and in m.
  std::int64_t row, v_term, m_term;

  explicit Strips(const WinogradShape& s)
      : grid(s.batch, s.height, s.width), row(spread(s.in_channels)) {
    const std::int64_t fitting = strip_bytes / (terms * row * std::int64_t{sizeof(float)}),
                       largest = std::max(fitting / tile_block, std::int64_t{1}) * tile_block;
    // Every thread gets the same number of strips.
    const std::int64_t rounds = ceil_divide(ceil_divide(grid.count, largest), s.threads);
    tiles = ceil_divide(grid.count, rounds * s.threads);
    count = ceil_divide(grid.count, tiles);
    v_term = spread(tiles * row);
    m_term = spread(tiles * out_block);
  }
  std::int64_t thread_size() const { return terms * (v_term + m_term) + row; }
};

/// Writes m [rows, out_block] = v [rows, channels] times u [channels, out_block]; rows of v are
/// `row` numbers apart.
template <std::size_t rows>
void multiply(const float* v, std::int64_t row, const float* u, std::int64_t channels, float* m) {
  Vector sums[rows][2] = {};
  for (std::int64_t c = 0; c < channels; ++c) {
    const Vector left = load(u + c * out_block), right = load(u + c * out_block + lanes);
#pragma GCC unroll 14
    for (std::size_t r = 0; r < rows; ++r) {
      const float x = v[static_cast<std::int64_t>(r) * row + c];
      sums[r][0] += x * left;
      sums[r][1] += x * right;
    }
  }
  for (std::size_t r = 0; r < rows; ++r) {
    store(m + r * out_block, sums[r][0]);
    store(m + r * out_block + lanes, sums[r][1]);
  }
}

using Multiply = void (*)(const float*, std::int64_t, const float*, std::int64_t, float*);
/// Returns multiply() for 1 to tile_block rows.
template <std::size_t... before>
constexpr std::array<Multiply, sizeof...(before)> multiplications(std::index_sequence<before...>) {
  return {multiply<before + 1>...};
}

/// Writes the outputs of one tile inside the image, for out_block channels. `y` is the address of
/// the first of these channels in the first pixel of the first image.
void transform_output_tile(const WinogradShape& s, const Place& place, const float* m,
                           std::int64_t m_term, float* y) {
  const std::int64_t rows = std::min(outputs, s.height - place.top),
                     columns = std::min(outputs, s.width - place.left);
  float* const first =
      y + ((place.image * s.height + place.top) * s.width + place.left) * s.out_channels;
  for (std::int64_t channel = 0; channel < out_block; channel += lanes) {
    transform_tile<transform_output, inputs, outputs>(
        [&](std::int64_t i, std::int64_t j) {
          return load(m + (i * inputs + j) * m_term + channel);
        },
        rows,
        [&](std::int64_t i, std::int64_t j, const Vector& value) {
          if (j < columns) store(first + (i * s.width + j) * s.out_channels + channel, value);
        });
  }
}

/// Computes the outputs of tiles [first, first + count).
void convolve_strip(const WinogradShape& s, const Strips& strips, std::int64_t first,
                    std::int64_t count, const float* x, const float* u, float* scratch, float* y) {
  constexpr auto by_rows = multiplications(std::make_index_sequence<tile_block>());
  float *const v = scratch, *const m = v + terms * strips.v_term,
               *const zeros = m + terms * strips.m_term;
  std::fill_n(zeros, s.in_channels, 0.0f);
  for (std::int64_t t = 0; t < count; ++t) {
    const Place place(strips.grid, first + t);
    const float* pixels[inputs][inputs];
    find_pixels(strips.grid, place.image, place.top - 1, place.left - 1, x, s.in_channels, zeros,
                pixels);
    for (std::int64_t channel = 0; channel < s.in_channels; channel += lanes)
      transform_input_tile(pixels, channel, v + t * strips.row + channel, strips.v_term);
  }
  // Blocks of about equal size: a small one would read u for few products.
  const std::int64_t blocks = ceil_divide(count, tile_block);
  for (std::int64_t channel = 0; channel < s.out_channels; channel += out_block) {
    for (std::int64_t term = 0; term < terms; ++term, u += s.in_channels * out_block) {
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t begin = count * block / blocks, end = count * (block + 1) / blocks;
        by_rows[end - begin - 1](v + term * strips.v_term + begin * strips.row, strips.row, u,
                                 s.in_channels, m + term * strips.m_term + begin * out_block);
      }
    }
    for (std::int64_t t = 0; t < count; ++t) {
      transform_output_tile(s, Place(strips.grid, first + t), m + t * out_block, strips.m_term,
                            y + channel);
    }
  }
}

/// Copies the taps of `lanes` channels in and out_block channels out to taps[in][tap][out], as the
/// direction uses them.
void gather_taps(const WinogradShape& s, WinogradDirection direction, std::int64_t in,
                 std::int64_t out, const float* w, float (&to)[lanes][taps][out_block]) {
  const bool forward = direction == WinogradDirection::forward;
  for (std::int64_t tap = 0; tap < taps; ++tap) {
    for (std::int64_t i = 0; i < lanes; ++i) {
      for (std::int64_t o = 0; o < out_block; ++o) {
        to[i][tap][o] = forward ? w[((out + o) * taps + tap) * s.in_channels + in + i]
                                : w[((in + i) * taps + taps - 1 - tap) * s.out_channels + out + o];
      }
    }
  }
}

/// Writes u [term][..][out_block] = G g G^T of one channel in; `u_term` is the distance of terms.
void transform_filters(const float (&g)[taps][out_block], float* u, std::int64_t u_term) {
  constexpr auto transform = filter_transform();
  for (std::int64_t i = 0; i < inputs; ++i) {
    // In float64: the rounding of weights is then that of storing them.
    double half[filter_width][out_block];
    for (std::int64_t j = 0; j < filter_width; ++j) {
      for (std::int64_t o = 0; o < out_block; ++o) {
        half[j][o] = transform[i][0] * g[j][o] + transform[i][1] * g[filter_width + j][o] +
                     transform[i][2] * g[2 * filter_width + j][o];
      }
    }
    for (std::int64_t j = 0; j < inputs; ++j) {
      for (std::int64_t o = 0; o < out_block; ++o) {
        u[(i * inputs + j) * u_term + o] =
            static_cast<float>(transform[j][0] * half[0][o] + transform[j][1] * half[1][o] +
                               transform[j][2] * half[2][o]);
      }
    }
  }
}

}  // namespace

std::int64_t winograd_channel_multiple() { return out_block; }

bool is_winograd_wide() { return lanes == 16; }

std::int64_t winograd_tiles_per_image(std::int64_t height, std::int64_t width) {
  return TileGrid(1, height, width).count;
}

std::int64_t winograd_weight_size(const WinogradShape& s) {
  return terms * s.in_channels * s.out_channels;
}

std::int64_t winograd_scratch_size(const WinogradShape& s) {
  return s.threads * Strips(s).thread_size();
}

void transform_winograd_weight(const WinogradShape& s, WinogradDirection direction, const float* w,
                               float* u) {
  const std::int64_t u_term = s.in_channels * out_block;
#pragma omp parallel for collapse(2) schedule(static) num_threads(s.threads)
  for (std::int64_t out = 0; out < s.out_channels; out += out_block) {
    for (std::int64_t in = 0; in < s.in_channels; in += lanes) {
      float filters[lanes][taps][out_block];
      gather_taps(s, direction, in, out, w, filters);
      for (std::int64_t i = 0; i < lanes; ++i) {
        transform_filters(filters[i], u + out / out_block * terms * u_term + (in + i) * out_block,
                          u_term);
      }
    }
  }
}

void winograd_convolution(const WinogradShape& s, const float* x, const float* u, float* scratch,
                          float* y) {
  const Strips strips(s);
#pragma omp parallel num_threads(s.threads)
  {
    float* const own = scratch + omp_get_thread_num() * strips.thread_size();
#pragma omp for schedule(static)
    for (std::int64_t strip = 0; strip < strips.count; ++strip) {
      const std::int64_t first = strip * strips.tiles;
      convolve_strip(s, strips, first, std::min(strips.tiles, strips.grid.count - first), x, u, own,
                     y);
    }
  }
}

}  // namespace trireme::ops::cpu
