// SPDX-License-Identifier: Apache-2.0
#pragma once

// The transforms of Winograd's algorithm F(4x4, 3x3), for vectors of channels. Used by
// winograd_kernel.cpp and winograd_gradient.cpp.
//
//   y  = A^T [ (G g G^T) * (B^T d B) ] A     4x4 outputs of 6x6 inputs d and the 3x3 filter g
//   dg = G^T [ (A dy A^T) * (B^T d B) ] G    the gradient of the filter
//
// "*" is element by element. The 36 elements are called terms below.

#include <array>
#include <cstdint>

#include "ops/cpu/vector.hpp"

namespace trireme::ops::cpu::winograd {

constexpr std::int64_t outputs = 4, inputs = 6, terms = inputs * inputs, filter_width = 3,
                       taps = filter_width * filter_width;

// The interpolation points are 0, +-2/3, +-3/2 and infinity. With the usual 0, +-1, +-2 the error
// of a result is more than twice as large. 2/3 * 3/2 = 1 saves multiplications.
constexpr double point_a = 2.0 / 3, point_b = 3.0 / 2;
constexpr double points[] = {0, point_a, -point_a, point_b, -point_b};
/// The powers of the points: a2 = point_a^2.
constexpr auto a1 = static_cast<float>(point_a), a2 = static_cast<float>(point_a * point_a),
               a3 = static_cast<float>(point_a * point_a * point_a),
               b1 = static_cast<float>(point_b), b2 = static_cast<float>(point_b * point_b),
               b3 = static_cast<float>(point_b * point_b * point_b),
               sum_of_squares = static_cast<float>(point_a * point_a + point_b * point_b);

/// A row or column of a tile, for `lanes` channels.
template <std::int64_t count>
struct Line {
  Vector at[count];
};
using Inputs = Line<inputs>;
using Outputs = Line<outputs>;

/// Returns B^T d. Row p of B^T has the coefficients of the product of (x - q) over the finite
/// points q other than p.
inline Inputs transform_input(const Inputs& d) {
  const Vector even_a = d.at[4] - b2 * d.at[2], odd_a = d.at[3] - b2 * d.at[1];
  const Vector even_b = d.at[4] - a2 * d.at[2], odd_b = d.at[3] - a2 * d.at[1];
  return {{d.at[0] + d.at[4] - sum_of_squares * d.at[2], even_a + a1 * odd_a, even_a - a1 * odd_a,
           even_b + b1 * odd_b, even_b - b1 * odd_b, d.at[1] + d.at[5] - sum_of_squares * d.at[3]}};
}

/// Returns A^T m. Row k of A^T has the points' k-th powers.
inline Outputs transform_output(const Inputs& m) {
  const Vector sum_a = m.at[1] + m.at[2], difference_a = m.at[1] - m.at[2];
  const Vector sum_b = m.at[3] + m.at[4], difference_b = m.at[3] - m.at[4];
  return {{m.at[0] + sum_a + sum_b, a1 * difference_a + b1 * difference_b, a2 * sum_a + b2 * sum_b,
           a3 * difference_a + b3 * difference_b + m.at[5]}};
}

/// Returns A dy.
inline Inputs transform_output_gradient(const Outputs& dy) {
  const Vector even_a = dy.at[0] + a2 * dy.at[2], odd_a = a1 * dy.at[1] + a3 * dy.at[3];
  const Vector even_b = dy.at[0] + b2 * dy.at[2], odd_b = b1 * dy.at[1] + b3 * dy.at[3];
  return {{dy.at[0], even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, dy.at[3]}};
}

/// Returns G. Row p is (1, p, p^2) over the product of (p - q).
constexpr std::array<std::array<double, filter_width>, inputs> filter_transform() {
  std::array<std::array<double, filter_width>, inputs> g{};
  for (std::int64_t i = 0; i + 1 < inputs; ++i) {
    const double p = points[i];
    double scale = 1;
    for (const double q : points) scale *= q == p ? 1 : p - q;
    g[i] = {1 / scale, p / scale, p * p / scale};
  }
  g[inputs - 1] = {0, 0, 1};
  return g;
}

inline std::int64_t ceil_divide(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

/// Returns the size of rows of at least n numbers (a multiple of `lanes`), as an odd number of
/// vectors. Then rows of equal size do not share few sets of a cache.
inline std::int64_t spread(std::int64_t n) { return (n / lanes | 1) * lanes; }

/// The tiles that cover the images: numbers of rows and columns of an image, and of all tiles.
struct TileGrid {
  std::int64_t height, width;  ///< of an image, in pixels
  std::int64_t down, across, count;
  TileGrid(std::int64_t batch, std::int64_t image_height, std::int64_t image_width)
      : height(image_height),
        width(image_width),
        down(ceil_divide(height, outputs)),
        across(ceil_divide(width, outputs)),
        count(batch * down * across) {}
};

/// The place of a tile: its image, and its first output pixel.
struct Place {
  std::int64_t image, top, left;
  Place(const TileGrid& grid, std::int64_t tile)
      : image(tile / (grid.down * grid.across)),
        top(tile / grid.across % grid.down * outputs),
        left(tile % grid.across * outputs) {}
};

/// Sets pixels[i][j] = the address of pixel (first_row + i, first_column + j) of an image in
/// `images`, or `zeros` outside of the image.
template <std::int64_t size>
void find_pixels(const TileGrid& grid, std::int64_t image, std::int64_t first_row,
                 std::int64_t first_column, const float* images, std::int64_t channels,
                 const float* zeros, const float* (&pixels)[size][size]) {
  for (std::int64_t i = 0; i < size; ++i) {
    for (std::int64_t j = 0; j < size; ++j) {
      const std::int64_t row = first_row + i, column = first_column + j;
      const bool inside = row >= 0 && row < grid.height && column >= 0 && column < grid.width;
      pixels[i][j] =
          inside ? images + ((image * grid.height + row) * grid.width + column) * channels : zeros;
    }
  }
}

/// Transforms the columns of a tile of from x from vectors, then the first `rows` of the rows that
/// result: put(i, j, vector) gets T tile T^T, with T = transform() and get(i, j) = the tile.
template <auto transform, std::int64_t from, std::int64_t to, class Get, class Put>
inline void transform_tile(const Get& get, std::int64_t rows, const Put& put) {
  Line<from> half[to];
#pragma GCC unroll 6
  for (std::int64_t j = 0; j < from; ++j) {
    Line<from> column;
#pragma GCC unroll 6
    for (std::int64_t i = 0; i < from; ++i) column.at[i] = get(i, j);
    const Line<to> transformed = transform(column);
#pragma GCC unroll 6
    for (std::int64_t i = 0; i < to; ++i) half[i].at[j] = transformed.at[i];
  }
#pragma GCC unroll 6
  for (std::int64_t i = 0; i < to; ++i) {
    if (i >= rows) break;
    const Line<to> transformed = transform(half[i]);
#pragma GCC unroll 6
    for (std::int64_t j = 0; j < to; ++j) put(i, j, transformed.at[j]);
  }
}

/// Writes the 36 terms of B^T d B to v[term], `v_term` numbers apart; d are `lanes` channels from
/// `channel` on.
inline void transform_input_tile(const float* const (&pixels)[inputs][inputs], std::int64_t channel,
                                 float* v, std::int64_t v_term) {
  transform_tile<transform_input, inputs, inputs>(
      [&](std::int64_t i, std::int64_t j) { return load(pixels[i][j] + channel); }, inputs,
      [&](std::int64_t i, std::int64_t j, const Vector& value) {
        store(v + (i * inputs + j) * v_term, value);
      });
}

}  // namespace trireme::ops::cpu::winograd
