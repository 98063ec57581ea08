// SPDX-License-Identifier: Apache-2.0
//
// Converts the objects of a report to bytes and back.
//
// The child process (hdf5_scan.cpp) writes them to a pipe, and Hdf5Index parses them. Both run the
// same program on the same machine, so the format needs no version. The bytes are untrusted: the
// child may have crashed in a way that made it write anything.
#include "hdf5_report.hpp"

namespace trireme::io::detail {
namespace {

void put_value(ByteWriter& bytes, const std::optional<Hdf5Value>& value) {
  bytes.put(static_cast<std::uint8_t>(value ? value->index() : 255));
  if (!value) return;
  if (const auto* text = std::get_if<std::string>(&*value))
    bytes.put_string(*text);
  else if (const auto* real = std::get_if<double>(&*value))
    bytes.put(*real);
  else if (const auto* unsigned_value = std::get_if<std::uint64_t>(&*value))
    bytes.put(*unsigned_value);
  else
    bytes.put(std::get<std::int64_t>(*value));
}

std::optional<Hdf5Value> get_value(ByteReader& bytes) {
  switch (bytes.get<std::uint8_t>()) {
    case 0: return bytes.get<std::int64_t>();
    case 1: return bytes.get<std::uint64_t>();
    case 2: return bytes.get<double>();
    case 3: return bytes.get_string();
    default: return std::nullopt;
  }
}

void put_attribute(ByteWriter& bytes, const ReportedAttribute& attribute) {
  bytes.put_string(attribute.name);
  put_value(bytes, attribute.value);
  bytes.put(attribute.is_text);
  bytes.put_strings(attribute.strings);
  bytes.put_string(attribute.problem);
}

ReportedAttribute get_attribute(ByteReader& bytes) {
  ReportedAttribute attribute;
  attribute.name = bytes.get_string();
  attribute.value = get_value(bytes);
  attribute.is_text = bytes.get_bool();
  attribute.strings = bytes.get_strings();
  attribute.problem = bytes.get_string();
  return attribute;
}

void put_dataset(ByteWriter& bytes, const ReportedDataset& dataset) {
  bytes.put(static_cast<std::uint8_t>(dataset.kind));
  bytes.put(dataset.element_bytes);
  bytes.put(dataset.is_signed);
  bytes.put(dataset.native_order);
  bytes.put(dataset.is_null);
  bytes.put_list(dataset.shape);
  bytes.put(static_cast<std::uint8_t>(dataset.layout));
  bytes.put(dataset.offset);
  bytes.put_list(dataset.chunk);
  bytes.put(dataset.partial_chunks_unfiltered);
  bytes.put(static_cast<std::uint64_t>(dataset.filters.size()));
  for (const ReportedFilter& filter : dataset.filters) {
    bytes.put(filter.id);
    bytes.put(filter.parameter);
    bytes.put_string(filter.name);
  }
  bytes.put_list(dataset.chunks);
  bytes.put_string(dataset.values);
  bytes.put(dataset.strings.has_value());
  if (dataset.strings) bytes.put_strings(*dataset.strings);
  bytes.put_string(dataset.strings_problem);
}

ReportedDataset get_dataset(ByteReader& bytes) {
  ReportedDataset dataset;
  dataset.kind = bytes.get_enum(StoredDataset::Kind::other);
  dataset.element_bytes = bytes.get<std::uint64_t>();
  dataset.is_signed = bytes.get_bool();
  dataset.native_order = bytes.get_bool();
  dataset.is_null = bytes.get_bool();
  dataset.shape = bytes.get_list<std::uint64_t>();
  dataset.layout = bytes.get_enum(ReportedDataset::Layout::in_other_files);
  dataset.offset = bytes.get<std::int64_t>();
  dataset.chunk = bytes.get_list<std::uint64_t>();
  dataset.partial_chunks_unfiltered = bytes.get_bool();
  for (auto filters = bytes.get<std::uint64_t>(); filters > 0; --filters) {
    ReportedFilter filter;
    filter.id = bytes.get<std::int32_t>();
    filter.parameter = bytes.get<std::uint32_t>();
    filter.name = bytes.get_string();
    dataset.filters.push_back(std::move(filter));
  }
  dataset.chunks = bytes.get_list<Hdf5Chunk>();
  dataset.values = bytes.get_string();
  if (bytes.get_bool()) dataset.strings = bytes.get_strings();
  dataset.strings_problem = bytes.get_string();
  return dataset;
}

}  // namespace

std::string to_bytes(const ReportedObject& object) {
  ByteWriter bytes;
  bytes.put_string(object.path);
  bytes.put(static_cast<std::uint8_t>(object.kind));
  bytes.put_string(object.problem);
  bytes.put_string(object.target);
  bytes.put(static_cast<std::uint64_t>(object.attributes.size()));
  for (const ReportedAttribute& attribute : object.attributes) put_attribute(bytes, attribute);
  bytes.put_string(object.attributes_problem);
  bytes.put(object.dataset.has_value());
  if (object.dataset) put_dataset(bytes, *object.dataset);
  return bytes.take();
}

ReportedObject object_from_bytes(std::string_view report) {
  ByteReader bytes(report);
  ReportedObject object;
  object.path = bytes.get_string();
  object.kind = bytes.get_enum(ReportedObject::Kind::link_to_other_file);
  object.problem = bytes.get_string();
  object.target = bytes.get_string();
  for (auto attributes = bytes.get<std::uint64_t>(); attributes > 0; --attributes)
    object.attributes.push_back(get_attribute(bytes));
  object.attributes_problem = bytes.get_string();
  if (bytes.get_bool()) object.dataset = get_dataset(bytes);
  if (!bytes.at_end()) throw InputError("the bytes go on behind the last value");
  return object;
}

std::optional<std::uint64_t> count_chunks(const std::vector<std::uint64_t>& shape,
                                          const std::vector<std::uint64_t>& chunk) {
  if (chunk.size() != shape.size()) return std::nullopt;
  std::uint64_t count = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (chunk[i] == 0) return std::nullopt;
    const std::uint64_t along = shape[i] / chunk[i] + (shape[i] % chunk[i] != 0 ? 1 : 0);
    if (__builtin_mul_overflow(count, along, &count)) return std::nullopt;
  }
  return count;
}

}  // namespace trireme::io::detail
