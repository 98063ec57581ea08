// SPDX-License-Identifier: Apache-2.0
//
// Mean and variance of x in one pass. Called by src/ops/normalization.cpp in the forward pass of
// batch norm and group norm.
//
//   1  Partial   a tile per task          mean and M2 of each channel in a chunk of rows
//   2  Channel   16 channels per task     mean and M2 of each channel over a segment
//   3  Group     a group per task         mean, rstd, unbiased variance
//
// Each lane subtracts its own first number. The sum of squared differences is then at most 1 + n
// times the lane's M2 (n <= 128 numbers; about 2 times on average), so a large mean cancels no
// digits.
// Lanes, chunks and channels are combined in double by Chan, Golub and LeVeque (1983): sum of n_i *
// (mean_i - mean)^2 plus sum of M2_i.
// Memory traffic: x once.

#include "norm_statistics_device.hpp"
#include "norm_tile.hpp"

#include <cmath>

namespace trireme::kernels {
namespace {

const std::string partial_label = "trireme/kernels/norm_statistics_partial";
const std::string channel_label = "trireme/kernels/norm_statistics_channel";
const std::string group_label = "trireme/kernels/norm_statistics_group";

template <class T>
struct Partial {
  Tiling tiling;
  const T* x;
  float* partials;

  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    constexpr int capacity = tile_lanes;
    const Tile tile = tiling[index];
    alignas(64) float shift[capacity], sum[capacity], square[capacity];
    const T* first = x + tile.offset;
#pragma omp simd
    for (int lane = 0; lane < tile.lanes; ++lane) {
      shift[lane] = to_float(first[lane]);
      sum[lane] = square[lane] = 0;
    }
    const std::int64_t stride = tile.stride;
    for_packed_rows(tile, 1, [&](auto rows, std::int64_t offset, int lanes) {
      const T* p = x + offset;
#pragma omp simd
      for (int lane = 0; lane < lanes; ++lane) {
        float total = sum[lane], total_square = square[lane];
        for (int row = 0; row < decltype(rows)::value; ++row) {
          const float difference = to_float(p[row * stride + lane]) - shift[lane];
          total += difference;
          total_square += difference * difference;
        }
        sum[lane] = total;
        square[lane] = total_square;
      }
    });
    fold(tile, shift, sum, square);
  }

  /// Combines the lanes of each channel to its mean and M2 over the tile's rows.
  KOKKOS_FUNCTION void fold(const Tile& tile, float* mean, float* offset, float* m2) const {
    constexpr int capacity = tile_lanes;
    const float inverse_whole = 1.0f / tile.count(tile.tail),
                inverse_longer = 1.0f / tile.count(-1);
#pragma omp simd
    for (int lane = 0; lane < tile.lanes; ++lane) {
      offset[lane] *= lane < tile.tail ? inverse_longer : inverse_whole;
      mean[lane] += offset[lane];
      m2[lane] -= offset[lane] * offset[lane] * tile.count(lane);
    }
    double total[capacity], square[capacity];
    for (int c = 0; c < tile.width; ++c) total[c] = square[c] = 0;
    for (int k = 0; k < tile.repeat; ++k) {
      const float* lane_mean = mean + k * tile.width;
      const double count = tile.count(k * tile.width);
#pragma omp simd
      for (int c = 0; c < tile.width; ++c) total[c] += count * lane_mean[c];
    }
    const double inverse_rows = 1.0 / static_cast<double>(tile.rows);
    for (int c = 0; c < tile.width; ++c) total[c] *= inverse_rows;
    for (int k = 0; k < tile.repeat; ++k) {
      const float *lane_mean = mean + k * tile.width, *lane_m2 = m2 + k * tile.width;
      const double count = tile.count(k * tile.width);
#pragma omp simd
      for (int c = 0; c < tile.width; ++c) {
        const double difference = lane_mean[c] - total[c];
        square[c] += lane_m2[c] + count * difference * difference;
      }
    }
    float *means = partials + tiling.partial(tile, 0),
          *squares = partials + tiling.partial(tile, 1);
    for (int c = 0; c < tile.width; ++c) {
      means[c] = static_cast<float>(total[c]);
      squares[c] = static_cast<float>(square[c]);
    }
  }
};

/// channel_sums [segments, 2, channels] = mean and M2 of each channel over a segment, from its
/// chunks.
struct Channel {
  Tiling tiling;
  const float* partials;
  double* channel_sums;

  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    constexpr int capacity = channel_lanes;
    const std::int64_t channels = tiling.channels, runs = ceil_div(channels, capacity);
    const std::int64_t segment = index / runs, begin = index % runs * capacity;
    const int width = static_cast<int>(channels - begin < capacity ? channels - begin : capacity);
    const float* mean = partials + segment * tiling.chunks * 2 * channels + begin;
    double total[capacity] = {}, square[capacity] = {};
    for (std::int64_t chunk = 0; chunk < tiling.chunks; ++chunk) {
      const double rows = static_cast<double>(tiling.rows_of(chunk));
      for (int c = 0; c < width; ++c) total[c] += rows * mean[chunk * 2 * channels + c];
    }
    for (int c = 0; c < width; ++c) total[c] /= static_cast<double>(tiling.rows);
    for (std::int64_t chunk = 0; chunk < tiling.chunks; ++chunk) {
      const double rows = static_cast<double>(tiling.rows_of(chunk));
      const float *chunk_mean = mean + chunk * 2 * channels, *chunk_m2 = chunk_mean + channels;
      for (int c = 0; c < width; ++c) {
        const double difference = chunk_mean[c] - total[c];
        square[c] += chunk_m2[c] + rows * difference * difference;
      }
    }
    double* out = channel_sums + segment * 2 * channels + begin;
    for (int c = 0; c < width; ++c) {
      out[c] = total[c];
      out[channels + c] = square[c];
    }
  }
};

/// Mean, rstd and unbiased variance of one group from its channels.
struct Group {
  NormShape shape;
  const double* channel_sums;
  NormStatistics out;

  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    const std::int64_t width = shape.channels / shape.groups, segment = index / shape.groups,
                       group = index % shape.groups;
    const double* means = channel_sums + segment * 2 * shape.channels + group * width;
    const double* squares = means + shape.channels;
    const double rows = static_cast<double>(shape.rows), count = rows * static_cast<double>(width);
    double mean = 0, square = 0;
    for (std::int64_t c = 0; c < width; ++c) mean += means[c];
    mean /= static_cast<double>(width);
    for (std::int64_t c = 0; c < width; ++c)
      square += squares[c] + rows * (means[c] - mean) * (means[c] - mean);
    out.mean[index] = static_cast<float>(mean);
    out.rstd[index] =
        static_cast<float>(1.0 / sqrt(square / count + static_cast<double>(out.epsilon)));
    if (out.unbiased_variance != nullptr)
      out.unbiased_variance[index] = static_cast<float>(square / (count > 1 ? count - 1 : 1));
  }
};

template <class Space, class T>
void add_up(const Space& space, const NormShape& shape, const T* x,
            const NormWorkspace& workspace) {
  if constexpr (on_host<Space>) {
    const Tiling tiling(shape);
    for_each_index(space, partial_label, tiling.count(), Partial<T>{tiling, x, workspace.partials});
    for_each_index(space, channel_label, shape.segments * ceil_div(shape.channels, channel_lanes),
                   Channel{tiling, workspace.partials, workspace.channel_sums});
  } else {
    with_lanes<T>(shape, packs_fit(x), [&](auto lanes) {
      using Work = SlabStatistics<Space, T, decltype(lanes)::value>;
      const Slabs<decltype(lanes)::value> slabs(shape);
      for_each_scratch_team<slab_members, Work::together>(space, partial_label, slabs.count(),
                                                          Work::scratch_bytes(),
                                                          Work{slabs, x, workspace.partials});
      const ChannelTeams teams(shape.channels, slabs.chunks);
      for_each_scratch_team<ChannelTeams::members, 1>(
          space, channel_label, shape.segments * teams.tiles, ChannelTeams::scratch_bytes(),
          SegmentStatistics<Space>{teams, shape.rows, slabs.chunk_rows, workspace.partials,
                                   workspace.channel_sums});
    });
  }
}

template <class Space, class T>
void run_statistics(const Space& space, const NormShape& shape, const T* x,
                    const NormWorkspace& workspace, const NormStatistics& out) {
  add_up(space, shape, x, workspace);
  for_each_index(space, group_label, shape.segments * shape.groups,
                 Group{shape, workspace.channel_sums, out});
}

}  // namespace

std::int64_t norm_chunk_rows(const NormShape& shape) {
  // 64 KiB of float32: far more work than a task's start costs, and far less than a core's L2
  // cache.
  constexpr std::int64_t chunk_elements = 16384;
  // The partial sums (8 bytes per channel) stay below a sixteenth of the bytes read.
  constexpr std::int64_t min_rows = 64;
  std::int64_t rows = chunk_elements / shape.channels;
  if (rows < min_rows) rows = min_rows;
  return rows < shape.rows ? rows : shape.rows;
}

NormWorkspaceSizes norm_workspace_sizes(const NormShape& shape) {
  const std::int64_t chunks = ceil_div(shape.rows, norm_chunk_rows(shape));
  return {2 * shape.segments * chunks * shape.channels, 2 * shape.segments * shape.channels,
          2 * shape.segments * shape.groups};
}

template <class T>
void norm_statistics(const Stream& stream, const NormShape& shape, const T* x,
                     const NormWorkspace& workspace, const NormStatistics& out) {
  dispatch(stream, [=](const auto& space) { run_statistics(space, shape, x, workspace, out); });
}
template void norm_statistics(const Stream&, const NormShape&, const float*, const NormWorkspace&,
                              const NormStatistics&);
template void norm_statistics(const Stream&, const NormShape&, const BFloat16*,
                              const NormWorkspace&, const NormStatistics&);
template void norm_statistics(const Stream&, const NormShape&, const Float16*, const NormWorkspace&,
                              const NormStatistics&);

}  // namespace trireme::kernels
