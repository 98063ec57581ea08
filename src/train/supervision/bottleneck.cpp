// SPDX-License-Identifier: Apache-2.0
//
// Says which part of a step limits the speed of training. The recorder logs it for every epoch.
#include "trireme/train/supervision/bottleneck.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::train {
namespace {

constexpr double wait_share = 0.05, transfer_share = 0.9;

double compute_seconds(const StepTimes& times) {
  return times.forward + times.backward + times.optimizer;
}

/// A part of a step in the words of the log.
struct Words {
  std::string_view name, remedy;
};

Words describe_part(Bottleneck bottleneck, data::Decoding decode) {
  switch (bottleneck) {
    case Bottleneck::reading:
      return {"reading",
              "raise data.workers while cores are free, or copy the shards to local disks"};
    case Bottleneck::decoding:
      if (decode == data::Decoding::fast)
        return {"decoding",
                "raise data.workers while cores are free, or store smaller images (shard "
                "--resize) or pixels (--encode raw)"};
      return {"decoding",
              "raise data.workers while cores are free, store smaller images (shard --resize) or "
              "pixels (--encode raw), or use data.decode = \"fast\" (JPEG files and "
              "random_resized_crop)"};
    case Bottleneck::scaling:
      return {"scaling",
              "raise data.workers while cores are free, or store smaller images (shard --resize)"};
    case Bottleneck::colors:
      return {"changes of colors",
              "raise data.workers while cores are free, or use smaller images or fewer operations "
              "(color_jitter, rand_augment)"};
    case Bottleneck::augmentation:
      return {"augmentation",
              "raise data.workers while cores are free, or use smaller images or fewer operations"};
    case Bottleneck::transfer:
      return {"transfer to the device", "a larger batch.micro makes fewer, longer copies"};
    case Bottleneck::communication:
      return {"communication", "a larger batch.global communicates less often"};
    case Bottleneck::compute: return {"compute", ""};
    case Bottleneck::nothing: break;
  }
  return {"nothing", "a larger batch.micro spends less time between computations"};
}

Bottleneck find_reader_bottleneck(const data::ReadTimes& times) {
  if (times.decode + times.augment <= times.read + times.verify) return Bottleneck::reading;
  const double scaling = times.augment - times.colors;
  if (times.colors > std::max(times.decode, scaling)) return Bottleneck::colors;
  return scaling > times.decode ? Bottleneck::scaling : Bottleneck::decoding;
}

}  // namespace

Diagnosis diagnose(const StepTimes& sums) {
  struct Wait {
    Bottleneck part;
    double seconds;
  };
  Wait longer{find_reader_bottleneck(sums.readers), sums.data},
      shorter{Bottleneck::communication, sums.comm_exposed};
  if (shorter.seconds > longer.seconds) std::swap(longer, shorter);
  const double compute = compute_seconds(sums),
               rest = sums.total - compute - longer.seconds - shorter.seconds;
  Diagnosis diagnosis;
  const bool waits_longest = longer.seconds > std::max(compute, rest);
  if (waits_longest)
    diagnosis.largest = longer.part;
  else if (sums.transfer >= transfer_share * sums.total && sums.transfer > 0)
    diagnosis.largest = Bottleneck::transfer;
  else
    diagnosis.largest = compute >= rest ? Bottleneck::compute : Bottleneck::nothing;
  const Wait& beside = waits_longest ? shorter : longer;
  if (beside.seconds > 0 && beside.seconds >= wait_share * sums.total) {
    diagnosis.wait = beside.part;
    diagnosis.gain = beside.seconds / sums.total;
  }
  return diagnosis;
}

std::string describe(const Diagnosis& diagnosis, data::Decoding decode) {
  const Words largest = describe_part(diagnosis.largest, decode);
  std::string text = fmt::format("bound by {}", largest.name);
  if (!largest.remedy.empty()) text += fmt::format(": {}", largest.remedy);
  if (!diagnosis.wait) return text;
  const Words wait = describe_part(*diagnosis.wait, decode);
  return text +
         fmt::format("; {} can gain {:.1f} %: {}", wait.name, 100 * diagnosis.gain, wait.remedy);
}

std::string describe_epochs(std::int64_t first, std::int64_t last, std::int64_t steps,
                            const StepTimes& sums, data::Decoding decode) {
  const auto percent = [&](double seconds) {
    return sums.total > 0 ? 100 * seconds / sums.total : 0;
  };
  const std::string epochs =
      first == last ? fmt::format("epoch {}", first) : fmt::format("epochs {} to {}", first, last);
  return fmt::format(
      "{}: {} of {:.3g} s; data {:.1f} %, communication {:.1f} %, compute {:.1f} %: {}", epochs,
      counted(steps, "step", "steps"), sums.total / static_cast<double>(steps), percent(sums.data),
      percent(sums.comm_exposed), percent(compute_seconds(sums)), describe(diagnose(sums), decode));
}

std::string EpochSummary::add(data::Cursor cursor, const StepTimes& times) {
  constexpr double min_seconds = 1;
  sums_ += times;
  ++steps_;
  // The cursor after the last step of an epoch is in the next one.
  const bool has_ended = cursor.epoch > epoch_;
  epoch_ = cursor.epoch;
  position_ = cursor.position;
  return has_ended && sums_.total >= min_seconds ? take_line(epoch_) : "";
}

std::string EpochSummary::rest() {
  return steps_ == 0 ? "" : take_line(std::max(first_, position_ > 0 ? epoch_ : epoch_ - 1) + 1);
}

std::string EpochSummary::take_line(std::int64_t last) {
  const std::string line = describe_epochs(first_ + 1, last, steps_, sums_, decode_);
  first_ = epoch_;
  steps_ = 0;
  sums_ = {};
  return line;
}

}  // namespace trireme::train
