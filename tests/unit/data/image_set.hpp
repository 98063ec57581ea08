// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/shards/shard_writer.hpp"

namespace trireme::data {

/// A set of small images. Every byte of sample i is a function of i, so samples are
/// distinguishable.
struct ImageSet {
  std::int64_t height = 3, width = 2, channels = 1;
  std::vector<std::byte> images;
  std::vector<std::int32_t> labels;

  explicit ImageSet(std::int64_t samples, std::int64_t classes = 5) {
    for (std::int64_t i = 0; i < samples; ++i) {
      for (std::int64_t p = 0; p < sample_bytes(); ++p)
        images.push_back(static_cast<std::byte>(i * 31 + p * 7 + (i >> 6)));
      labels.push_back(static_cast<std::int32_t>(i * i % classes));
    }
  }
  std::int64_t sample_bytes() const { return height * width * channels; }
  std::span<const std::byte> image(std::int64_t sample) const {
    return std::span(images).subspan(static_cast<std::size_t>(sample * sample_bytes()),
                                     static_cast<std::size_t>(sample_bytes()));
  }
  /// Writes the set as shards with the given sample counts.
  void write(const std::string& folder, const std::vector<std::int64_t>& counts,
             std::vector<std::string> classes = {}) const {
    std::filesystem::create_directories(folder);
    std::int64_t first = 0, index = 0;
    for (const std::int64_t count : counts) {
      const auto bytes =
          std::span(images).subspan(static_cast<std::size_t>(first * sample_bytes()),
                                    static_cast<std::size_t>(count * sample_bytes()));
      write_image_shard(folder + "/" + shard_file_name(index++),
                        {.height = height,
                         .width = width,
                         .channels = channels,
                         .classes = classes,
                         .checksum_block = 16},
                        bytes,
                        std::as_bytes(std::span(labels).subspan(static_cast<std::size_t>(first),
                                                                static_cast<std::size_t>(count))));
      first += count;
    }
  }
};

}  // namespace trireme::data
