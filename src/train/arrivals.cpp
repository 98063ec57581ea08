#include "arrivals.hpp"

namespace trireme::train {
namespace {

constexpr std::int64_t key_bytes = sizeof(std::uint64_t),
                       transform_bytes = sizeof(ops::ImageTransform);

void copy(const Stream& stream, const void* from, const Tensor& to) {
  copy_bytes(stream, to.data, from, static_cast<std::size_t>(to.bytes()));
}

}  // namespace

Arrivals::Arrivals(const ReplicaOptions& options, Device device, bool apart, bool inputs, int kept,
                   Arena& memory)
    : copies_(device),
      read_(device),
      given_(device),
      there_(device),
      per_step_(options.accumulation) {
  for (int place = 0; place < kept + (apart ? 1 : 0); ++place) {
    kept_.push_back({memory.allocate(DType::int32, {options.micro * options.labels_per_sample()}),
                     memory.allocate(DType::uint8, {options.micro * key_bytes})});
  }
  taken_.resize(kept_.size());
  if (!apart || !inputs) return;
  input_memory_ =
      memory.allocate(options.tokens() ? DType::int32 : DType::uint8, options.input_shape());
  if (!options.tokens())
    transform_memory_ = memory.allocate(DType::uint8, {options.micro * transform_bytes});
}

void Arrivals::take(const Stream& compute, const data::MicroBatch& batch, int number) {
  take_inputs(batch);
  // What reads the one in whose place it comes was given to `compute` before the micro-batch taken
  // last, if that one had all places but this to follow in.
  std::int64_t& taken = taken_[place_of(number)];
  const bool left_long_ago =
      all_taken_ - taken + 1 >= static_cast<std::int64_t>(kept_.size()) && kept_.size() > 1;
  if (left_long_ago) given_.delay(copies_);
  given_.record(compute);
  if (!left_long_ago) given_.delay(copies_);
  taken = ++all_taken_;
  const Kept& to = kept(number);
  if (batch.labels.defined()) copy(copies_, batch.labels.data, to.labels);
  if (batch.sample_keys != nullptr) copy(copies_, batch.sample_keys, to.sample_keys);
  there_.record(copies_);
  there_.delay(compute);
  if (batch.copy_done != nullptr) batch.copy_done->record(copies_);
}

void Arrivals::take_inputs(const data::MicroBatch& batch) {
  inputs_ = {batch.inputs, batch.transforms};
  if (!input_memory_.defined()) return;
  read_.delay(copies_);
  copy(copies_, batch.inputs.data, inputs_.values = input_memory_);
  if (!transform_memory_.defined() || batch.transforms == nullptr) return;
  copy(copies_, batch.transforms, transform_memory_);
  inputs_.transforms = reinterpret_cast<const ops::ImageTransform*>(transform_memory_.data);
}

}  // namespace trireme::train
