// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/tensor/tensor.hpp"

namespace trireme::io {
class StagedFile;
}

namespace trireme::checkpoint {

/// Reads a .safetensors file: a JSON header, followed by the bytes of the tensors. The constructor
/// reads and checks only the header. It checks offsets against the file size before anything is
/// allocated: no overlap, no hole, no unknown type. Throws InputError with file and tensor.
class SafetensorsReader {
 public:
  struct Entry {
    std::string type;  ///< "F32", "BF16", "F16", ...
    Shape shape;
    /// Byte range [begin, end) in the data after the header.
    std::uint64_t begin = 0, end = 0;
  };
  explicit SafetensorsReader(const std::string& path);
  const std::map<std::string, Entry>& entries() const { return entries_; }
  /// Reads a whole tensor and converts it to float32, in file order. Accepts F32, F16, BF16 and
  /// F64. Throws InputError for other types and unknown names.
  std::vector<float> read_float32(const std::string& name) const;

 private:
  std::string path_;
  std::uint64_t data_offset_ = 0;
  std::map<std::string, Entry> entries_;
};

/// One tensor to write: values as float32, row-major.
struct SafetensorsTensor {
  std::string name;
  Shape shape;
  std::vector<float> values;
};
/// Writes a safetensors file of float32 tensors: to a temporary name, flushed, then renamed. Throws
/// InputError if the path is wrong, Failure if the disk fails.
void write_safetensors(const std::string& path, const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata);
/// Fills a file that the caller commits.
void write_safetensors(const io::StagedFile& staged, const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace trireme::checkpoint
