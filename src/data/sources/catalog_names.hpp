// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/io/hash.hpp"

namespace trireme::data {

/// Returns the last extension of a path in lower case, without the dot: "jpg". Empty: none.
std::string extension_of(std::string_view path);

/// Returns whether a file of this name is taken for an image: .jpg, .jpeg or .png.
bool is_image_name(std::string_view path);

/// Returns a path up to the last dot of its file name: "a/s0.left" of "a/s0.left.jpg".
std::string_view stem_of(std::string_view path);

/// Returns a path up to the first dot of its file name: "a/s0" of "a/s0.left.jpg". WebDataset calls
/// it the key of a file.
std::string_view first_stem_of(std::string_view path);

/// A hash of the sizes and times of change of files. A killed command continues only if it is the
/// same.
class FileIdentity {
 public:
  /// Adds a file and returns its size. Throws InputError if it does not exist.
  std::int64_t add(const std::string& path);
  std::uint64_t value() const { return hash_.digest(); }

 private:
  io::Xxh3 hash_;
};

}  // namespace trireme::data
