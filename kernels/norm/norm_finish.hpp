// SPDX-License-Identifier: Apache-2.0
#pragma once

// The launches of the norms' backward between its two passes over the tensors: the sums of channels
// from those of chunks, then the gradients of the parameters and the coefficients of dx. Used by
// norm_backward.cpp and norm_joined.cpp.

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <string>

#include "norm_backward_device.hpp"
#include "trireme/kernels/norm/normalization.hpp"

namespace trireme::kernels {

/// The first `channels` indices compute dgamma, dbeta and the running statistics, the others the
/// coefficients [segments, groups, 2] of a group's dx.
/// `synchronized`: over the batches of several ranks. Without it the kernel needs fewer registers.
template <bool synchronized>
struct Finish {
  NormShape shape;
  const double* channel_sums;
  NormBatchSums batches;  ///< channel_sums, or those of several ranks
  const float *gamma, *mean, *rstd;
  float *coefficients, *dgamma, *dbeta;
  NormRunning running;
  bool add_parameters;

  KOKKOS_FUNCTION std::int64_t groups() const { return shape.segments * shape.groups; }
  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    index < shape.channels ? parameters(index) : group(index - shape.channels);
  }
  KOKKOS_FUNCTION void parameters(std::int64_t channel) const {
    double beta = 0, scale = 0;
    for (std::int64_t segment = 0; segment < shape.segments; ++segment) {
      const double* sums = channel_sums + segment * 2 * shape.channels + channel;
      beta += sums[0];
      scale += sums[shape.channels];
    }
    parameters(channel, beta, scale);
  }
  KOKKOS_FUNCTION void parameters(std::int64_t channel, double beta, double scale) const {
    write(dbeta[channel], static_cast<float>(beta));
    write(dgamma[channel], static_cast<float>(scale));
    if (running.mean == nullptr) return;
    write(running.mean[channel], running.scale * mean[channel]);
    write(running.variance[channel], running.scale * running.unbiased_variance[channel]);
  }
  KOKKOS_FUNCTION void write(float& to, float value) const {
    to = add_parameters ? to + value : value;
  }
  KOKKOS_FUNCTION void group(std::int64_t index) const {
    const std::int64_t width = shape.channels / shape.groups, segment = index / shape.groups,
                       first = index % shape.groups * width;
    const double* sums = batches.sums + segment * 2 * shape.channels + first;
    double mean = 0, slope = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      double sum = sums[c], product = sums[shape.channels + c];
      if constexpr (synchronized) {
        for (int part = 1; part < batches.parts; ++part) {
          sum += sums[part * 2 * shape.channels + c];
          product += sums[part * 2 * shape.channels + shape.channels + c];
        }
      }
      mean += gamma[first + c] * sum;
      slope += gamma[first + c] * product;
    }
    const std::int64_t rows = synchronized ? shape.rows * batches.parts : shape.rows;
    const double scale = rstd[index] / (static_cast<double>(rows) * static_cast<double>(width));
    coefficients[2 * index] = static_cast<float>(mean * scale);
    coefficients[2 * index + 1] = static_cast<float>(slope * scale * rstd[index]);
  }
};

template <bool synchronized, class T>
Finish<synchronized> finish_of(const NormShape& shape, const NormBackward<T>& args,
                               const NormWorkspace& workspace, const NormBatchSums& batches) {
  return {shape,
          workspace.channel_sums,
          batches,
          args.gamma,
          args.mean,
          args.rstd,
          workspace.coefficients,
          args.dgamma,
          args.dbeta,
          args.running,
          args.add_parameters};
}

/// Device form: channel_sums from the partials of `chunks` chunks.
template <class Space>
void add_chunks(const Space& space, const std::string& label, const NormShape& shape, int chunks,
                const float* rstd, const NormWorkspace& workspace) {
  const ChannelTeams teams(shape.channels, chunks);
  for_each_scratch_team<ChannelTeams::members, 1>(
      space, label, shape.segments * teams.tiles, ChannelTeams::scratch_bytes(),
      SegmentGradientSums<Space>{teams, shape.groups, workspace.partials, rstd,
                                 workspace.channel_sums});
}

/// Device form: runs `finish` for all channels and groups.
template <class Space, bool synchronized>
void finish_channels(const Space& space, const std::string& label,
                     const Finish<synchronized>& finish) {
  const FinishTeams<Space, Finish<synchronized>> teams{
      ChannelTeams(finish.shape.channels, finish.shape.segments), finish};
  for_each_scratch_team<ChannelTeams::members, 1>(space, label, teams.count(),
                                                  ChannelTeams::scratch_bytes(), teams);
}

}  // namespace trireme::kernels
