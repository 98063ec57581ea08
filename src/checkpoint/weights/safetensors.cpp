// SPDX-License-Identifier: Apache-2.0
//
// Reader and writer of .safetensors files: 8 bytes of header length, a JSON header, then the bytes
// of the tensors.
//
// The reader trusts nothing: length, JSON, types, shapes and offsets are checked before a tensor is
// read. Import reads the tensors one by one; export writes all of them in one call.
#include "trireme/checkpoint/weights/safetensors.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <nlohmann/json.hpp>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/file_form.hpp"
#include "trireme/io/json.hpp"

namespace trireme::checkpoint {
namespace {

using Json = nlohmann::json;

// The limit of the reference implementation.
constexpr std::uint64_t max_header_bytes = 100'000'000;
// Elements that are converted in one chunk.
constexpr std::int64_t chunk_elements = 1 << 20;
// Enough for more than 100,000 tensors: a value takes at least 16 bytes of memory and 2 of the
// header. Header, tensor and shape are three levels.
constexpr io::JsonLimits header_limits{
    .bytes = max_header_bytes, .depth = 4, .values = 4'000'000, .members = 1'000'000};

/// Returns the bytes of an element of a type; 0 if the format has no such type.
std::uint64_t bytes_per_element(const std::string& type) {
  if (type == "F64" || type == "I64" || type == "U64") return 8;
  if (type == "F32" || type == "I32" || type == "U32") return 4;
  if (type == "F16" || type == "BF16" || type == "I16" || type == "U16") return 2;
  if (type == "BOOL" || type == "I8" || type == "U8" || type == "F8_E4M3" || type == "F8_E5M2")
    return 1;
  return 0;
}

/// Converts one entry of the header. Throws InputError if type, shape and offsets are invalid or
/// disagree.
SafetensorsReader::Entry entry_of(const Json& json, const std::string& place) {
  const auto is_count = [](const Json& value) { return value.is_number_unsigned(); };
  validate(json.is_object() && json.contains("dtype") && json.contains("shape") &&
               json.contains("data_offsets"),
           "{}: dtype, shape and data_offsets are required", place);
  const Json &type = json["dtype"], &shape = json["shape"], &offsets = json["data_offsets"];
  validate(type.is_string(), "{}: dtype is of type {}, but must be a string", place,
           type.type_name());
  validate(bytes_per_element(type.get<std::string>()) > 0, "{}: unknown dtype {}", place,
           printable(type.get<std::string>()));
  validate(shape.is_array() && shape.size() <= Shape::max_rank &&
               std::all_of(shape.begin(), shape.end(), is_count),
           "{}: shape must be a list of at most {} whole numbers", place, Shape::max_rank);
  validate(
      offsets.is_array() && offsets.size() == 2 && is_count(offsets[0]) && is_count(offsets[1]),
      "{}: data_offsets must be [begin, end]", place);
  SafetensorsReader::Entry entry;
  entry.type = type.get<std::string>();
  entry.begin = offsets[0];
  entry.end = offsets[1];
  std::uint64_t bytes = bytes_per_element(entry.type);
  for (const Json& extent : shape) {
    const auto count = extent.get<std::uint64_t>();
    validate(count < (std::uint64_t{1} << 62) && !__builtin_mul_overflow(bytes, count, &bytes),
             "{}: its shape has more elements than can be counted", place);
    entry.shape.push_back(static_cast<std::int64_t>(count));
  }
  validate(entry.begin <= entry.end && entry.end - entry.begin == bytes,
           "{}: shape and dtype need {} bytes, but data_offsets are [{}, {}]", place, bytes,
           entry.begin, entry.end);
  return entry;
}

/// Checks that the tensors fill the data from the first byte to the last, without overlap or hole.
/// Throws InputError.
void check_offsets(const std::map<std::string, SafetensorsReader::Entry>& entries,
                   std::uint64_t data_bytes, const std::string& path) {
  std::vector<std::pair<std::string, SafetensorsReader::Entry>> order(entries.begin(),
                                                                      entries.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.second.begin != b.second.begin ? a.second.begin < b.second.begin
                                            : a.second.end < b.second.end;
  });
  std::uint64_t end = 0;
  for (const auto& [name, entry] : order) {
    validate(entry.begin == end,
             "{}: {} begins at byte {} of the data where the tensor before it ends at {}: {}", path,
             printable(name), entry.begin, end,
             entry.begin < end ? "they overlap" : "there is a hole");
    end = entry.end;
  }
  validate(end == data_bytes,
           "{}: its tensors end at byte {} of the data, which has {}: it is cut short, or the "
           "header is wrong",
           path, end, data_bytes);
}

/// Converts IEEE 754 binary16 to float32.
float half_to_float(std::uint16_t half) {
  const int exponent = (half >> 10) & 31, fraction = half & 1023;
  float value = 0;
  if (exponent == 31) {
    value = fraction != 0 ? std::nanf("") : INFINITY;
  } else {
    value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                          : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  }
  return (half & 0x8000) != 0 ? -value : value;
}

template <class T>
T element(const std::string& bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

/// Converts element `index` of `bytes` from the given type to float32.
float to_float(const std::string& type, const std::string& bytes, std::size_t index) {
  if (type == "F32") return element<float>(bytes, index);
  if (type == "F64") return static_cast<float>(element<double>(bytes, index));
  const auto half = element<std::uint16_t>(bytes, index);
  return type == "BF16" ? std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16)
                        : half_to_float(half);
}

/// Returns the header of a new file: tensors in the given order, without gaps.
Json header_of(const std::vector<SafetensorsTensor>& tensors,
               const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    TRIREME_EXPECT(static_cast<std::int64_t>(tensor.values.size()) == tensor.shape.elements());
    const std::uint64_t end = offset + tensor.values.size() * sizeof(float);
    header[tensor.name] = {
        {"dtype", "F32"},
        {"shape", std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.end())},
        {"data_offsets", {offset, end}}};
    offset = end;
  }
  return header;
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  const io::File file(path, io::File::Mode::read);
  const auto size = static_cast<std::uint64_t>(file.size());
  validate(size >= 8, "{}: has {} bytes, too few for a safetensors file", path, size);
  std::uint64_t header_bytes = 0;
  file.read_at(0, &header_bytes, 8);
  validate(
      header_bytes <= max_header_bytes && header_bytes <= size - 8,
      "{}: the header claims {} bytes, the file has {}: it is cut short, or no safetensors file{}",
      path, header_bytes, size, io::form_hint(io::recognize_form(path)));
  std::string text(header_bytes, '\0');
  file.read_at(8, text.data(), static_cast<std::int64_t>(header_bytes));
  data_offset_ = 8 + header_bytes;
  const Json header = io::parse_json_object<Json>(text, path + ": the header", header_limits);
  for (const auto& [name, json] : header.items()) {
    if (name != "__metadata__")
      entries_.emplace(name, entry_of(json, path + ": " + printable(name)));
  }
  check_offsets(entries_, size - data_offset_, path);
}

std::vector<float> SafetensorsReader::read_float32(const std::string& name) const {
  const auto found = entries_.find(name);
  validate(found != entries_.end(), "{}: has no tensor {}", path_, name);
  const Entry& entry = found->second;
  validate(
      entry.type == "F32" || entry.type == "F16" || entry.type == "BF16" || entry.type == "F64",
      "{}: {} is of type {}; F32, F16, BF16 and F64 are read", path_, name, entry.type);
  const io::File file(path_, io::File::Mode::read);
  const auto element_bytes = static_cast<std::int64_t>(bytes_per_element(entry.type));
  const std::int64_t elements = entry.shape.elements();
  std::vector<float> values(static_cast<std::size_t>(elements));
  std::string bytes;
  for (std::int64_t first = 0; first < elements; first += chunk_elements) {
    const std::int64_t count = std::min(chunk_elements, elements - first);
    bytes.resize(static_cast<std::size_t>(count * element_bytes));
    file.read_at(static_cast<std::int64_t>(data_offset_ + entry.begin) + first * element_bytes,
                 bytes.data(), static_cast<std::int64_t>(bytes.size()));
    for (std::int64_t i = 0; i < count; ++i)
      values[static_cast<std::size_t>(first + i)] =
          to_float(entry.type, bytes, static_cast<std::size_t>(i));
  }
  return values;
}

void write_safetensors(const std::string& path, const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  io::StagedFile staged(path, io::unique_suffix());
  write_safetensors(staged, tensors, metadata);
  staged.commit();
}

void write_safetensors(const io::StagedFile& staged, const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::string header = header_of(tensors, metadata).dump();
  // Pads the header so that the data start at a multiple of 8, like the reference implementation.
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t header_bytes = header.size();
  io::File file(staged.temporary(), io::File::Mode::create);
  file.write_at(0, &header_bytes, 8);
  file.write_at(8, header.data(), static_cast<std::int64_t>(header.size()));
  std::int64_t offset = 8 + static_cast<std::int64_t>(header.size());
  for (const SafetensorsTensor& tensor : tensors) {
    const std::int64_t bytes = static_cast<std::int64_t>(tensor.values.size() * sizeof(float));
    file.write_at(offset, tensor.values.data(), bytes);
    offset += bytes;
  }
  file.close();
}

}  // namespace trireme::checkpoint
