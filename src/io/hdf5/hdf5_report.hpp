// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/bytes.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::io::detail {

// The report of the child process about one file: facts, as HDF5 states them. Hdf5Index checks
// them. A report is a list of objects, each after its length (uint64).

// Names of more objects, deeper groups and longer chunk tables are not reported.
inline constexpr std::size_t max_objects = 1'000'000, max_depth = 17;
inline constexpr std::uint64_t max_chunks = 2'000'000;
// Of all datasets of a file: their places must fit in the report.
inline constexpr std::uint64_t max_listed_chunks = 3'000'000;
// A report beyond this size is refused.
inline constexpr std::size_t max_report_bytes = std::size_t{64} << 20;

struct ReportedFilter {
  std::int32_t id = 0;
  std::uint32_t parameter = 0;  ///< the first parameter; shuffle: the bytes of an element
  std::string name;
};

struct ReportedAttribute {
  std::string name;
  std::optional<Hdf5Value> value;
  bool is_text = false;
  std::vector<std::string> strings;  ///< all values of an attribute of strings
  std::string problem;               ///< why there is no value
};

struct ReportedDataset {
  enum class Layout : std::uint8_t { contiguous, chunked, compact, external, in_other_files };

  StoredDataset::Kind kind = StoredDataset::Kind::other;
  std::uint64_t element_bytes = 0;
  bool is_signed = false, native_order = false;
  bool is_null = false;  ///< has no extents
  std::vector<std::uint64_t> shape;
  Layout layout = Layout::contiguous;
  std::int64_t offset = -1;  ///< contiguous; -1: never written
  std::vector<std::uint64_t> chunk;
  bool partial_chunks_unfiltered = false;
  std::vector<ReportedFilter> filters;
  /// Up to the first one that was never written; empty if there are more than max_chunks, or more
  /// than max_listed_chunks in the file.
  std::vector<Hdf5Chunk> chunks;
  std::string values;  ///< compact
  std::optional<std::vector<std::string>> strings;
  std::string strings_problem;
};

struct ReportedObject {
  enum class Kind : std::uint8_t { group, dataset, other, soft_link, link_to_other_file };

  std::string path;  ///< without the leading slash; "" is the root group
  Kind kind = Kind::other;
  std::string problem;  ///< why the object cannot be used; empty if it can
  std::string target;   ///< soft link
  std::vector<ReportedAttribute> attributes;
  std::string attributes_problem;
  std::optional<ReportedDataset> dataset;
};

/// Converts an object to bytes and back. from_bytes() throws InputError for bytes that to_bytes()
/// cannot return.
std::string to_bytes(const ReportedObject& object);
ReportedObject object_from_bytes(std::string_view bytes);

/// Returns the number of chunks of a dataset; none if it exceeds 2^64 - 1 or an extent of a chunk
/// is 0.
std::optional<std::uint64_t> count_chunks(const std::vector<std::uint64_t>& shape,
                                          const std::vector<std::uint64_t>& chunk);

}  // namespace trireme::io::detail
