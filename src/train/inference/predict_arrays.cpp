// SPDX-License-Identifier: Apache-2.0
//
// `trireme predict` for HDF5 and netCDF-4 files, which need no targets, on one rank.
//
//   files -> described by a child process, as for training (index_dataset) -> Loader without labels
//         -> micro-batches with unknown labels -> evaluate() -> outputs of each sample -> sink
#include "trireme/train/inference/predict_arrays.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "single_rank.hpp"
#include "stored_model.hpp"
#include "train/run/reader_threads.hpp"
#include "train/run/restore.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/host.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/labels/label_meaning.hpp"
#include "trireme/data/shards/dataset_index.hpp"
#include "trireme/model/family.hpp"
#include "trireme/train/layout.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/run/run_state.hpp"
#include "trireme/train/step/evaluation.hpp"

namespace trireme::train {
namespace {

/// Returns the deck of a checkpoint. Throws InputError if its model was not trained on HDF5 files
/// of other programs.
deck::Deck array_deck(const checkpoint::Contents& contents, const std::string& path, Log& log) {
  deck::Deck deck = single_rank_deck(contents, path, log);
  validate(!takes_tokens(deck.model),
           "{}: holds a language model, which takes no samples of HDF5 files; trireme generate "
           "continues a text with it",
           path);
  validate(deck.data.hdf5.is_used(),
           "{}: its deck has no table [data.hdf5], which says how to read such files; name JPEG or "
           "PNG files without --out, or train with the table, also on shards of such files",
           path);
  return deck;
}

/// Compares the samples of the files with those that the model was trained on. `file`: the first.
void validate_inputs(const data::DatasetInfo& info, const std::string& file,
                     const TrainedImages& trained, const std::string& checkpoint, Log& log) {
  const Shape& extents = trained.extents;
  validate(info.height == extents[0] && info.width == extents[1] && info.channels == extents[2],
           "{}: has samples of {} x {} x {} (height, width, channels), but the model of {} takes "
           "{} x {} x {}",
           file, info.height, info.width, info.channels, checkpoint, extents[0], extents[1],
           extents[2]);
  const bool fits = trained.pixel_type ? info.pixel_type == *trained.pixel_type
                                       : 8 * size_of(info.pixel_type) == trained.pixel_bits;
  validate(
      fits,
      "{}: has inputs of {}, but the model of {} was trained on inputs of {}, which are scaled "
      "otherwise; store them with the type of the training set",
      file, to_string(info.pixel_type), checkpoint,
      trained.pixel_type ? to_string(*trained.pixel_type)
                         : fmt::format("{} bits", trained.pixel_bits));
  if (!trained.pixel_type && trained.pixel_bits == 16)
    log.warn("{}: does not say whether its 16 bits are uint16 or float16; the files have {}",
             checkpoint, to_string(info.pixel_type));
}

/// Returns the outputs of the model in a checkpoint for inputs of its extents. Throws InputError if
/// they are not of the form of its answer.
AnswerExtents outputs_of(const deck::Deck& deck, const checkpoint::Contents& contents,
                         const Shape& extents, const std::string& path) {
  const model::Family& family = family_of(deck.model);
  const Answer& answer = deck.target.answer();
  const std::int64_t count = family.classes_in(
      deck.model, answer, {1, extents[0], extents[1], extents[2]}, shapes_in(contents, path));
  data::check_target_size(deck.target, answer.has_float_targets ? count : 1);
  return model::outputs_of(deck.model, {1, extents[0], extents[1], extents[2]}, count,
                           answer.is_map);
}

/// Returns what the replica needs to know of the data.
data::DatasetInfo described(const data::DatasetInfo& files, const Answer& answer,
                            const AnswerExtents& outputs) {
  data::DatasetInfo info = files;
  info.target = outputs;
  info.target_kind = answer.kind;
  return info;
}

/// Throws InputError with the file if an output is NaN or infinite.
void validate_finite(const EvaluatedRows& rows, const std::vector<ArrayPrediction::File>& files,
                     const std::string& checkpoint) {
  const auto broken = std::ranges::find_if(rows.logits, [](float x) { return !std::isfinite(x); });
  if (broken == rows.logits.end()) return;
  const auto outputs_of_sample = std::ssize(rows.logits) / std::ssize(rows.samples);
  std::int64_t row =
      rows.samples[static_cast<std::size_t>((broken - rows.logits.begin()) / outputs_of_sample)];
  auto file = files.begin();
  for (; row >= file->samples; ++file) row -= file->samples;
  throw InputError(
      fmt::format("{}: of sample {} the model of {} computes values that are not finite; its "
                  "weights are of no use, or the inputs are far from those it was trained on",
                  file->path, row, checkpoint));
}

/// Labels that are unknown, of a whole micro-batch.
class UnknownLabels {
 public:
  explicit UnknownLabels(const ReplicaOptions& options)
      : shape_{options.micro * options.labels_per_sample()},
        classes_(static_cast<std::size_t>(shape_[0]), -1),
        numbers_(static_cast<std::size_t>(shape_[0]), std::numeric_limits<float>::quiet_NaN()),
        has_float_targets_(options.answer().has_float_targets) {}
  Tensor tensor() {
    void* const data = has_float_targets_ ? static_cast<void*>(numbers_.data()) : classes_.data();
    return {data, has_float_targets_ ? DType::float32 : DType::int32, DeviceKind::cpu, shape_};
  }

 private:
  Shape shape_;
  std::vector<std::int32_t> classes_;
  std::vector<float> numbers_;
  bool has_float_targets_;
};

}  // namespace

void predict_arrays(const ArrayPredictRequest& request, Log& log,
                    const std::function<void(const ArrayPrediction&)>& begin, const RowSink& sink) {
  // 1. Verify the checkpoint, and describe the files.
  const std::string& path = request.checkpoint;
  const checkpoint::Contents contents = read_verified_contents(comm::Communicator(), path);
  deck::Deck deck = array_deck(contents, path, log);
  const Answer& answer = deck.target.answer();
  if (request.check) request.check(answer);
  const std::optional<TrainedImages> trained = trained_images_of(contents.info, path);
  data::SampleForm form = evaluation_form(deck);
  form.target_use = data::TargetUse::none;
  data::DatasetIndex index = data::index_dataset(request.places, form);
  ArrayPrediction prediction{.files = {},
                             .target = deck.target,
                             .outputs = {},
                             .classes = {},
                             .deck = contents.info.deck,
                             .checkpoint_digest = checkpoint::combined_digest(contents.tensors)};
  for (const data::ShardIndex& file : index.shards) prediction.files.push_back({file.path, 0});
  const data::Dataset set(std::move(index), form);
  for (std::size_t i = 0; i < prediction.files.size(); ++i)
    prediction.files[i].samples = set.info().shard_samples[i];
  const data::DatasetInfo& samples = set.info();
  const Shape extents{samples.height, samples.width, samples.channels};
  if (trained)
    validate_inputs(samples, prediction.files.front().path, *trained, path, log);
  else
    log.info("{}: names no inputs, as imported ones; those of the files are {} {}", path,
             to_string(samples.pixel_type), to_string(extents));
  prediction.outputs = outputs_of(deck, contents, extents, path);
  const data::DatasetInfo info = described(set.info(), answer, prediction.outputs);
  // 2. Build the replica and load the weights.
  deck.batch.micro = std::min(info.samples, max_predicted_at_once);
  const Device device = choose_device(deck, 0);
  validate_precision(deck, describe_device(device));
  ReplicaOptions options = single_rank_options(deck, info);
  options.kept_rows = KeptRows::logits;
  validate_shapes(model::Model(deck.model, options.input_shape(), options.outputs), contents, path);
  SingleRank rank(options, device, log);
  load_weights(rank.replica, contents, path, request.weights);
  if (answer.is_one_class()) {
    const data::LabelMeaning meaning = meaning_of(contents.info, path);
    prediction.classes = class_names(std::span(&meaning, 1), options.outputs.count);
  }
  begin(prediction);
  // 3. Compute the outputs.
  data::LoaderOptions reading = evaluation_loader_options(
      deck, set, rank.mesh, device,
      deck.data.workers > 0 ? deck.data.workers : choose_reader_threads(available_cores(), 1, 1));
  reading.labels = false;
  data::Loader loader(set, reading);
  UnknownLabels labels(options);
  EvaluationPass pass = start_pass(loader);
  data::MicroBatch batch;
  pass.next = [&, next = pass.next](std::exception_ptr& error) -> const data::MicroBatch& {
    batch = next(error);
    batch.labels = labels.tensor();
    return batch;
  };
  pass.sink = [&](const EvaluatedRows& rows) {
    validate_finite(rows, prediction.files, path);
    sink(rows);
  };
  if (request.flips) pass.views = ImageViews::with_mirror_image;
  evaluate(rank.replica, pass);
}

}  // namespace trireme::train
