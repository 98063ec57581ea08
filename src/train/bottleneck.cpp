// Says which part of a step limits the speed of training. The recorder logs it for every epoch.
#include "trireme/train/bottleneck.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::train {
namespace {

constexpr double communication_share = 0.2, reading_share = 0.05, transfer_share = 0.9,
                 compute_share = 0.75;

double compute_seconds(const StepTimes& times) {
  return times.forward + times.backward + times.optimizer;
}

const char* describe(Bottleneck bottleneck, data::Decoding decode) {
  switch (bottleneck) {
    case Bottleneck::reading:
      return "bound by reading: raise data.workers while cores are free, or copy the shards to "
             "local disks";
    case Bottleneck::decoding:
      if (decode == data::Decoding::fast)
        return "bound by decoding: raise data.workers while cores are free, or store smaller "
               "images (shard --resize) or pixels (--encode raw)";
      return "bound by decoding: raise data.workers while cores are free, store smaller images "
             "(shard --resize) or pixels (--encode raw), or use data.decode = \"fast\" (JPEG files "
             "and random_resized_crop)";
    case Bottleneck::scaling:
      return "bound by scaling: raise data.workers while cores are free, or store smaller images "
             "(shard --resize)";
    case Bottleneck::colors:
      return "bound by changes of colors: raise data.workers while cores are free, or use smaller "
             "images or fewer operations (color_jitter, rand_augment)";
    case Bottleneck::transfer:
      return "bound by transfer to the device: a larger batch.micro makes fewer, longer copies";
    case Bottleneck::communication:
      return "bound by communication: a larger batch.global communicates less often";
    case Bottleneck::compute: return "bound by compute";
    case Bottleneck::nothing: break;
  }
  return "bound by nothing: a larger batch.micro spends less time between computations";
}

Bottleneck find_reader_bottleneck(const data::ReadTimes& times) {
  if (times.decode + times.augment <= times.read + times.verify) return Bottleneck::reading;
  const double scaling = times.augment - times.colors;
  if (times.colors > std::max(times.decode, scaling)) return Bottleneck::colors;
  return scaling > times.decode ? Bottleneck::scaling : Bottleneck::decoding;
}

}  // namespace

Bottleneck find_bottleneck(const StepTimes& sums) {
  const auto is_at_least = [&](double seconds, double share) {
    return seconds >= share * sums.total;
  };
  if (is_at_least(sums.comm_exposed, communication_share) && sums.comm_exposed > sums.data)
    return Bottleneck::communication;
  if (is_at_least(sums.data, reading_share)) return find_reader_bottleneck(sums.readers);
  if (is_at_least(sums.transfer, transfer_share)) return Bottleneck::transfer;
  if (is_at_least(compute_seconds(sums), compute_share)) return Bottleneck::compute;
  return Bottleneck::nothing;
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
      percent(sums.comm_exposed), percent(compute_seconds(sums)),
      describe(find_bottleneck(sums), decode));
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
