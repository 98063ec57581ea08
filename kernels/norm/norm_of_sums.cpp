// SPDX-License-Identifier: Apache-2.0
//
// Mean and variance of each channel from s, the sum of its n numbers, and q, the sum of their
// squares. A convolution's epilogue has computed both. Called by src/ops/normalization.cpp.
// variance = q / n - (s / n)^2 in double. The sums are float32 and were added in an unknown order,
// so cancellation needs a bound:
// - Let each sum be off by e times the sum of its terms' absolute values. Then the variance is off
//   by at most 3 e times the mean square q / n.
// - 1 / sqrt(variance + epsilon) is then off by a relative 1.5 e times mean square / (variance +
//   epsilon).
// - That ratio is limited to max_cancellation = 32. A channel above it has a mean of more than 5.5
//   standard deviations; it is read again and added in double around its first number.
// - Example: 25000 partial sums over tiles of about 100 rows, added in float32, have e = 10^-5. The
//   error of rstd is 5 * 10^-4, one rounding of float16.
// Memory traffic: 16 bytes per channel, and x of the channels that are read again, with the cache
// lines around them.

#include "norm_statistics_device.hpp"

#include <cmath>

namespace trireme::kernels {
namespace {

const std::string of_sums_label = "trireme/kernels/norm_of_sums";

constexpr double max_cancellation = 32;

/// Statistics of one channel. The host runs it as one thread per channel.
template <class T>
struct StatisticsFromSums {
  NormShape shape;
  const T* x;
  float* sums;
  NormStatistics out;

  KOKKOS_FUNCTION double rows() const { return static_cast<double>(shape.rows); }
  /// Computes mean and M2 of a channel from the sums. Returns false if cancellation leaves too few
  /// digits, or if a sum is NaN.
  KOKKOS_FUNCTION bool read(std::int64_t channel, ChannelSums& moments) const {
    const double mean = sums[channel] / rows(),
                 mean_square = sums[shape.channels + channel] / rows(),
                 variance = mean_square - mean * mean;
    moments = {{mean, variance > 0 ? variance * rows() : 0}};
    return mean_square <= max_cancellation * (variance + static_cast<double>(out.epsilon));
  }
  /// Returns the sums around the channel's first number over the rows first, first + step, ...
  KOKKOS_FUNCTION ChannelSums add_up(std::int64_t channel, std::int64_t first,
                                     std::int64_t step) const {
    const double shift = to_float(x[channel]);
    ChannelSums total;
    for (std::int64_t row = first; row < shape.rows; row += step)
      add_moments(total, 1, to_float(x[row * shape.channels + channel]) - shift, 0);
    return total;
  }
  KOKKOS_FUNCTION ChannelSums around_mean(std::int64_t channel, const ChannelSums& total) const {
    return combined(total, rows(), to_float(x[channel]));
  }
  /// Writes the statistics of a channel, and 0 to its sums, for the next convolution that adds.
  KOKKOS_FUNCTION void write(std::int64_t channel, const ChannelSums& moments) const {
    sums[channel] = sums[shape.channels + channel] = 0;
    const double square = moments.value[1];
    out.mean[channel] = static_cast<float>(moments.value[0]);
    out.rstd[channel] =
        static_cast<float>(1.0 / sqrt(square / rows() + static_cast<double>(out.epsilon)));
    out.unbiased_variance[channel] = static_cast<float>(square / (shape.rows > 1 ? rows() - 1 : 1));
  }

  KOKKOS_FUNCTION void operator()(std::int64_t channel) const {
    ChannelSums moments;
    if (!read(channel, moments)) moments = around_mean(channel, add_up(channel, 0, 1));
    write(channel, moments);
  }
};

/// Device form: a team per channel. Its first thread does everything unless the channel is read
/// again.
template <class Space, class T>
struct StatisticsFromSumsTeam {
  StatisticsFromSums<T> statistics;
  static constexpr int members = default_team_size;

  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  static constexpr int scratch_bytes() { return members * static_cast<int>(sizeof(ChannelSums)); }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const std::int64_t channel = team.league_rank();
    ChannelSums moments;
    ChannelSums* totals = team_scratch<ChannelSums>(team, members);
    const bool enough = statistics.read(channel, moments);
    if (!enough) {
      for (int member = team.team_rank(); member < members; member += team.team_size())
        totals[member] = statistics.add_up(channel, member, members);
    }
    // Every member has read the sums before they are set to 0.
    team.team_barrier();
    if (team.team_rank() > 0) return;
    if (!enough) {
      ChannelSums total;
      for (int member = 0; member < members; ++member) {
        for (int k = 0; k < 2; ++k) total.value[k] += totals[member].value[k];
      }
      moments = statistics.around_mean(channel, total);
    }
    statistics.write(channel, moments);
  }
};

}  // namespace

template <class T>
void norm_of_sums(const Stream& stream, const NormShape& shape, const T* x, float* sums,
                  const NormStatistics& out) {
  dispatch(stream, [=]<class Space>(const Space& space) {
    const StatisticsFromSums<T> statistics{shape, x, sums, out};
    if constexpr (on_host<Space>) {
      for_each_index(space, of_sums_label, shape.channels, statistics);
    } else {
      using Work = StatisticsFromSumsTeam<Space, T>;
      for_each_scratch_team<Work::members, 1>(space, of_sums_label, shape.channels,
                                              Work::scratch_bytes(), Work{statistics});
    }
  });
}
template void norm_of_sums(const Stream&, const NormShape&, const float*, float*,
                           const NormStatistics&);
template void norm_of_sums(const Stream&, const NormShape&, const BFloat16*, float*,
                           const NormStatistics&);
template void norm_of_sums(const Stream&, const NormShape&, const Float16*, float*,
                           const NormStatistics&);

}  // namespace trireme::kernels
