// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the normalizations walk over x [segments, rows, channels] on the host (device:
// norm_slab.hpp). A task is a tile: a chunk of rows by a range of channels.
// Narrow rows are packed: `repeat` rows side by side form one wide row, whose lane l belongs to
// channel l % channels. So inner loops always have a few hundred contiguous elements.
// A float32 lane adds only about 64 numbers, which keeps its error small. Lanes and chunks are
// added in double.

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <type_traits>

#include "kernels/space/launch.hpp"
#include "trireme/kernels/norm/normalization.hpp"

namespace trireme::kernels {

/// Lanes of the widest packed row; eight float arrays of this length fit in half an L1 cache.
constexpr int tile_lanes = 512;

/// Channels per task of the small per-channel kernels.
constexpr int channel_lanes = 16;

KOKKOS_INLINE_FUNCTION std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Returns the number of rows to pack side by side: as many as fill about 256 lanes, in a multiple
/// of 16 lanes if that fits.
KOKKOS_INLINE_FUNCTION std::int64_t packed_rows(std::int64_t channels, std::int64_t lanes) {
  if (2 * channels > lanes) return 1;
  std::int64_t unit = 1;
  while (unit < 16 && (unit * channels) % 16 != 0) unit *= 2;
  if (unit * channels > lanes) return lanes / channels;
  const std::int64_t units = lanes / 2 / (unit * channels);
  return unit * (units > 0 ? units : 1);
}

/// One task: a chunk of rows by a range of channels.
struct Tile {
  std::int64_t segment = 0, chunk = 0, channel = 0;
  /// index of its first element in x
  std::int64_t offset = 0;
  /// elements between packed rows
  std::int64_t stride = 0;
  /// rows of x
  std::int64_t rows = 0;
  /// complete packed rows; if tail > 0, one more with `tail` lanes follows
  std::int64_t full = 0;
  /// channels
  int width = 0;
  int repeat = 1, lanes = 0, tail = 0;

  KOKKOS_FUNCTION std::int64_t steps() const { return full + (tail > 0 ? 1 : 0); }
  KOKKOS_FUNCTION int lanes_of(std::int64_t step) const { return step < full ? lanes : tail; }
  /// Returns the number of elements that the lane adds.
  KOKKOS_FUNCTION float count(int lane) const {
    return static_cast<float>(full + (lane < tail ? 1 : 0));
  }
};

/// The partition of x into tiles, a function of the shape alone.
struct Tiling {
  std::int64_t rows, channels, chunk_rows, chunks, tiles, packed, segments;

  explicit Tiling(const NormShape& shape)
      : rows(shape.rows),
        channels(shape.channels),
        chunk_rows(norm_chunk_rows(shape)),
        chunks(ceil_div(shape.rows, chunk_rows)),
        tiles(ceil_div(shape.channels, tile_lanes)),
        packed(packed_rows(shape.channels, tile_lanes)),
        segments(shape.segments) {}

  std::int64_t count() const { return segments * chunks * tiles; }
  KOKKOS_FUNCTION std::int64_t rows_of(std::int64_t chunk) const {
    const std::int64_t left = rows - chunk * chunk_rows;
    return left < chunk_rows ? left : chunk_rows;
  }
  KOKKOS_FUNCTION Tile operator[](std::int64_t index) const {
    Tile tile;
    tile.channel = index % tiles * tile_lanes;
    tile.chunk = index / tiles % chunks;
    tile.segment = index / tiles / chunks;
    tile.offset = (tile.segment * rows + tile.chunk * chunk_rows) * channels + tile.channel;
    tile.rows = rows_of(tile.chunk);
    tile.repeat = static_cast<int>(tile.rows < packed ? tile.rows : packed);
    tile.stride = tile.repeat * channels;
    const std::int64_t left = channels - tile.channel;
    tile.width = static_cast<int>(left < tile_lanes ? left : tile_lanes);
    tile.lanes = tile.repeat * tile.width;
    tile.full = tile.rows / tile.repeat;
    tile.tail = static_cast<int>(tile.rows % tile.repeat) * tile.width;
    return tile;
  }
  /// Returns the index of partial sum `which` (0 or 1) of the tile's first channel in partials
  /// [segments, chunks, 2, channels].
  KOKKOS_FUNCTION std::int64_t partial(const Tile& tile, int which) const {
    return ((tile.segment * chunks + tile.chunk) * 2 + which) * channels + tile.channel;
  }
};

/// Calls run(rows, offset, lanes) over the tile's packed rows, four at a time while four remain: a
/// lane's sums are then loaded and stored once per four rows. `rows` is a std::integral_constant.
template <class Run>
KOKKOS_INLINE_FUNCTION void for_packed_rows(const Tile& tile, std::int64_t first, const Run& run) {
  std::int64_t step = first;
  for (; step + 4 <= tile.full; step += 4)
    run(std::integral_constant<int, 4>(), tile.offset + step * tile.stride, tile.lanes);
  for (; step < tile.steps(); ++step)
    run(std::integral_constant<int, 1>(), tile.offset + step * tile.stride, tile.lanes_of(step));
}

/// Copies the first `width` lanes, one per channel, to the lanes of the other packed rows.
KOKKOS_INLINE_FUNCTION void repeat_lanes(const Tile& tile, float* lanes) {
  for (int lane = tile.width; lane < tile.lanes; ++lane) lanes[lane] = lanes[lane - tile.width];
}

}  // namespace trireme::kernels
