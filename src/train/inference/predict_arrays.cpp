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
#include "trireme/train/layout.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/run/run_state.hpp"
#include "trireme/train/step/evaluation.hpp"

namespace trireme::train {
namespace {

// Samples that are computed at once; more would need more memory and compute little faster.
constexpr std::int64_t max_rows = 16;

/// The samples of one place.
struct Place {
  std::string name;
  data::Dataset set;
};

std::vector<Place> open_places(const ArrayPredictRequest& request, const data::SampleForm& form,
                               std::vector<ArrayPrediction::File>& files) {
  std::vector<Place> places;
  for (const std::string& name : request.places) {
    data::DatasetIndex index = data::index_dataset(name, form);
    std::vector<std::string> paths;
    for (const data::ShardIndex& file : index.shards) paths.push_back(file.path);
    places.push_back({name, data::Dataset(std::move(index), form)});
    const std::vector<std::int64_t>& samples = places.back().set.info().shard_samples;
    TRIREME_EXPECT(samples.size() == paths.size());
    for (std::size_t i = 0; i < paths.size(); ++i) files.push_back({paths[i], samples[i]});
  }
  return places;
}

/// Compares the samples of a place with those that the model was trained on.
void validate_inputs(const data::DatasetInfo& info, const std::string& place,
                     const TrainedImages& trained, const std::string& checkpoint) {
  const Shape& extents = trained.extents;
  validate(info.height == extents[0] && info.width == extents[1] && info.channels == extents[2],
           "{}: has samples of {} x {} x {} (height, width, channels), but the model of {} takes "
           "{} x {} x {}",
           place, info.height, info.width, info.channels, checkpoint, extents[0], extents[1],
           extents[2]);
  validate(8 * size_of(info.pixel_type) == trained.pixel_bits,
           "{}: has inputs of {}, but the model of {} was trained on inputs of {} bits, which are "
           "scaled otherwise; store them with the type of the training set",
           place, to_string(info.pixel_type), checkpoint, trained.pixel_bits);
}

/// Returns what the replica needs to know of the data.
data::DatasetInfo described(const data::DatasetInfo& first, const Answer& answer,
                            std::int64_t outputs) {
  data::DatasetInfo info = first;
  (answer.is_vector ? info.target_size : info.class_count) = outputs;
  return info;
}

/// Labels that are unknown, of a whole micro-batch.
class UnknownLabels {
 public:
  explicit UnknownLabels(const ReplicaOptions& options)
      : shape_{options.micro * options.labels_per_sample()},
        classes_(static_cast<std::size_t>(shape_[0]), -1),
        numbers_(static_cast<std::size_t>(shape_[0]), std::numeric_limits<float>::quiet_NaN()),
        is_vector_(options.answer().is_vector) {}
  Tensor tensor() {
    void* const data = is_vector_ ? static_cast<void*>(numbers_.data()) : classes_.data();
    return {data, is_vector_ ? DType::float32 : DType::int32, DeviceKind::cpu, shape_};
  }

 private:
  Shape shape_;
  std::vector<std::int32_t> classes_;
  std::vector<float> numbers_;
  bool is_vector_;
};

}  // namespace

void predict_arrays(const ArrayPredictRequest& request, Log& log,
                    const std::function<void(const ArrayPrediction&)>& begin, const RowSink& sink) {
  // 1. Verify the checkpoint, and describe the files.
  const std::string& path = request.checkpoint;
  const checkpoint::Contents contents = read_verified_contents(comm::Communicator(), path);
  deck::Deck deck = single_rank_deck(contents, path, log);
  validate(deck.data.hdf5.is_used(),
           "{}: its model was not trained on HDF5 files of other programs (its deck has no "
           "[data.hdf5]); name JPEG or PNG files without --out",
           path);
  const Answer& answer = deck.target.answer();
  validate(!request.flips || !answer.is_vector,
           "--flip: needs one class for each sample, but target.kind is \"{}\"; leave the option "
           "out",
           answer.word);
  const std::optional<TrainedImages> trained = trained_images_of(contents.info, path);
  validate(trained.has_value(),
           "{}: names no size of its inputs; make it by trireme train of this version", path);
  data::SampleForm form = evaluation_form(deck);
  form.arrays.target.clear();
  ArrayPrediction prediction{
      .files = {},
      .target = deck.target,
      .outputs = family_of(deck.model).classes_in(deck.model, shapes_in(contents, path)),
      .classes = {},
      .deck = contents.info.deck,
      .checkpoint_digest = checkpoint::combined_digest(contents.tensors)};
  const std::vector<Place> places = open_places(request, form, prediction.files);
  std::int64_t samples = 0;
  for (const Place& place : places) {
    validate_inputs(place.set.info(), place.name, *trained, path);
    samples += place.set.info().samples;
  }
  if (trained->pixel_bits == 16)
    log.warn("{}: does not say whether its 16 bits are uint16 or float16; the files have {}", path,
             to_string(places.front().set.info().pixel_type));
  const data::DatasetInfo info = described(places.front().set.info(), answer, prediction.outputs);
  data::check_target_size(deck.target, answer.is_vector ? prediction.outputs : 1);
  // 2. Build the replica and load the weights.
  deck.batch.micro = std::min(samples, max_rows);
  const Device device = choose_device(deck, 0);
  validate_precision(deck, describe_device(device));
  ReplicaOptions options = single_rank_options(deck, info);
  options.kept_rows = KeptRows::logits;
  validate_shapes(model::Model(deck.model, options.input_shape(), options.outputs()), contents,
                  path);
  SingleRank rank(options, device, log);
  load_weights(rank.replica, contents, path, request.weights);
  if (answer.is_one_class()) {
    const data::LabelMeaning meaning = meaning_of(contents.info, path);
    prediction.classes = class_names(std::span(&meaning, 1), options.classes);
  }
  begin(prediction);
  // 3. Compute the outputs, place by place.
  UnknownLabels labels(options);
  std::int64_t first = 0;
  for (const Place& place : places) {
    data::LoaderOptions reading = evaluation_loader_options(
        deck, place.set, rank.mesh, device,
        deck.data.workers > 0 ? deck.data.workers : choose_reader_threads(available_cores(), 1, 1));
    reading.labels = false;
    data::Loader loader(place.set, reading);
    EvaluationPass pass = start_pass(loader);
    data::MicroBatch batch;
    pass.next = [&, next = pass.next](std::exception_ptr& error) -> const data::MicroBatch& {
      batch = next(error);
      batch.labels = labels.tensor();
      return batch;
    };
    pass.sink = [&](const EvaluatedRows& rows) {
      validate(std::ranges::all_of(rows.logits, [](float x) { return std::isfinite(x); }),
               "{}: the model of {} computes values that are not finite; its weights are of no use",
               place.name, path);
      std::vector<std::int64_t> numbers(rows.samples.begin(), rows.samples.end());
      for (std::int64_t& number : numbers) number += first;
      EvaluatedRows counted = rows;
      counted.samples = numbers;
      sink(counted);
    };
    if (request.flips) pass.views = ImageViews::with_mirror_image;
    evaluate(rank.replica, pass);
    first += place.set.info().samples;
  }
}

}  // namespace trireme::train
