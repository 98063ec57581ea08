#pragma once

#include <cstdint>
#include <string>

#include "trireme/data/options.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/train/step_pipeline.hpp"

namespace trireme::train {

/// The part of a step that limits the speed of training.
enum class Bottleneck : std::uint8_t {
  reading,
  decoding,
  scaling,
  colors,
  transfer,
  communication,
  compute,
  nothing
};

/// Finds the part that limits the speed, from sums of the times of some steps: the largest of
///
/// - waiting for data: reading, unless the reader threads spent more time with decoding, scaling
///   and colors; then the longest of these three;
/// - waiting for other ranks: communication;
/// - forward, backward and update: compute;
/// - the rest: nothing.
///
/// Instead of the last two it is transfer if copies to the device, which run beside them, took 90 %
/// of the time or longer.
Bottleneck find_bottleneck(const StepTimes& sums);

/// Returns the text of the log for the steps of epochs `first` to `last` (from 1): how long they
/// took, the shares of data, communication and computation, the bottleneck, and a remedy. "epoch 3:
/// 469 steps of 0.0264 s; data 0.2 %, communication 0.0 %, compute 99.1 %: bound by compute".
/// Waits of 5 % or more that are not the bottleneck follow with what they can gain at most.
/// `decode`: the key data.decode, which is a remedy unless it is "fast" already.
std::string describe_epochs(std::int64_t first, std::int64_t last, std::int64_t steps,
                            const StepTimes& sums, data::Decoding decode = data::Decoding::exact);

/// Sums the times of steps for a line of the log at the end of each epoch. Epochs whose steps take
/// less than a second share a line.
class EpochSummary {
 public:
  /// `epoch`: of the first step; the first epoch is 0. `decode`: the key data.decode.
  explicit EpochSummary(std::int64_t epoch, data::Decoding decode = data::Decoding::exact)
      : first_(epoch), epoch_(epoch), decode_(decode) {}
  /// Adds a step, after which training is at `cursor`. Returns the line if it ended an epoch and a
  /// line is due, else an empty string.
  std::string add(data::Cursor cursor, const StepTimes& times);
  /// Returns the line of the steps that are in no line; empty if there are none.
  std::string rest();

 private:
  std::string take_line(std::int64_t last);
  std::int64_t first_;  ///< the first epoch of the next line
  std::int64_t epoch_, position_ = 0;
  data::Decoding decode_;
  std::int64_t steps_ = 0;
  StepTimes sums_;
};

}  // namespace trireme::train
