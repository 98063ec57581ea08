// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/sources/gzip_reader.hpp"

namespace trireme::data {

/// A line of a file of JSON Lines.
struct JsonLine {
  std::int64_t number = 0;  ///< from 1
  std::string text;         ///< the value of the member
  std::string problem;      ///< why there is none; empty: there is one
};

/// Reads one member, a string, of each line of a file of JSON Lines (https://jsonlines.org), plain
/// or compressed with gzip. Lines of blanks are passed over. Nothing else of a line is kept, so
/// memory does not grow with its depth. Throws InputError if compressed data are damaged.
class JsonLineReader {
 public:
  /// `member`: the name of the member with the text.
  JsonLineReader(const std::string& path, std::string member);
  /// Reads the next line. Returns false at the end of the file.
  bool next(JsonLine& line);

 private:
  bool read_line(std::string& line, bool& is_too_long);

  GzipReader file_;
  std::string member_;
  std::int64_t number_ = 0;
  std::vector<std::byte> block_;
  std::size_t position_ = 0, end_ = 0;  ///< the rest of the block
};

}  // namespace trireme::data
