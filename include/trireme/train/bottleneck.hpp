#pragma once

#include <cstdint>
#include <string>

#include "trireme/train/step_pipeline.hpp"

namespace trireme::train {

/// The part of a step that limits the speed of training.
enum class Bottleneck : std::uint8_t {
  reading,
  decoding,
  transfer,
  communication,
  compute,
  nothing
};

/// Finds the part that limits the speed, from sums of the times of some steps:
/// 1. communication, if the steps waited for other ranks for 20 % of the time or longer, and longer
///    than for data;
/// 2. if they waited for data for 5 % of the time or longer: decoding, if the reader threads spent
///    more time decoding, cropping and scaling than reading, else reading;
/// 3. transfer, if copies to the device took 90 % of the time or longer;
/// 4. compute, if forward, backward and update took 75 % of the time or longer;
/// 5. else nothing.
Bottleneck find_bottleneck(const StepTimes& sums);

/// Returns the line of the log for the last steps of an epoch: how long they took, the shares of
/// data, communication and computation, the bottleneck, and a remedy. "epoch 3: 469 steps of 0.0264
/// s; data 0.2 %, communication 0.0 %, compute 99.1 %: bound by compute". `epoch` counts from 1.
std::string describe_epoch(std::int64_t epoch, std::int64_t steps, const StepTimes& sums);

}  // namespace trireme::train
