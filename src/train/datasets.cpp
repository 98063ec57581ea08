// SPDX-License-Identifier: Apache-2.0
//
// Opens the datasets of a deck, and checks that they fit the deck and each other.
#include "trireme/train/datasets.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/shards/dataset_index.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/model/family.hpp"

namespace trireme::train {

data::Dataset open_dataset(const comm::Communicator& world, const std::string& key,
                           const std::string& folder, const data::SampleForm& form,
                           bool with_checksums) {
  data::DatasetIndex index;
  std::string bytes;  // the index, to broadcast it
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    validate(form.arrays.is_used() || std::filesystem::is_directory(folder),
             "{} = \"{}\": no such folder; correct the path, make the dataset there with trireme "
             "shard (trireme shard --help), or check the deck without data (trireme check "
             "--assume){}",
             key, folder, data::no_folder_hint(folder));
    try {
      index = data::index_dataset(folder, form, with_checksums);
    } catch (const InputError& error) {
      if (!form.arrays.is_used() || std::string_view(error.what()).starts_with("target.")) throw;
      throw InputError(fmt::format("{} = \"{}\": {}", key, folder, error.what()));
    }
    if (world.size() > 1) bytes = data::to_bytes(index);
  });
  if (world.size() > 1) bytes = world.broadcast(bytes, 0);
  std::optional<data::Dataset> dataset;
  comm::together(world, [&] {
    if (world.rank() != 0) index = data::dataset_index_from_bytes(bytes);
    dataset.emplace(std::move(index), form);
  });
  return std::move(*dataset);
}

namespace {

/// Requires targets that are maps to have the extents of the model's.
void validate_map(const model::ModelOptions& model, const data::DatasetInfo& info,
                  const std::string& key, const std::string& folder) {
  if (info.target.height == 0) return;
  const AnswerExtents made = model::outputs_of(model, {1, info.height, info.width, info.channels},
                                               info.target.count, true);
  const bool is_turned = made.height == info.target.width && made.width == info.target.height;
  validate(
      made.height == info.target.height && made.width == info.target.width,
      "{} = \"{}\" has targets of {} x {} (height, width), but the model makes maps of {} x {} "
      "from samples of {} x {}; {}",
      key, folder, info.target.height, info.target.width, made.height, made.width, info.height,
      info.width,
      is_turned ? "exchange h and w in data.hdf5.layout, or in target_layout"
                : fmt::format("{}; or are data.hdf5.layout or target_layout wrong?",
                              family_of(model).map_advice));
}

void validate_images(const model::ModelOptions& model, const data::DataOptions& data,
                     const data::DatasetInfo& info, const std::string& key,
                     const std::string& folder) {
  validate(info.kind != data::DatasetKind::tokens,
           "{} = \"{}\" holds tokens, but model.kind = \"{}\" needs images", key, folder,
           family_of(model).word);
  validate(
      info.height > 0,
      "{} = \"{}\" holds encoded images (JPEG, PNG), which may have any size; give {}, or make "
      "plain ones with trireme shard --encode raw",
      key, folder,
      key == "data.train" ? "data.augment.random_resized_crop, as in { size = 224 }"
                          : "data.augment.evaluate, as in { resize = 256, crop = 224 }");
  validate(key != "data.train" || data.decode == data::Decoding::exact ||
               info.kind == data::DatasetKind::encoded_images,
           "data.decode = \"fast\" decodes JPEG files at a lower resolution, but {} = \"{}\" holds "
           "plain images, which are not decoded; use data.decode = \"exact\"",
           key, folder);
  validate(info.has_float_targets() || key != "data.train" || info.target.count >= 2,
           "{} = \"{}\" has {} class; a classifier needs two or more", key, folder,
           info.target.count);
  validate(std::max(info.height, info.width) <= data::max_model_side,
           "{} = \"{}\" holds images of {} x {}; a side can have {} pixels or less", key, folder,
           info.height, info.width, data::max_model_side);
  validate_map(model, info, key, folder);
  const data::AugmentOptions& augment = data.augment;
  validate(info.target.height == 0 || key != "data.train" ||
               augment.random_crop < std::min(info.target.height, info.target.width),
           "data.augment.random_crop = {} can shift all targets out of the samples of {} = \"{}\", "
           "which are {} x {} (height, width); use less",
           augment.random_crop, key, folder, info.height, info.width);
  validate(
      augment.random_crop == 0 || info.target.height == 0 || key != "data.train" ||
          (info.target.height == info.height && info.target.width == info.width),
      "data.augment.random_crop shifts samples and targets by the same pixels, but the samples "
      "of {} = \"{}\" are {} x {} and their targets {} x {} (height, width); remove it",
      key, folder, info.height, info.width, info.target.height, info.target.width);
  validate((info.channels == 3 && info.pixel_type == DType::uint8) || !augment.changes_colors() ||
               key != "data.train",
           "data.augment.{} changes the colors of RGB images of uint8, but the images of {} = "
           "\"{}\" have {} of {}; remove it, or make the dataset from color images",
           augment.color_jitter.is_on() ? "color_jitter" : "rand_augment", key, folder,
           counted(info.channels, "channel", "channels"), to_string(info.pixel_type));
  // The other sets must have the channels of the training set; see validate_same_form().
  const std::size_t channels = augment.mean.size();
  validate(
      channels <= 1 || static_cast<std::int64_t>(channels) == info.channels || key != "data.train",
      "data.augment.normalize has {} channels, but the images of {} = \"{}\" have {}; give {} "
      "in mean and in std, or one for all channels",
      channels, key, folder, info.channels, counted(info.channels, "number", "numbers"));
}

void validate_tokens(const model::ModelOptions& model, const data::DatasetInfo& info,
                     const std::string& key, const std::string& folder) {
  // Shards without the attribute vocabulary have the range of their token type instead; 2^32 rows
  // would be an embedding of terabytes.
  constexpr std::int64_t max_vocabulary = std::int64_t{1} << 24;
  const std::int64_t vocabulary = family_of(model).vocabulary(model);
  validate(info.kind == data::DatasetKind::tokens,
           "{} = \"{}\" holds images, but model.kind = \"{}\" needs tokens; make them with "
           "trireme shard text or tokens",
           key, folder, family_of(model).word);
  validate(vocabulary > 0 || info.vocabulary <= max_vocabulary,
           "{} = \"{}\": tokens can be up to {}, more than an embedding has rows for ({}); if its "
           "shards do not state their vocabulary, give them the attribute vocabulary (trireme "
           "shard does)",
           key, folder, info.vocabulary - 1, max_vocabulary);
  validate(vocabulary == 0 || info.vocabulary <= vocabulary,
           "model.vocabulary = {} is less than that of {} = \"{}\", {} (the attribute vocabulary "
           "of its shards, else what their type can hold); "
           "use model.vocabulary = {}, or leave it out",
           vocabulary, key, folder, info.vocabulary, info.vocabulary);
}

}  // namespace

void validate_dataset(const model::ModelOptions& model, const data::DataOptions& data,
                      const data::DatasetInfo& info, const std::string& key,
                      const std::string& folder) {
  if (takes_tokens(model))
    validate_tokens(model, info, key, folder);
  else
    validate_images(model, data, info, key, folder);
}

void validate_same_form(const data::DatasetInfo& train, const data::DatasetInfo& other,
                        const std::string& key, const std::string& folder) {
  const auto name = [](data::DatasetKind kind) {
    return kind == data::DatasetKind::tokens ? "tokens" : "images";
  };
  const auto holds_tokens = [](const data::DatasetInfo& info) {
    return info.kind == data::DatasetKind::tokens;
  };
  validate(holds_tokens(train) == holds_tokens(other),
           "{} = \"{}\" holds {}, but data.train {}; both must have one form", key, folder,
           name(other.kind), name(train.kind));
  const bool has_encoded = train.kind == data::DatasetKind::encoded_images ||
                           other.kind == data::DatasetKind::encoded_images;
  validate(train.channels == other.channels,
           "{} = \"{}\" has images of {}, but data.train of {}; make both sets of gray or both of "
           "color images{}",
           key, folder, counted(other.channels, "channel", "channels"), train.channels,
           has_encoded ? " (encoded images, JPEG and PNG, are always read with 3 channels)" : "");
  validate(
      train.height == other.height && train.width == other.width,
      "{} = \"{}\" gives samples of {} x {} x {} (height, width, channels), but data.train of "
      "{} x {} x {}; both must have one form{}",
      key, folder, other.height, other.width, other.channels, train.height, train.width,
      train.channels,
      train.height == train.width && train.height > 0
          ? fmt::format("; data.augment.evaluate = {{ resize = {}, crop = {} }} gives images of "
                        "an evaluation this size",
                        train.height * 8 / 7, train.height)
          : "");
  validate(train.pixel_type == other.pixel_type,
           "{} = \"{}\" holds {} images, but data.train {} images; both must have one type", key,
           folder, to_string(other.pixel_type), to_string(train.pixel_type));
  validate(
      train.preparation.empty() || other.preparation.empty() ||
          train.preparation == other.preparation,
      "{} = \"{}\" was made of its files with {}, but data.train with {}; make them alike with "
      "`trireme shard hdf5`",
      key, folder, printable(other.preparation, 300), printable(train.preparation, 300));
  validate(train.target.height == other.target.height && train.target.width == other.target.width,
           "{} = \"{}\" has targets of {} x {} (height, width), but data.train of {} x {}; both "
           "must have "
           "one form",
           key, folder, other.target.height, other.target.width, train.target.height,
           train.target.width);
  validate(!train.has_float_targets() || train.target.count == other.target.count,
           "{} = \"{}\" has {} numbers in the target of a sample, but data.train {}", key, folder,
           other.target.count, train.target.count);
  validate(train.has_float_targets() || other.target.count <= train.target.count,
           "{} = \"{}\" has {} classes, but data.train only {}", key, folder, other.target.count,
           train.target.count);
  validate(other.vocabulary <= train.vocabulary,
           "{} = \"{}\" has a vocabulary of {}, but data.train only of {}; make both sets with one "
           "tokenizer",
           key, folder, other.vocabulary, train.vocabulary);
  validate(train.end_of_text == other.end_of_text,
           "the documents of {} = \"{}\" end with {}, but those of data.train with {}; make both "
           "sets with one --end-of-text (attribute end_of_text of the shards)",
           key, folder, data::end_of_text_name(other.end_of_text),
           data::end_of_text_name(train.end_of_text));
}

}  // namespace trireme::train
