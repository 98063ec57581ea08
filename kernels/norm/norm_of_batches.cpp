// SPDX-License-Identifier: Apache-2.0
//
// Mean and variance of each channel of a batch that several ranks hold in equal parts, from the
// mean and the unbiased variance of each part. Called by src/ops/normalization.cpp in the forward
// pass of batch norm that data ranks compute together.
//
// Parts are combined in double, in the order of the ranks, by Chan, Golub and LeVeque (1983): the
// sum of n * (mean_i - mean)^2 plus the sum of M2_i. So all ranks compute the same bits, and a
// large mean cancels no digits. Memory traffic: 8 bytes per channel and part, and 12 bytes per
// channel.

#include <cmath>

#include "kernels/space/launch.hpp"
#include "trireme/kernels/norm/normalization.hpp"

namespace trireme::kernels {
namespace {

const std::string of_batches_label = "trireme/kernels/norm_of_batches";

/// Statistics of one channel, one thread per channel.
struct StatisticsFromBatches {
  std::int64_t channels;
  double rows;  ///< of one part
  int parts;
  const float* gathered;
  NormStatistics out;

  KOKKOS_FUNCTION void operator()(std::int64_t channel) const {
    // M2 of a part from its unbiased variance, which of a single row is 0.
    const double count = rows * parts, freedom = rows > 1 ? rows - 1 : 1;
    const float *mean = gathered + channel, *variance = mean + channels;
    const double shift = mean[0];
    double sum = 0, square = 0;
    for (int part = 0; part < parts; ++part) sum += mean[2 * channels * part] - shift;
    const double offset = sum / parts;
    for (int part = 0; part < parts; ++part) {
      const double difference = mean[2 * channels * part] - shift - offset;
      square += variance[2 * channels * part] * freedom + rows * difference * difference;
    }
    out.mean[channel] = static_cast<float>(shift + offset);
    out.rstd[channel] =
        static_cast<float>(1.0 / sqrt(square / count + static_cast<double>(out.epsilon)));
    out.unbiased_variance[channel] = static_cast<float>(square / (count - 1));
  }
};

}  // namespace

void norm_of_batches(const Stream& stream, const NormShape& shape, const float* gathered, int parts,
                     const NormStatistics& out) {
  dispatch(stream, [=](const auto& space) {
    for_each_index(space, of_batches_label, shape.channels,
                   StatisticsFromBatches{shape.channels, static_cast<double>(shape.rows), parts,
                                         gathered, out});
  });
}

}  // namespace trireme::kernels
