// SPDX-License-Identifier: Apache-2.0
//
// Checks what a child process reports about a dataset of an HDF5 file: extents, chunks and filters
// must fit in the file, and be small enough to read. Called by Hdf5Index for each dataset.
#include "stored_dataset.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/ranges.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::io {
namespace {

using detail::ReportedDataset;

// An untrusted file can claim any extent for compressed data. Deflate compresses at most 1032 : 1.
constexpr std::int64_t max_compression_ratio = 2000, always_allowed_bytes = 1 << 20;
// A reader thread unpacks a whole chunk, even for one sample.
constexpr std::int64_t max_chunk_bytes = std::int64_t{128} << 20;
constexpr std::int64_t max_band_bytes = std::int64_t{256} << 20;
constexpr std::size_t max_dimensions = 32, max_filters = 32;  // of HDF5

std::int64_t to_int64(std::uint64_t value, const std::string& location) {
  validate(value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()),
           "{}: an extent of {} elements exceeds 2^63 - 1", location, value);
  return static_cast<std::int64_t>(value);
}

/// Returns the size of an array in bytes. Throws InputError on overflow.
std::int64_t checked_bytes(const std::vector<std::int64_t>& shape, std::int64_t element_bytes,
                           const std::string& location) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t bytes = element_bytes;
  for (const std::int64_t extent : shape) {
    const bool overflow = __builtin_mul_overflow(bytes, extent, &bytes);
    validate(!overflow, "{}: its extents [{}] exceed 2^63 - 1 bytes", location,
             fmt::join(shape, ", "));
  }
  return bytes;
}

void check_range(std::int64_t offset, std::int64_t bytes, std::int64_t file_bytes,
                 const std::string& location) {
  validate(offset >= 0 && offset <= file_bytes && bytes <= file_bytes - offset,
           "{}: its {} bytes from byte {} on do not fit in the file of {} bytes: the file is "
           "truncated or damaged",
           location, bytes, offset, file_bytes);
}

Hdf5Filter filter_of(const detail::ReportedFilter& filter, std::int64_t element_bytes,
                     const std::string& location) {
  // The numbers are those of HDF5's registry of filters.
  constexpr std::int32_t deflate = 1, shuffle = 2, first_of_others = 256;
  if (filter.id == deflate) return Hdf5Filter::deflate;
  // h5repack leaves out datasets of filters that it lacks.
  validate(filter.id == shuffle, "{}: uses the filter {} ({}); deflate and shuffle can be read; {}",
           location, filter.id, filter.name.empty() ? "no name" : printable(filter.name),
           filter.id < first_of_others
               ? "`h5repack -f NONE OLD.h5 NEW.h5` writes a file without filters"
               : "write the dataset again with compression=\"gzip\" or without, by a program that "
                 "has the filter, as h5py with hdf5plugin");
  validate(filter.parameter == static_cast<std::uint64_t>(element_bytes),
           "{}: shuffles elements of {} bytes, but they have {}: the file is damaged", location,
           filter.parameter, element_bytes);
  return Hdf5Filter::shuffle;
}

/// Compares the chunks of a dataset with the size of the file. Throws InputError.
void check_chunks(const ReportedDataset& reported, std::int64_t file_bytes,
                  StoredDataset& dataset) {
  const std::string& location = dataset.location;
  const std::int64_t allowed = std::max(
      always_allowed_bytes,
      max_compression_ratio *
          std::min(file_bytes, std::numeric_limits<std::int64_t>::max() / max_compression_ratio));
  validate(dataset.bytes() <= allowed,
           "{}: claims {} bytes, which a file of {} bytes cannot hold: it is damaged or malicious",
           location, dataset.bytes(), file_bytes);
  validate(reported.chunk.size() == dataset.shape.size() && !dataset.shape.empty() &&
               reported.filters.size() <= max_filters,
           "{}: has chunks of {} dimensions and {} filters: the file is damaged", location,
           reported.chunk.size(), reported.filters.size());
  for (const std::uint64_t extent : reported.chunk)
    dataset.chunk.push_back(to_int64(extent, location));
  const std::optional<std::uint64_t> count = detail::count_chunks(reported.shape, reported.chunk);
  validate(count.has_value(), "{}: its chunks [{}] do not fit its extents [{}]", location,
           fmt::join(dataset.chunk, ", "), fmt::join(dataset.shape, ", "));
  const std::int64_t chunk_bytes = checked_bytes(dataset.chunk, dataset.element_bytes, location);
  validate(chunk_bytes <= allowed, "{}: a chunk claims {} bytes in a file of {}", location,
           chunk_bytes, file_bytes);
  validate(chunk_bytes <= max_chunk_bytes,
           "{}: has chunks of {}; up to {} can be read; `h5repack -l CONTI OLD.h5 NEW.h5` writes a "
           "file without chunks",
           location, format_bytes(chunk_bytes), format_bytes(max_chunk_bytes));
  validate(*count <= detail::max_chunks,
           "{}: is stored in {} chunks; up to {} can be read; `h5repack -l CONTI OLD.h5 NEW.h5` "
           "writes a file without chunks",
           location, *count, detail::max_chunks);
  const bool is_written = reported.chunks.empty() || reported.chunks.back().offset >= 0;
  validate(is_written,
           "{}: chunk {} of {} was never written or cannot be found: the file is not complete; if "
           "it is, `h5repack -l CONTI OLD.h5 NEW.h5` writes all values",
           location, reported.chunks.size(), *count);
  validate(
      reported.chunks.size() == *count || !reported.chunks.empty(),
      "{}: is in {} chunks, and the datasets of the file together in more than the {} that can "
      "be read; `h5repack -l CONTI OLD.h5 NEW.h5` writes a file without chunks",
      location, *count, detail::max_listed_chunks);
  validate(reported.chunks.size() == *count, "{}: has {} chunks, but {} are listed", location,
           *count, reported.chunks.size());
  validate(!reported.partial_chunks_unfiltered,
           "{}: its chunks at the edges have no filters, which is not supported; `h5repack -f NONE "
           "OLD.h5 NEW.h5` writes a file without filters",
           location);
  for (const detail::ReportedFilter& filter : reported.filters)
    dataset.filters.push_back(filter_of(filter, dataset.element_bytes, location));
  // Reading one row unpacks the chunks of all its columns.
  const std::int64_t row_bytes = dataset.bytes() / dataset.shape[0],
                     band_rows = std::min(dataset.chunk[0], dataset.shape[0]);
  validate(
      band_rows <= max_band_bytes / std::max<std::int64_t>(row_bytes, 1),
      "{}: one row of chunks unpacks to {} x {} bytes; up to {} can be read; `h5repack -l CONTI "
      "OLD.h5 NEW.h5` writes a file without chunks",
      location, band_rows, row_bytes, format_bytes(max_band_bytes));
  const bool deflates = std::find(dataset.filters.begin(), dataset.filters.end(),
                                  Hdf5Filter::deflate) != dataset.filters.end();
  std::int64_t stored_bytes = 0;
  for (const Hdf5Chunk& chunk : reported.chunks) {
    check_range(chunk.offset, chunk.bytes, file_bytes, location);
    // Deflate makes a chunk at most 1032 times smaller, and hardly larger.
    const bool plausible = deflates ? chunk_bytes <= 1032 * std::int64_t{chunk.bytes} + 64 &&
                                          chunk.bytes <= chunk_bytes + chunk_bytes / 100 + 1024
                                    : chunk.bytes == chunk_bytes;
    validate(plausible, "{}: a chunk of {} bytes is stored in {}: the file is damaged", location,
             chunk_bytes, chunk.bytes);
    stored_bytes += chunk.bytes;
    validate(stored_bytes <= file_bytes, "{}: its chunks overlap: the file is damaged", location);
  }
  dataset.chunks = reported.chunks;
}

}  // namespace

StoredDataset stored_dataset(const detail::ReportedDataset& reported, const std::string& location,
                             std::int64_t file_bytes) {
  validate(!reported.is_null, "{}: is empty", location);
  StoredDataset dataset;
  dataset.location = location;
  dataset.kind = reported.kind;
  dataset.is_signed = reported.is_signed;
  dataset.native_order = reported.native_order;
  dataset.element_bytes = to_int64(reported.element_bytes, location);
  validate(!dataset.is_number() || dataset.element_bytes == 1 || dataset.element_bytes == 2 ||
               dataset.element_bytes == 4 || dataset.element_bytes == 8,
           "{}: has numbers of {} bytes", location, dataset.element_bytes);
  validate(reported.shape.size() <= max_dimensions, "{}: has {} dimensions", location,
           reported.shape.size());
  for (const std::uint64_t extent : reported.shape)
    dataset.shape.push_back(to_int64(extent, location));
  // At least one byte an element, so that products of extents cannot overflow.
  const std::int64_t bytes =
      checked_bytes(dataset.shape, std::max<std::int64_t>(dataset.element_bytes, 1), location);
  if (!dataset.is_number() || bytes == 0) return dataset;
  switch (reported.layout) {
    case ReportedDataset::Layout::compact:
      dataset.storage = StoredDataset::Storage::compact;
      validate(static_cast<std::int64_t>(reported.values.size()) == bytes,
               "{}: has {} bytes in its header instead of {}: the file is damaged", location,
               reported.values.size(), bytes);
      dataset.values = reported.values;
      break;
    case ReportedDataset::Layout::chunked:
      dataset.storage = StoredDataset::Storage::chunked;
      check_chunks(reported, file_bytes, dataset);
      break;
    default:
      validate(reported.offset >= 0, "{}: was created but never written", location);
      check_range(reported.offset, bytes, file_bytes, location);
      dataset.offset = reported.offset;
  }
  return dataset;
}

std::int64_t StoredDataset::elements() const {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

std::int64_t StoredDataset::stored_bytes() const {
  if (storage != Storage::chunked) return bytes();
  std::int64_t sum = 0;
  for (const Hdf5Chunk& part : chunks) sum += part.bytes;
  return sum;
}

void StoredDataset::put(ByteWriter& message) const {
  message.put_string(location);
  message.put(static_cast<std::uint8_t>(kind));
  message.put(element_bytes);
  message.put(is_signed);
  message.put(native_order);
  message.put_list(shape);
  message.put(static_cast<std::uint8_t>(storage));
  message.put(offset);
  message.put_list(chunk);
  message.put_list(filters);
  message.put_list(chunks);
  message.put_string(values);
}

StoredDataset StoredDataset::get(ByteReader& message) {
  StoredDataset dataset;
  dataset.location = message.get_string();
  dataset.kind = message.get_enum(Kind::other);
  dataset.element_bytes = message.get<std::int64_t>();
  dataset.is_signed = message.get_bool();
  dataset.native_order = message.get_bool();
  dataset.shape = message.get_list<std::int64_t>();
  dataset.storage = message.get_enum(Storage::compact);
  dataset.offset = message.get<std::int64_t>();
  dataset.chunk = message.get_list<std::int64_t>();
  dataset.filters = message.get_list<Hdf5Filter>();
  dataset.chunks = message.get_list<Hdf5Chunk>();
  dataset.values = message.get_string();
  return dataset;
}

}  // namespace trireme::io
