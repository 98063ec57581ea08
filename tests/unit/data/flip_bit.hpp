// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "trireme/io/file.hpp"

namespace trireme::data {

/// Flips the lowest bit of a byte of a file.
inline void flip_bit(const std::string& path, std::int64_t offset) {
  const io::File file(path, io::File::Mode::update);
  char byte = 0;
  file.read_at(offset, &byte, 1);
  byte = static_cast<char>(byte ^ 1);
  file.write_at(offset, &byte, 1);
}

}  // namespace trireme::data
