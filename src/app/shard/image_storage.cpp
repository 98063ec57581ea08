// SPDX-License-Identifier: Apache-2.0
//
// The options of `trireme shard` that say how images are stored.
#include "image_storage.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::app {
namespace {

using Encoding = ImageStorage::Encoding;

// The largest extent of --resize.
constexpr std::int64_t max_resized = 8192;
constexpr int default_quality = 90;
constexpr std::string_view shorter_prefix = "shorter=";

bool is_side(const std::optional<std::int64_t>& side) {
  return side && *side >= 1 && *side <= max_resized;
}

/// Reads --resize. Throws InputError.
void parse_resize(const std::string& text, ImageStorage& storage) {
  if (text.empty() || text == "none") return;
  const std::string_view whole = text;
  bool valid = false;
  if (whole.starts_with(shorter_prefix)) {
    const std::optional<std::int64_t> side = parse_integer(whole.substr(shorter_prefix.size()));
    valid = is_side(side);
    storage.shorter = side.value_or(0);
  } else {
    const std::size_t x = whole.find('x');
    const std::optional<std::int64_t> height = parse_integer(whole.substr(0, x)),
                                      width = parse_integer(whole.substr(
                                          x == std::string_view::npos ? whole.size() : x + 1));
    valid = is_side(height) && is_side(width);
    if (valid) storage.extents = {*height, *width};
  }
  validate(valid,
           "--resize {}: must be HEIGHTxWIDTH as in 256x256, shorter=N as in shorter=256 (1 to {} "
           "pixels), or none",
           printable(text), max_resized);
}

Encoding parse_encoding(const std::string& word) {
  if (word == "jpeg") return Encoding::jpeg;
  if (word == "png") return Encoding::png;
  return word == "keep" ? Encoding::keep : Encoding::raw;  // the command line checks the word
}

}  // namespace

ImageStorage parse_storage(const ShardCommand& command) {
  ImageStorage storage;
  storage.encoding = parse_encoding(command.encode);
  parse_resize(command.resize, storage);
  validate(storage.encoding != Encoding::keep || storage.keeps_size(),
           "--encode keep stores the files as they are, so --resize {} cannot apply; use --encode "
           "jpeg or png",
           command.resize);
  validate(command.quality == 0 || storage.encoding == Encoding::jpeg,
           "--quality {} belongs to --encode jpeg", command.quality);
  storage.quality = command.quality > 0 ? command.quality : default_quality;
  return storage;
}

void check_storage(const ImageStorage& storage, const data::ImageCatalog& catalog) {
  if (storage.is_raw() || catalog.coding == data::ImageCoding::file) return;
  validate(storage.encoding != Encoding::keep,
           "--encode keep stores JPEG and PNG files, but the source holds pixels; use raw, jpeg or "
           "png");
  validate(catalog.channels == 1 || catalog.channels == 3,
           "--encode {}: stores gray or RGB images, but the source has {} channels; use --encode "
           "raw",
           storage.encoding == Encoding::jpeg ? "jpeg" : "png", catalog.channels);
}

data::Image resize(const ImageStorage& storage, data::Image image) {
  if (storage.extents)
    return resize_to_cover(image, storage.extents->height, storage.extents->width);
  if (storage.shorter == 0) return image;
  const data::ImageExtents scaled =
      data::scaled_to_shorter({image.height, image.width}, storage.shorter);
  validate(
      std::max(scaled.height, scaled.width) <= data::max_encoded_side &&
          scaled.height * scaled.width <= data::max_decoded_pixels,
      "has {} x {} pixels, and would have {} x {} after --resize shorter={}; sides of up to {} "
      "and up to {} pixels are stored",
      image.height, image.width, scaled.height, scaled.width, storage.shorter,
      data::max_encoded_side, data::max_decoded_pixels);
  return resize_image(image, scaled);
}

std::vector<std::byte> encode(const ImageStorage& storage, const data::Image& image) {
  validate(std::max(image.height, image.width) <= data::max_encoded_side &&
               image.height * image.width <= data::max_decoded_pixels,
           "has {} x {} pixels; sides of up to {} and up to {} pixels are encoded", image.height,
           image.width, data::max_encoded_side, data::max_decoded_pixels);
  std::vector<std::byte> file =
      storage.encoding == Encoding::jpeg ? encode_jpeg(image, storage.quality) : encode_png(image);
  validate(std::ssize(file) <= data::max_encoded_bytes,
           "has {} bytes once it is encoded; files of up to {} are read", file.size(),
           data::max_encoded_bytes);
  return file;
}

}  // namespace trireme::app
