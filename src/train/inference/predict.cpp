// SPDX-License-Identifier: Apache-2.0
//
// `trireme predict`: classifies JPEG and PNG files with the model of a checkpoint, on one rank.
//
//   files -> decode, scale, crop as an evaluation does (ImageFiles) -> micro-batches -> evaluate()
//         -> logits of each image -> most probable classes -> emit
//
// The extents of the images are those that the checkpoint names, of the training set if its folder
// is there, or of the crop of data.augment.evaluate.
#include "trireme/train/inference/predict.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>

#include "single_rank.hpp"
#include "stored_model.hpp"
#include "train/run/restore.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/images/image_form.hpp"
#include "trireme/data/labels/label_meaning.hpp"
#include "trireme/io/file.hpp"
#include "trireme/model/family.hpp"
#include "trireme/model/model.hpp"
#include "trireme/train/datasets.hpp"
#include "trireme/train/layout.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/run/run_state.hpp"
#include "trireme/train/scores/sample_result.hpp"
#include "trireme/train/step/evaluation.hpp"

namespace trireme::train {
namespace {

/// Returns the deck of a checkpoint. Throws InputError if its model takes no images.
deck::Deck image_deck(const checkpoint::Contents& contents, const std::string& path, Log& log) {
  deck::Deck deck = single_rank_deck(contents, path, log);
  validate(!takes_tokens(deck.model),
           "{}: holds a language model, which classifies no images; trireme generate continues a "
           "text with it",
           path);
  const Answer& answer = deck.target.answer();
  validate(
      answer.is_one_class(),
      "{}: its model answers {}{} (target.kind = \"{}\") and not one class; name HDF5 files as "
      "those it was trained on, and --out FILE.h5",
      path, answer.parts, answer.is_map ? " of pixels" : "", answer.word);
  return deck;
}

/// Returns body(), and puts the path in front of its errors.
template <class Body>
auto name_in_errors(const std::string& path, Body&& body) {
  try {
    return body();
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", path, error.what()));
  }
}

/// Returns the images of a model, from the checkpoint, from the training set if its folder is
/// there, or from the crop of an evaluation. Throws InputError.
TrainedImages images_of(const checkpoint::Contents& contents, const deck::Deck& deck,
                        const model::ShapeInFile& shape_of, const std::string& path) {
  if (const auto trained = trained_images_of(contents.info, path)) return *trained;
  if (deck.data.hdf5.is_used() || std::filesystem::is_directory(deck.data.train)) {
    const data::Dataset set(deck.data.train, training_form(deck));
    const data::DatasetInfo& info = set.info();
    return {{info.height, info.width, info.channels}, 8 * size_of(info.pixel_type)};
  }
  const std::int64_t crop = deck.data.augment.evaluate.crop;
  validate(crop > 0,
           "{}: names no size of images, its training set {} is missing, and its deck has no "
           "data.augment.evaluate; put the training set there, or make the checkpoint by trireme "
           "train of this version",
           path, deck.data.train);
  return {{crop, crop, family_of(deck.model).input_in(deck.model, shape_of)[3]}};
}

/// Returns extents and classes of the model in a checkpoint, which are those of a dataset of JPEG
/// and PNG files. Throws InputError.
data::DatasetInfo model_images(const checkpoint::Contents& contents, const deck::Deck& deck,
                               const std::string& path) {
  const model::ShapeInFile shape_of = shapes_in(contents, path);
  const TrainedImages images = images_of(contents, deck, shape_of, path);
  data::DatasetInfo info;
  info.kind = data::DatasetKind::encoded_images;
  info.height = images.extents[0];
  info.width = images.extents[1];
  info.channels = images.extents[2];
  info.target.count = family_of(deck.model)
                          .classes_in(deck.model, deck.target.answer(),
                                      {1, info.height, info.width, info.channels}, shape_of);
  validate(
      images.pixel_bits == 8,
      "{}: its model was trained on images of {} bits a value, but JPEG and PNG files are read "
      "with 8; {}",
      path, images.pixel_bits,
      deck.data.hdf5.is_used()
          ? "name HDF5 files as those it was trained on, and --out FILE.h5"
          : "store the images as a dataset and use trireme evaluate --predictions");
  validate(info.channels == 1 || info.channels == 3,
           "{}: its model takes images of {} channels; JPEG and PNG files are read as gray images "
           "(1) or as RGB (3)",
           path, info.channels);
  name_in_errors(
      path, [&] { validate_dataset(deck.model, deck.data, info, "data.train", deck.data.train); });
  const data::ImageExtents trained{info.height, info.width},
      evaluated = data::extents_of(evaluation_form(deck).image, trained);
  validate(evaluated == trained,
           "{}: was trained on images of {} x {} (height, width), but data.augment.evaluate of its "
           "deck makes {} x {}; both must be alike",
           path, trained.height, trained.width, evaluated.height, evaluated.width);
  return info;
}

/// The files of a request, as images of the model.
class ImageFiles {
 public:
  ImageFiles(const PredictRequest& request, const deck::Deck& deck, const data::DatasetInfo& info)
      : request_(request),
        form_(evaluation_form(deck).image),
        extents_{info.height, info.width},
        channels_(info.channels) {
    validate(!request.resizes || form_.kind == data::ImageForm::Kind::stored,
             "--resize: data.augment.evaluate of the checkpoint's deck already scales images to {} "
             "x {}; leave the option out",
             form_.size, form_.size);
  }

  std::int64_t size() const { return std::ssize(request_.images); }

  /// Opens each file and reads its header. Throws InputError.
  void check_headers() const {
    for (const std::string& path : request_.images) {
      const std::vector<std::byte> file = read(path);
      name_in_errors(path, [&] { check_size(data::read_image_extents(file)); });
    }
  }

  /// Writes image `index` to `out`: uint8 [height, width, channels]. Throws InputError.
  void read(std::int64_t index, std::byte* out) const {
    const std::string& path = request_.images[static_cast<std::size_t>(index)];
    const std::vector<std::byte> file = read(path);
    data::Image image = name_in_errors(path, [&] { return data::decode_image(file); });
    if (channels_ == 1) image = data::convert_to_gray(image);
    if (form_.kind != data::ImageForm::Kind::stored) {
      const data::PixelBox whole{0, 0, image.height, image.width};
      data::form_image(form_, image, whole, whole, out);
      return;
    }
    if (request_.resizes) image = data::resize_to_cover(image, extents_.height, extents_.width);
    // The file may have changed.
    name_in_errors(path, [&] { check_size({image.height, image.width}); });
    std::memcpy(out, image.pixels.data(), image.pixels.size());
  }

 private:
  static std::vector<std::byte> read(const std::string& path) {
    const io::File file(path, io::File::Mode::read);
    const std::int64_t bytes = file.size();
    validate(bytes <= data::max_encoded_bytes, "{}: has {} bytes; image files of up to {} are read",
             path, bytes, data::max_encoded_bytes);
    std::vector<std::byte> content(static_cast<std::size_t>(bytes));
    file.read_at(0, content.data(), bytes);
    return content;
  }

  void check_size(data::ImageExtents extents) const {
    validate(form_.kind != data::ImageForm::Kind::stored || request_.resizes || extents == extents_,
             "has {} x {} pixels (height, width), but the model takes {} x {}; scale the image, or "
             "add --resize",
             extents.height, extents.width, extents_.height, extents_.width);
  }

  const PredictRequest& request_;
  data::ImageForm form_;
  data::ImageExtents extents_;
  std::int64_t channels_;
};

/// Makes the micro-batches of the files, one after the other. The last one is padded.
class FileBatches {
 public:
  FileBatches(const ImageFiles& files, const ReplicaOptions& options)
      : files_(files),
        rows_(static_cast<std::size_t>(options.micro)),
        input_bytes_(options.image.elements()),
        inputs_(rows_ * static_cast<std::size_t>(input_bytes_)),
        labels_(rows_),
        transforms_(rows_),
        samples_(rows_),
        keys_(rows_) {
    batch_.inputs = {inputs_.data(), DType::uint8, DeviceKind::cpu, options.input_shape()};
    batch_.labels = {labels_.data(), DType::int32, DeviceKind::cpu, Shape{options.micro}};
    batch_.transforms = transforms_.data();
    batch_.samples = samples_.data();
    batch_.sample_keys = keys_.data();
  }

  const data::MicroBatch& next() {
    batch_.valid_rows = 0;
    for (std::size_t row = 0; row < rows_; ++row) {
      const bool is_image = next_ < files_.size();
      std::byte* const to = inputs_.data() + row * static_cast<std::size_t>(input_bytes_);
      if (is_image)
        files_.read(next_, to);
      else
        std::memset(to, 0, static_cast<std::size_t>(input_bytes_));
      samples_[row] = is_image ? next_ : -1;
      labels_[row] = is_image ? 0 : -1;  // The labels are unknown, and the losses are not used.
      keys_[row] = is_image ? data::sample_key(0, next_) : 0;
      if (!is_image) continue;
      ++next_;
      ++batch_.valid_rows;
    }
    return batch_;
  }

 private:
  const ImageFiles& files_;
  std::size_t rows_;
  std::int64_t input_bytes_;  // of an image
  std::vector<std::byte> inputs_;
  std::vector<std::int32_t> labels_;
  std::vector<ops::ImageTransform> transforms_;
  std::vector<std::int64_t> samples_;
  std::vector<std::uint64_t> keys_;
  data::MicroBatch batch_;
  std::int64_t next_ = 0;
};

std::vector<ClassProbability> most_probable(std::span<const float> logits, std::int64_t top,
                                            const std::vector<std::string>& names) {
  const std::vector<double> probabilities = probabilities_of(logits);
  std::vector<ClassProbability> classes;
  for (const std::int32_t label : top_classes(
           logits, static_cast<std::size_t>(std::min<std::int64_t>(top, std::ssize(logits))))) {
    const auto index = static_cast<std::size_t>(label);
    classes.push_back({label, names[index], probabilities[index]});
  }
  return classes;
}

}  // namespace

void predict(const PredictRequest& request, Log& log, const PredictionSink& emit) {
  // 1. Verify the checkpoint, and check the files.
  const checkpoint::Contents contents =
      read_verified_contents(comm::Communicator(), request.checkpoint);
  deck::Deck deck = image_deck(contents, request.checkpoint, log);
  const data::DatasetInfo info = model_images(contents, deck, request.checkpoint);
  const ImageFiles files(request, deck, info);
  files.check_headers();
  // 2. Build the replica and load the weights.
  deck.batch.micro = std::min(files.size(), max_predicted_at_once);
  const Device device = choose_device(deck, 0);
  validate_precision(deck, describe_device(device));
  ReplicaOptions options = single_rank_options(deck, info);
  options.kept_rows = KeptRows::logits;
  validate_shapes(model::Model(deck.model, options.input_shape(), options.outputs), contents,
                  request.checkpoint);
  SingleRank rank(options, device, log);
  load_weights(rank.replica, contents, request.checkpoint, request.weights);
  // 3. Classify.
  const data::LabelMeaning meaning = meaning_of(contents.info, request.checkpoint);
  const std::int64_t named = std::ssize(meaning.classes);
  if (named != options.outputs.count)
    log.warn("{}: names {} of its {}; classes are numbered", request.checkpoint,
             counted(named, "class", "classes"),
             counted(options.outputs.count, "class", "classes"));
  const std::vector<std::string> names = class_names(std::span(&meaning, 1), options.outputs.count);
  FileBatches batches(files, options);
  EvaluationPass pass{
      .rounds = (files.size() + options.micro - 1) / options.micro,
      .next = [&](std::exception_ptr&) -> const data::MicroBatch& { return batches.next(); }};
  pass.sink = [&](const EvaluatedRows& rows) {
    const auto classes = static_cast<std::size_t>(rows.classes);
    for (std::size_t i = 0; i < rows.samples.size(); ++i) {
      const std::string& image = request.images[static_cast<std::size_t>(rows.samples[i])];
      const std::span<const float> logits = rows.logits.subspan(i * classes, classes);
      validate(std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }),
               "{}: the model of {} computes values that are not finite; its weights are of no use",
               image, request.checkpoint);
      emit(image, most_probable(logits, request.top, names));
    }
  };
  if (request.flips) pass.views = ImageViews::with_mirror_image;
  evaluate(rank.replica, pass);
}

}  // namespace trireme::train
