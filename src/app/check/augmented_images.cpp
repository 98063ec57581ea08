// SPDX-License-Identifier: Apache-2.0
//
// `trireme check DECK --images FILE`: draws training images as the model sees them.
//
// The samples are read and augmented by the code that trains: Dataset::read() makes crops and
// colors, the op prepare_images() shifts, mirrors, erases and mixes. Two neighboring columns are
// partners of mixup and cutmix. Only normalization is left out.
#include "augmented_images.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/images/image.hpp"
#include "trireme/data/loader.hpp"
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

  /// Draws the tile of an image.
  void draw(std::int64_t row, std::int64_t column, const float* values) {
    const std::int64_t top = gap_pixels + row * (tile_height + gap_pixels),
                       left = gap_pixels + column * (tile_width + gap_pixels), channels = image[2];
    for (std::int64_t y = 0; y < tile_height; ++y) {
      for (std::int64_t x = 0; x < tile_width; ++x) {
        const float* pixel = values + (y / zoom * step * image[1] + x / zoom * step) * channels;
        std::byte* to = picture.pixels.data() + (top + y) * picture.row_bytes() + (left + x) * 3;
        for (std::int64_t c = 0; c < 3; ++c) {
          const float level = std::clamp(pixel[channels == 3 ? c : 0], 0.0f, 1.0f);
          to[c] = static_cast<std::byte>(std::lround(level * 255));
        }
      }
    }
  }
};

/// Reads, augments and prepares the samples of one epoch.
class AugmentedSamples {
 public:
  AugmentedSamples(const deck::Deck& deck, const data::Dataset& dataset,
                   std::vector<std::int64_t> samples)
      : dataset_(dataset),
        pipeline_(train::training_pipeline(deck)),
        augmentation_(pipeline_.augmentation({dataset.info().height, dataset.info().width})),
        samples_(std::move(samples)),
        rows_{std::ssize(samples_), dataset.info().height, dataset.info().width,
              dataset.info().channels},
        memory_(
            {}, "augmented images",
            rows_.elements() * (size_of(dataset.sample().dtype) + size_of(DType::float32)) + 256),
        stored_(memory_.allocate(dataset.sample().dtype, rows_)),
        prepared_(memory_.allocate(DType::float32, rows_)),
        preparation_(pipeline_.preparation()) {}

  /// Returns the images of an epoch, float32 [samples, height, width, channels].
  const float* epoch(std::int64_t epoch) {
    std::vector<ops::ImageTransform> transforms;
    std::vector<std::uint64_t> keys;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      std::byte* const to = static_cast<std::byte*>(stored_.data) +
                            static_cast<std::int64_t>(i) * dataset_.sample().input_bytes();
      dataset_.read(samples_[i], to, nullptr, epoch, reader_);
      transforms.push_back(augmentation_.transform_of(epoch, samples_[i]));
      keys.push_back(data::sample_key(epoch, samples_[i]));
    }
    for (std::size_t i = 0; preparation_.mixes && i < samples_.size(); i += 2)
      augmentation_.mix_pair(keys.data() + i, transforms.data() + i);
    Arena workspace({}, "workspace", 0), library({}, "library", 0);
    ops::Context context({}, workspace, library);
    ops::prepare_images(context, preparation_, stored_, transforms.data(), prepared_);
    return prepared_.as<float>();
  }

 private:
  const data::Dataset& dataset_;
  data::ImagePipeline pipeline_;
  data::Augmentation augmentation_;
  std::vector<std::int64_t> samples_;
  Shape rows_;
  Arena memory_;
  Tensor stored_, prepared_;
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
  TileSheet sheet(epochs, std::ssize(samples), image);
  for (std::int64_t row = 0; row < epochs; ++row) {
    const float* const values = augmented.epoch(row);
    for (std::int64_t column = 0; column < std::ssize(samples); ++column)
      sheet.draw(row, column, values + column * image.elements());
  }
  const std::vector<std::byte> file = data::encode_png(sheet.picture);
  io::replace_file(path, {reinterpret_cast<const char*>(file.data()), file.size()});
  return fmt::format(
      "{}: {} in columns, {} epochs in rows, as the model sees them but for "
      "normalize",
      path, counted(std::ssize(samples), "training image", "training images"), epochs);
}

}  // namespace trireme::app
