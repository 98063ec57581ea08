// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/data/options.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/train/step/step_pipeline.hpp"

namespace trireme::train {

/// The part of a step that limits the speed of training.
enum class Bottleneck : std::uint8_t {
  reading,
  decoding,
  scaling,
  colors,
  augmentation,  ///< scaling or colors, where their times are not told apart
  transfer,
  communication,
  compute,
  nothing
};

/// The part that limits the speed, and a wait beside it that is worth a remedy.
struct Diagnosis {
  Bottleneck largest = Bottleneck::nothing;
  std::optional<Bottleneck> wait;  ///< for data or other ranks
  double gain = 0;  ///< the share of the time that steps without this wait would save
};

/// Finds the largest part of the time, from sums of the times of some steps: waits for data, waits
/// for other ranks, compute (forward, backward and update), or none of these (nothing). Waits for
/// data are reading, unless the reader threads spent more time with decoding, scaling and colors;
/// then the longest of these three. If no wait is the largest part and copies to the device took
/// 90 % of the time, it is transfer. The longer wait that is not the largest part is named too from
/// 5 % of the time.
Diagnosis diagnose(const StepTimes& sums);

/// Returns "bound by reading: raise data.workers ...": the part, and the remedy if there is one.
/// `decode`: the key data.decode, which is a remedy unless it is "fast" already.
std::string describe(const Diagnosis& diagnosis, data::Decoding decode);

/// Returns the text of the log for the steps of epochs `first` to `last` (from 1): how long they
/// took, the shares of data, communication and computation, and the diagnosis with its remedies.
/// "epoch 3: 469 steps of 0.0264 s; data 0.2 %, communication 0.0 %, compute 99.1 %: bound by
/// compute".
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
