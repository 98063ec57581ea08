// Says which part of a step limits the speed of training. The recorder logs it for every epoch.
#include "trireme/train/bottleneck.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::train {
namespace {

constexpr double gain_share = 0.05, transfer_share = 0.9;

double compute_seconds(const StepTimes& times) {
  return times.forward + times.backward + times.optimizer;
}

struct Description {
  const char* name;
  const char* remedy;  ///< null: none is needed
};

Description describe(Bottleneck bottleneck, data::Decoding decode) {
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
    case Bottleneck::transfer:
      return {"transfer to the device", "a larger batch.micro makes fewer, longer copies"};
    case Bottleneck::communication:
      return {"communication", "a larger batch.global communicates less often"};
    case Bottleneck::compute: return {"compute", nullptr};
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

Bottleneck find_bottleneck(const StepTimes& sums) {
  const double compute = compute_seconds(sums),
               rest = sums.total - compute - sums.data - sums.comm_exposed;
  const double largest = std::max({compute, rest, sums.data, sums.comm_exposed});
  if (sums.data == largest && sums.data > 0) return find_reader_bottleneck(sums.readers);
  if (sums.comm_exposed == largest && sums.comm_exposed > 0) return Bottleneck::communication;
  if (sums.transfer >= transfer_share * sums.total) return Bottleneck::transfer;
  return compute == largest ? Bottleneck::compute : Bottleneck::nothing;
}

std::string describe_epochs(std::int64_t first, std::int64_t last, std::int64_t steps,
                            const StepTimes& sums, data::Decoding decode) {
  const auto percent = [&](double seconds) {
    return sums.total > 0 ? 100 * seconds / sums.total : 0;
  };
  const std::string epochs =
      first == last ? fmt::format("epoch {}", first) : fmt::format("epochs {} to {}", first, last);
  const Bottleneck bottleneck = find_bottleneck(sums);
  const Description bound = describe(bottleneck, decode);
  std::string line = fmt::format(
      "{}: {} of {:.3g} s; data {:.1f} %, communication {:.1f} %, compute {:.1f} %: bound by {}",
      epochs, counted(steps, "step", "steps"), sums.total / static_cast<double>(steps),
      percent(sums.data), percent(sums.comm_exposed), percent(compute_seconds(sums)), bound.name);
  if (bound.remedy != nullptr) line += fmt::format(": {}", bound.remedy);
  // The waits that are not the bottleneck.
  for (const auto& [seconds, part] : {std::pair{sums.data, find_reader_bottleneck(sums.readers)},
                                      std::pair{sums.comm_exposed, Bottleneck::communication}}) {
    if (part == bottleneck || seconds < gain_share * sums.total) continue;
    const Description other = describe(part, decode);
    line += fmt::format("; less {} can gain up to {:.1f} %: {}", other.name, percent(seconds),
                        other.remedy);
  }
  return line;
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
