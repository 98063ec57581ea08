// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "shard_command.hpp"
#include "trireme/data/images/image.hpp"
#include "trireme/data/sources/image_catalog.hpp"

namespace trireme::app {

/// How `shard` stores images: the options --resize, --encode and --quality.
struct ImageStorage {
  enum class Encoding : std::uint8_t {
    raw,   ///< pixels
    jpeg,  ///< JPEG files
    png,   ///< PNG files
    keep   ///< the files of the source, unchanged
  };
  Encoding encoding = Encoding::raw;
  int quality = 0;                            ///< of JPEG, 1 to 100
  std::optional<data::ImageExtents> extents;  ///< --resize HEIGHTxWIDTH
  std::int64_t shorter = 0;                   ///< --resize shorter=N; 0: not given

  bool is_raw() const { return encoding == Encoding::raw; }
  bool keeps_size() const { return !extents && shorter == 0; }
};

/// Reads the options. Throws InputError if one is wrong, or they contradict each other.
ImageStorage parse_storage(const ShardCommand& command);

/// Checks that the images of a source can be stored so. Throws InputError.
void check_storage(const ImageStorage& storage, const data::ImageCatalog& catalog);

/// Returns an image with the size of --resize. Throws InputError without its name if it would be
/// too large.
data::Image resize(const ImageStorage& storage, data::Image image);

/// Returns an image as a JPEG or PNG file. Throws InputError without its name if the file is too
/// large to be read again.
std::vector<std::byte> encode(const ImageStorage& storage, const data::Image& image);

}  // namespace trireme::app
