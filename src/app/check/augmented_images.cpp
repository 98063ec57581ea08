// SPDX-License-Identifier: Apache-2.0
//
// `trireme check DECK --images FILE`: draws training images as the model sees them.
//
// The samples are read and augmented by the code that trains: Dataset::read() makes crops and
// colors, the op prepare_images() shifts, mirrors, erases and mixes. Two neighboring columns are
// partners of mixup and cutmix. Only normalization is left out. Targets that are maps are drawn
// below their images.
#include "augmented_images.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/images/image.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/data/targets/move_map.hpp"
#include "trireme/io/file.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/tensor/arena.hpp"
#include "trireme/train/run/run.hpp"

namespace trireme::app {
namespace {

constexpr std::int64_t max_columns = 8, epochs = 6, gap_pixels = 4;
// Smaller images are enlarged to this side; larger ones are thinned out to the other one.
constexpr std::int64_t min_side = 64, max_side = 512;
// Memory for the images of an epoch. Of large images fewer are drawn.
constexpr std::int64_t max_image_bytes = std::int64_t{1} << 30;

using Color = std::array<std::byte, 3>;

/// A picture of tiles of one size on a white ground.
struct TileSheet {
  Shape image;  // [height, width, channels]
  std::int64_t zoom, step;
  std::int64_t tile_height, tile_width;
  data::Image picture;

  TileSheet(std::int64_t rows, std::int64_t columns, const Shape& the_image)
      : image(the_image),
        zoom(std::max<std::int64_t>(1, min_side / std::max(image[0], image[1]))),
        step((std::max(image[0], image[1]) + max_side - 1) / max_side),
        tile_height((image[0] + step - 1) / step * zoom),
        tile_width((image[1] + step - 1) / step * zoom) {
    picture.height = rows * (tile_height + gap_pixels) + gap_pixels;
    picture.width = columns * (tile_width + gap_pixels) + gap_pixels;
    picture.channels = 3;
    picture.pixels.assign(static_cast<std::size_t>(picture.height * picture.row_bytes()),
                          std::byte{255});
  }

  /// Draws the tile of what has height x width places, stretched to the size of an image.
  /// `color_at` returns the color of place number i.
  void draw(std::int64_t row, std::int64_t column, std::int64_t height, std::int64_t width,
            const std::function<Color(std::int64_t)>& color_at) {
    const std::int64_t top = gap_pixels + row * (tile_height + gap_pixels),
                       left = gap_pixels + column * (tile_width + gap_pixels);
    for (std::int64_t y = 0; y < tile_height; ++y) {
      const std::int64_t from_row = y / zoom * step * height / image[0];
      for (std::int64_t x = 0; x < tile_width; ++x) {
        const std::int64_t from_column = x / zoom * step * width / image[1];
        const Color color = color_at(from_row * width + from_column);
        std::byte* const to =
            picture.pixels.data() + (top + y) * picture.row_bytes() + (left + x) * 3;
        std::copy(color.begin(), color.end(), to);
      }
    }
  }
};

/// Maps numbers to levels of gray: the least to black and the largest to white, those that are not
/// finite to white.
class Levels {
 public:
  Levels(float least, float largest) : least_(least), largest_(largest) {}
  /// The levels of every `stride`-th of these numbers.
  Levels(std::span<const float> values, std::int64_t stride) : least_(0), largest_(0) {
    bool is_first = true;
    for (std::size_t i = 0; i < values.size(); i += static_cast<std::size_t>(stride)) {
      if (!std::isfinite(values[i])) continue;
      least_ = is_first ? values[i] : std::min(least_, values[i]);
      largest_ = is_first ? values[i] : std::max(largest_, values[i]);
      is_first = false;
    }
  }
  std::byte level(float value) const {
    if (!std::isfinite(value)) return std::byte{255};
    const float range = largest_ > least_ ? largest_ - least_ : 1;
    return static_cast<std::byte>(
        std::lround(std::clamp((value - least_) / range, 0.0f, 1.0f) * 255));
  }

 private:
  float least_, largest_;
};

/// Draws an image [height, width, channels]: the three channels of a color image, or the first one.
void draw_image(TileSheet& sheet, std::int64_t row, std::int64_t column, const float* values,
                bool is_field) {
  const std::int64_t channels = sheet.image[2];
  const bool is_color = channels == 3 && !is_field;
  const std::span all(values, static_cast<std::size_t>(sheet.image.elements()));
  const Levels levels = is_field ? Levels(all, channels) : Levels(0, 1);
  sheet.draw(row, column, sheet.image[0], sheet.image[1], [&](std::int64_t place) {
    const float* const pixel = values + place * channels;
    return Color{levels.level(pixel[0]), levels.level(pixel[is_color ? 1 : 0]),
                 levels.level(pixel[is_color ? 2 : 0])};
  });
}

/// Returns the color of a class, of eight in turn; white if it is missing.
Color color_of_class(std::int32_t number) {
  // Okabe and Ito (2008): colors that color-blind people tell apart.
  constexpr std::array<std::uint32_t, 8> colors = {0x000000, 0xE69F00, 0x56B4E9, 0x009E73,
                                                   0xF0E442, 0x0072B2, 0xD55E00, 0xCC79A7};
  const std::uint32_t color = number < 0 ? 0xFFFFFF : colors[static_cast<std::size_t>(number) % 8];
  return {std::byte(color >> 16), std::byte(color >> 8 & 255), std::byte(color & 255)};
}

/// Draws the map of a sample: its classes as colors, or its first component as levels of gray.
void draw_map(TileSheet& sheet, std::int64_t row, std::int64_t column, const Tensor& map) {
  const std::int64_t height = map.shape[0], width = map.shape[1];
  if (map.dtype == DType::int32) {
    const auto* const classes = map.as<std::int32_t>();
    sheet.draw(row, column, height, width,
               [&](std::int64_t place) { return color_of_class(classes[place]); });
    return;
  }
  const std::int64_t components = map.shape.rank() == 3 ? map.shape[2] : 1;
  const auto* const values = map.as<float>();
  const Levels levels({values, static_cast<std::size_t>(map.elements())}, components);
  sheet.draw(row, column, height, width, [&](std::int64_t place) {
    const std::byte level = levels.level(values[place * components]);
    return Color{level, level, level};
  });
}

/// Reads, augments and prepares the samples of one epoch.
class AugmentedSamples {
 public:
  AugmentedSamples(const deck::Deck& deck, const data::Dataset& dataset,
                   std::vector<std::int64_t> samples)
      : dataset_(dataset),
        is_of_other_program_(deck.data.hdf5.is_used()),
        pipeline_(train::training_pipeline(deck)),
        augmentation_(pipeline_.augmentation({dataset.info().height, dataset.info().width})),
        samples_(std::move(samples)),
        rows_{std::ssize(samples_), dataset.info().height, dataset.info().width,
              dataset.info().channels},
        memory_(
            {}, "augmented images",
            rows_.elements() * (size_of(dataset.sample().dtype) + size_of(DType::float32)) + 256),
        maps_(has_maps() ? samples_.size() : 0,
              std::vector<std::byte>(static_cast<std::size_t>(
                  dataset.sample().labels.elements() * size_of(dataset.sample().label_type)))),
        stored_(memory_.allocate(dataset.sample().dtype, rows_)),
        prepared_(memory_.allocate(DType::float32, rows_)),
        preparation_(pipeline_.preparation()) {
    if (!is_field()) return;
    statistics_ = data::normalization_of(deck.data.augment, rows_[3]);
    const auto in_place = [this](const std::vector<float>&) {
      return Tensor{statistics_.data(), DType::float32, DeviceKind::cpu, {std::ssize(statistics_)}};
    };
    data::set_normalization(statistics_, in_place, preparation_);
  }

  /// Returns the images of an epoch, float32 [samples, height, width, channels].
  const float* epoch(std::int64_t epoch) {
    std::vector<ops::ImageTransform> transforms;
    std::vector<std::uint64_t> keys;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      std::byte* const to = static_cast<std::byte*>(stored_.data) +
                            static_cast<std::int64_t>(i) * dataset_.sample().input_bytes();
      void* const map = has_maps() ? maps_[i].data() : nullptr;
      dataset_.read(samples_[i], to, map, epoch, reader_);
      transforms.push_back(augmentation_.transform_of(epoch, samples_[i]));
      if (map != nullptr) data::move_map(dataset_.sample(), transforms[i], map, reader_.scratch);
      keys.push_back(data::sample_key(epoch, samples_[i]));
    }
    for (std::size_t i = 0; preparation_.mixes && i < samples_.size(); i += 2)
      augmentation_.mix_pair(keys.data() + i, transforms.data() + i);
    Arena workspace({}, "workspace", 0), library({}, "library", 0);
    ops::Context context({}, workspace, library);
    ops::prepare_images(context, preparation_, stored_, transforms.data(), prepared_);
    return prepared_.as<float>();
  }

  /// Returns whether the images are fields of other programs, which have any unit; those of shards
  /// are 0 to 1. Only fields are normalized.
  bool is_field() const {
    const DType type = dataset_.sample().dtype;
    return is_of_other_program_ && (type == DType::float16 || type == DType::float32);
  }
  bool has_maps() const { return dataset_.info().target.is_map(); }

  /// Returns the map of a sample in the epoch that was prepared last, [height, width] or [height,
  /// width, components].
  Tensor map(std::int64_t sample) {
    return {maps_[static_cast<std::size_t>(sample)].data(), dataset_.sample().label_type,
            DeviceKind::cpu, dataset_.sample().labels};
  }

 private:
  const data::Dataset& dataset_;
  bool is_of_other_program_;
  data::ImagePipeline pipeline_;
  data::Augmentation augmentation_;
  std::vector<std::int64_t> samples_;
  Shape rows_;
  Arena memory_;
  std::vector<std::vector<std::byte>> maps_;
  Tensor stored_, prepared_;
  std::vector<float> statistics_;
  ops::ImagePreparation preparation_;
  data::ReaderState reader_;
};

/// Returns an even number of samples, evenly spaced in the set; one alone if there is only one.
std::vector<std::int64_t> choose_samples(const data::Dataset& dataset) {
  const std::int64_t available = dataset.info().samples,
                     bytes = dataset.sample().input_bytes() +
                             dataset.sample().input.elements() * size_of(DType::float32);
  const std::int64_t most =
      std::min({max_columns, available, std::max<std::int64_t>(2, max_image_bytes / bytes)});
  const std::int64_t count = most < 2 ? most : most / 2 * 2;
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < count; ++i) samples.push_back(i * available / count);
  return samples;
}

}  // namespace

std::string draw_augmented_images(const deck::Deck& deck, const data::Dataset& dataset,
                                  const std::string& path) {
  const std::vector<std::int64_t> samples = choose_samples(dataset);
  validate(samples.size() % 2 == 0 || !deck.data.augment.mixing.is_on(),
           "data.train = \"{}\" holds one image, which cannot be mixed with another one",
           deck.data.train);
  AugmentedSamples augmented(deck, dataset, samples);
  const Shape& image = dataset.sample().input;
  const std::int64_t tiles = augmented.has_maps() ? 2 : 1;  // of a sample, one below the other
  TileSheet sheet(tiles * epochs, std::ssize(samples), image);
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    const float* const values = augmented.epoch(epoch);
    for (std::int64_t column = 0; column < std::ssize(samples); ++column) {
      draw_image(sheet, tiles * epoch, column, values + column * image.elements(),
                 augmented.is_field());
      if (augmented.has_maps()) draw_map(sheet, tiles * epoch + 1, column, augmented.map(column));
    }
  }
  const std::vector<std::byte> file = data::encode_png(sheet.picture);
  io::replace_file(path, {reinterpret_cast<const char*>(file.data()), file.size()});
  return fmt::format("{}: {} in columns, {} epochs in rows, as the model sees them{}{}", path,
                     counted(std::ssize(samples), "training image", "training images"), epochs,
                     augmented.is_field() ? "" : " but for normalize",
                     augmented.has_maps() ? "; their targets below them" : "");
}

}  // namespace trireme::app
