// SPDX-License-Identifier: Apache-2.0
//
// Uploads micro-batches on a copy stream; timeline in batch_uploader.hpp. Called by
// PipelineStage::forward() and PipelineStage::evaluate().
#include "batch_uploader.hpp"

namespace trireme::train {
namespace {

constexpr std::int64_t key_bytes = sizeof(std::uint64_t),
                       transform_bytes = sizeof(ops::ImageTransform);

void copy(const Stream& stream, const void* from, const Tensor& to) {
  copy_bytes(stream, to.data, from, static_cast<std::size_t>(to.bytes()));
}

}  // namespace

BatchUploader::BatchUploader(const ReplicaOptions& options, Device device, bool separate_memory,
                             bool inputs, int retained, Arena& memory)
    : copy_stream_(device),
      inputs_read_(device),
      previous_upload_(device),
      upload_done_(device),
      per_step_(options.accumulation) {
  for (int place = 0; place < retained + (separate_memory ? 1 : 0); ++place) {
    retained_.push_back(
        {memory.allocate(options.label_type(), {options.micro * options.labels_per_sample()}),
         memory.allocate(DType::uint8, {options.micro * key_bytes}),
         options.trains && options.augment.mixing.is_on()
             ? memory.allocate(DType::float32, {options.micro})
             : Tensor{}});
  }
  uploads_at_.resize(retained_.size());
  if (!separate_memory || !inputs) return;
  input_memory_ = memory.allocate(options.input_type(), options.input_shape());
  if (!options.tokens())
    transform_memory_ = memory.allocate(DType::uint8, {options.micro * transform_bytes});
}

void BatchUploader::upload(const Stream& compute, const data::MicroBatch& batch, int number,
                           TransferClock* clock) {
  upload_inputs(batch, clock);
  // The mark of the previous upload is late enough if all other buffers were filled since this
  // buffer's last upload: all kernels that read the old content were enqueued before that mark.
  // Otherwise wait for everything that is enqueued now.
  std::int64_t& last_upload = uploads_at_[buffer_of(number)];
  const bool previous_mark_suffices =
      num_uploads_ - last_upload + 1 >= static_cast<std::int64_t>(retained_.size()) &&
      retained_.size() > 1;
  if (previous_mark_suffices) previous_upload_.delay(copy_stream_);
  previous_upload_.record(compute);
  if (!previous_mark_suffices) previous_upload_.delay(copy_stream_);
  last_upload = ++num_uploads_;
  // The copies, then the event that makes compute wait for them. `copied` lets the loader reuse its
  // memory.
  const Retained& to = retained(number);
  if (clock != nullptr) clock->start(copy_stream_);
  if (batch.labels.defined()) copy(copy_stream_, batch.labels.data, to.labels);
  if (batch.sample_keys != nullptr) copy(copy_stream_, batch.sample_keys, to.sample_keys);
  if (batch.label_weights != nullptr) copy(copy_stream_, batch.label_weights, to.label_weights);
  if (clock != nullptr) clock->stop(copy_stream_);
  upload_done_.record(copy_stream_);
  upload_done_.delay(compute);
  if (batch.copy_done != nullptr) batch.copy_done->record(copy_stream_);
}

void BatchUploader::upload_inputs(const data::MicroBatch& batch, TransferClock* clock) {
  inputs_ = {batch.inputs, batch.transforms};
  if (!input_memory_.defined()) return;
  inputs_read_.delay(copy_stream_);
  if (clock != nullptr) clock->start(copy_stream_);
  copy(copy_stream_, batch.inputs.data, inputs_.values = input_memory_);
  if (transform_memory_.defined() && batch.transforms != nullptr) {
    copy(copy_stream_, batch.transforms, transform_memory_);
    inputs_.transforms = reinterpret_cast<const ops::ImageTransform*>(transform_memory_.data);
  }
  if (clock != nullptr) clock->stop(copy_stream_);
}

}  // namespace trireme::train
