#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/tensor/tensor.hpp"

namespace trireme::checkpoint {

/// A .safetensors file: header of JSON, then the tensors' bytes. Header and offsets are checked
/// against the file's size before anything is allocated: no overlap, no hole, no unknown type.
/// Throws InputError with file and tensor.
class SafetensorsReader {
 public:
  struct Entry {
    std::string type;  ///< "F32", "BF16", "F16", ...
    Shape shape;
    std::uint64_t begin = 0, end = 0;  ///< bytes from the start of the data
  };
  explicit SafetensorsReader(const std::string& path);
  const std::map<std::string, Entry>& entries() const { return entries_; }
  /// The whole tensor as float32 in the file's order (F32, F16, BF16, F64).
  std::vector<float> read_float32(const std::string& name) const;

 private:
  std::string path_;
  std::uint64_t data_offset_ = 0;
  std::map<std::string, Entry> entries_;
};

struct SafetensorsTensor {
  std::string name;
  Shape shape;
  std::vector<float> values;
};
/// Writes float32 tensors (to a temporary name, flushed, renamed).
void write_safetensors(const std::string& path, const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace trireme::checkpoint
