// SPDX-License-Identifier: Apache-2.0
//
// The weight's gradient by Winograd's algorithm F(4x4, 3x3) on the host. Called by winograd.cpp.
//
//   dg = G^T [ sum over tiles of (A dy A^T) * (B^T d B) ] G        (winograd_transform.hpp)
//
// The 36 terms are 36 matrix products, [channels out, tiles] times [tiles, channels in]. The tiles
// are cut into chunks whose transforms stay in caches. For each chunk:
//
//   1. All threads: v[term][block of channels in][tile][channel] = B^T d B, and
//      z[term][block of channels out][tile][channel] = A dy A^T.
//   2. Each thread, for its terms and blocks: sums += z^T v, for a group of tiles at a time.
//
// Finally dw = G^T sums G. Chunks and groups have fixed sizes, and each sum is made by one thread,
// so bits do not depend on the number of threads.
//
// Bytes moved: x and dy are read once, by step 1. v and z are written and read in the L2 caches; z
// is read once for each block of channels in. For each group of tiles, the sums of one term and one
// block are read and written: they come from memory or a shared cache once for each chunk, 36 x 8
// bytes for each pair of channels. As in winograd_kernel.cpp only tests run the forms without
// AVX-512.

#include <algorithm>

#include <omp.h>

#include "winograd_kernel.hpp"
#include "winograd_transform.hpp"

namespace trireme::ops::cpu {
namespace {

using namespace winograd;

/// Channels of a block: of two vectors in v, of one vector in z. A product in registers has
/// `z_rows` channels out.
constexpr std::int64_t v_block = 2 * lanes, z_block = lanes, z_rows = lanes == 16 ? 8 : 4;
/// Largest number of tiles in a chunk. More are slower where v and z leave the L2 caches (by 40 %
/// with 64 channels and 448 tiles), fewer where the sums leave them (by 10 % with 512 channels and
/// 64 tiles).
constexpr std::int64_t chunk = 128;

/// Returns the number of tiles whose products are summed in registers. Their sums are added to
/// those in memory, so that rounding grows with the number of groups. 128 gave up to 1.5 times the
/// error of 32. 16 gave 0.8 times the error with 64 tiles and 1.05 times with 784, and takes 2 to
/// 8 % longer.
constexpr std::int64_t group_size(std::int64_t all_tiles) { return all_tiles <= 128 ? 16 : 32; }

/// The chunks of tiles, and the layout of the scratch: v, z, sums, and a pixel of zeros.
struct Chunks {
  TileGrid grid;
  std::int64_t tiles;  ///< largest number of tiles in a chunk
  std::int64_t group;  ///< largest number of tiles whose products are summed in registers
  /// Numbers from one term to the next one.
  std::int64_t v_term, z_term, sums_term;
  std::int64_t zeros_size;

  explicit Chunks(const WinogradShape& s)
      : grid(s.batch, s.height, s.width),
        group(group_size(grid.count)),
        sums_term(s.in_channels * s.out_channels),
        zeros_size(std::max(s.in_channels, s.out_channels)) {
    tiles = std::min(grid.count, chunk);
    v_term = spread(tiles * s.in_channels);
    z_term = spread(tiles * s.out_channels);
  }
  std::int64_t size() const { return terms * (v_term + z_term + sums_term) + zeros_size; }
};

/// Writes or adds sums [z_rows, v_block] = z^T v over `tiles` tiles; rows of v have v_block
/// numbers, rows of z z_block.
void multiply_group(const float* v, const float* z, std::int64_t tiles, bool add, float* sums) {
  Vector products[z_rows][2] = {};
  for (std::int64_t t = 0; t < tiles; ++t) {
    const Vector left = load(v + t * v_block), right = load(v + t * v_block + lanes);
#pragma GCC unroll 8
    for (std::int64_t r = 0; r < z_rows; ++r) {
      const float x = z[t * z_block + r];
      products[r][0] += x * left;
      products[r][1] += x * right;
    }
  }
  for (std::int64_t r = 0; r < z_rows; ++r) {
    for (std::int64_t half = 0; half < 2; ++half) {
      float* const to = sums + r * v_block + half * lanes;
      store(to, add ? load(to) + products[r][half] : products[r][half]);
    }
  }
}

/// Writes the 36 terms of A dy A^T to z[term], `z_term` numbers apart; dy are `lanes` channels from
/// `channel` on.
void transform_gradient_tile(const float* const (&pixels)[outputs][outputs], std::int64_t channel,
                             float* z, std::int64_t z_term) {
  transform_tile<transform_output_gradient, outputs, inputs>(
      [&](std::int64_t i, std::int64_t j) { return load(pixels[i][j] + channel); }, inputs,
      [&](std::int64_t i, std::int64_t j, const Vector& value) {
        store(z + (i * inputs + j) * z_term, value);
      });
}

/// Writes v and z of tile `t` of a chunk, which is tile `first` + t of all.
void transform_chunk_tile(const WinogradShape& s, const Chunks& chunks, std::int64_t first,
                          std::int64_t t, const float* x, const float* dy, const float* zeros,
                          float* v, float* z) {
  const Place place(chunks.grid, first + t);
  const float* pixels[inputs][inputs];
  find_pixels(chunks.grid, place.image, place.top - 1, place.left - 1, x, s.in_channels, zeros,
              pixels);
  for (std::int64_t channel = 0; channel < s.in_channels; channel += lanes) {
    float* const to = v + (channel / v_block * chunks.tiles + t) * v_block + channel % v_block;
    transform_input_tile(pixels, channel, to, chunks.v_term);
  }
  const float* gradients[outputs][outputs];
  find_pixels(chunks.grid, place.image, place.top, place.left, dy, s.out_channels, zeros,
              gradients);
  for (std::int64_t channel = 0; channel < s.out_channels; channel += lanes) {
    float* const to = z + (channel / z_block * chunks.tiles + t) * z_block;
    transform_gradient_tile(gradients, channel, to, chunks.z_term);
  }
}

/// Adds the products of one term and one block of channels in, over the tiles of a chunk. The
/// first chunk assigns. `sums` has [channels out, v_block].
void multiply_chunk(const Chunks& chunks, std::int64_t out_channels, std::int64_t tiles,
                    bool is_first, const float* v, const float* z, float* sums) {
  for (std::int64_t t = 0; t < tiles; t += chunks.group) {
    for (std::int64_t out = 0; out < out_channels; out += z_rows) {
      multiply_group(v + t * v_block,
                     z + (out / z_block * chunks.tiles + t) * z_block + out % z_block,
                     std::min(chunks.group, tiles - t), !is_first || t > 0, sums + out * v_block);
    }
  }
}

/// Writes the 9 taps of one channel out and `lanes` channels in: dw = G^T sums G.
void transform_sums(const float* sums, std::int64_t sums_term, float* dw, std::int64_t dw_tap) {
  constexpr auto transform = filter_transform();
  Vector half[filter_width][inputs];
  for (std::int64_t j = 0; j < inputs; ++j) {
    for (std::int64_t r = 0; r < filter_width; ++r) {
      half[r][j] = Vector{};
      for (std::int64_t i = 0; i < inputs; ++i)
        half[r][j] +=
            static_cast<float>(transform[i][r]) * load(sums + (i * inputs + j) * sums_term);
    }
  }
  for (std::int64_t tap = 0; tap < taps; ++tap) {
    Vector sum{};
    for (std::int64_t j = 0; j < inputs; ++j)
      sum += static_cast<float>(transform[j][tap % filter_width]) * half[tap / filter_width][j];
    store(dw + tap * dw_tap, sum);
  }
}

}  // namespace

std::int64_t winograd_gradient_scratch_size(const WinogradShape& s) { return Chunks(s).size(); }

void winograd_weight_gradient(const WinogradShape& s, const float* x, const float* dy,
                              float* scratch, float* dw) {
  const Chunks chunks(s);
  float *const v = scratch, *const z = v + terms * chunks.v_term,
               *const sums = z + terms * chunks.z_term,
               *const zeros = sums + terms * chunks.sums_term;
  std::fill_n(zeros, chunks.zeros_size, 0.0f);
#pragma omp parallel num_threads(s.threads)
  {
    // Each loop ends with a barrier.
    for (std::int64_t first = 0; first < chunks.grid.count; first += chunks.tiles) {
      const std::int64_t tiles = std::min(chunks.tiles, chunks.grid.count - first);
#pragma omp for schedule(static)
      for (std::int64_t t = 0; t < tiles; ++t)
        transform_chunk_tile(s, chunks, first, t, x, dy, zeros, v, z);
#pragma omp for schedule(static) collapse(2)
      for (std::int64_t term = 0; term < terms; ++term) {
        for (std::int64_t in = 0; in < s.in_channels; in += v_block) {
          multiply_chunk(chunks, s.out_channels, tiles, first == 0,
                         v + term * chunks.v_term + in * chunks.tiles, z + term * chunks.z_term,
                         sums + term * chunks.sums_term + in * s.out_channels);
        }
      }
    }
#pragma omp for schedule(static) collapse(2)
    for (std::int64_t out = 0; out < s.out_channels; ++out) {
      for (std::int64_t in = 0; in < s.in_channels; in += lanes) {
        transform_sums(sums + (in / v_block * s.out_channels + out) * v_block + in % v_block,
                       chunks.sums_term, dw + out * taps * s.in_channels + in, s.in_channels);
      }
    }
  }
}

}  // namespace trireme::ops::cpu
