// SPDX-License-Identifier: Apache-2.0
//
// Checks the report of a child process about an HDF5 file, and looks objects up in it.
//
// Hdf5Index parses the report. What no file of this program contains refuses the whole file. Every
// dataset is compared with the size of the file (stored_dataset()); a fault is kept and thrown when
// the dataset is used. Readers of shards, checkpoints and datasets call the lookups.
#include "trireme/io/hdf5_index.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/ranges.h>

#include "hdf5_report.hpp"

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::io {

struct Hdf5Index::Object {
  using Kind = detail::ReportedObject::Kind;

  Kind kind = Kind::other;
  std::string problem;  ///< why the object cannot be used, without its name
  std::string target;   ///< soft link
  std::map<std::string, detail::ReportedAttribute> attributes;
  std::string attributes_problem;
  StoredDataset dataset;
  std::string dataset_problem;  ///< with its name
  std::optional<std::vector<std::string>> strings;
  std::string strings_problem;
};

namespace {

using detail::ReportedDataset;

// An untrusted file can claim any extent for compressed data. Deflate compresses at most 1032 : 1.
constexpr std::int64_t max_compression_ratio = 2000, always_allowed_bytes = 1 << 20;
// A reader thread unpacks a whole chunk, even for one sample.
constexpr std::int64_t max_chunk_bytes = std::int64_t{128} << 20;
constexpr std::int64_t max_band_bytes = std::int64_t{256} << 20;
constexpr std::size_t max_dimensions = 32, max_filters = 32;  // of HDF5
constexpr int max_links = 16;                                 // followed for one path, as HDF5 does
constexpr std::size_t max_problem_bytes = 500;

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
  constexpr std::int32_t deflate = 1, shuffle = 2;
  if (filter.id == deflate) return Hdf5Filter::deflate;
  validate(filter.id == shuffle,
           "{}: uses the filter {} ({}); deflate and shuffle can be read; `h5repack -f NONE OLD.h5 "
           "NEW.h5` writes a file without filters",
           location, filter.id, filter.name.empty() ? "no name" : printable(filter.name));
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
    validate(
        chunk.offset >= 0,
        "{}: chunk {} of {} was never written or cannot be found: the file is not complete; if "
        "it is, `h5repack -l CONTI OLD.h5 NEW.h5` writes all values",
        location, &chunk - reported.chunks.data() + 1, *count);
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

/// Compares a dataset with the size of the file. Throws InputError.
StoredDataset stored_dataset(const ReportedDataset& reported, const std::string& location,
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

/// Splits an object path at slashes; drops empty parts and ".".
std::vector<std::string> path_components(const std::string& object) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : object + "/") {
    if (c != '/') {
      part += c;
    } else if (!part.empty()) {
      if (part != ".") parts.push_back(part);
      part.clear();
    }
  }
  return parts;
}

std::string join(const std::string& parent, const std::string& name) {
  return parent.empty() ? name : parent + "/" + name;
}

}  // namespace

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

Hdf5Index::Hdf5Index(std::string path, std::int64_t file_bytes, std::string report)
    : path_(std::move(path)), file_bytes_(file_bytes), report_(std::move(report)) {
  ByteReader reader(report_);
  const auto next = [&] {
    try {
      return detail::object_from_bytes(reader.get_view());
    } catch (const InputError& error) {
      throw InputError(
          fmt::format("{}: the report about this file is wrong ({}): it is damaged or malicious",
                      path_, error.what()));
    }
  };
  while (!reader.at_end()) add(next());
  validate(objects_.contains(""), "{}: has no root group: the file is damaged", path_);
}

Hdf5Index::~Hdf5Index() = default;
Hdf5Index::Hdf5Index(Hdf5Index&&) noexcept = default;
Hdf5Index& Hdf5Index::operator=(Hdf5Index&&) noexcept = default;

void Hdf5Index::add(detail::ReportedObject reported) {
  const std::string location = location_of(reported.path);
  validate(reported.kind != Object::Kind::link_to_other_file || !reported.problem.empty(),
           "{}: is a link into another file, which is not followed; copy the data into this file",
           location);
  auto object = std::make_unique<Object>();
  object->kind = reported.kind;
  object->problem = reported.problem;
  object->target = reported.target;
  object->attributes_problem = reported.attributes_problem;
  for (detail::ReportedAttribute& attribute : reported.attributes)
    object->attributes.emplace(attribute.name, std::move(attribute));
  if (reported.dataset) {
    ReportedDataset& dataset = *reported.dataset;
    validate(dataset.layout != ReportedDataset::Layout::in_other_files,
             "{}: is a virtual dataset (its data are in other files), which is not supported; copy "
             "it into a plain dataset",
             location);
    validate(dataset.layout != ReportedDataset::Layout::external,
             "{}: its data are in another file (external storage), which is not supported; copy it "
             "into a plain dataset",
             location);
    object->strings = std::move(dataset.strings);
    object->strings_problem = dataset.strings_problem;
    try {
      object->dataset = stored_dataset(dataset, location, file_bytes_);
    } catch (const InputError& error) {
      object->dataset_problem = error.what();
    }
  } else if (reported.kind == Object::Kind::dataset && object->problem.empty()) {
    object->problem = "cannot be opened";
  }
  objects_[reported.path] = std::move(object);
}

std::string Hdf5Index::location_of(const std::string& object) const {
  return path_ + (object.starts_with('/') ? ": " : ": /") + printable(object);
}

std::string Hdf5Index::location_of(const std::string& object, const std::string& attribute) const {
  return fmt::format("{}: attribute {} of {}", path_, printable(attribute), printable(object));
}

/// Returns the path of an object without soft links; it may be missing. Throws InputError for links
/// that form a circle, and beyond 16 links.
std::string Hdf5Index::resolve(const std::string& object) const {
  // The parts that remain, the next one at the back.
  std::vector<std::string> rest = path_components(object);
  std::reverse(rest.begin(), rest.end());
  std::string found;
  for (int links = 0; !rest.empty();) {
    const std::string parent = found;
    found = join(parent, rest.back());
    rest.pop_back();
    const auto link = objects_.find(found);
    if (link == objects_.end() || link->second->kind != Object::Kind::soft_link) continue;
    validate(++links <= max_links, "{}: its links form a circle, or are more than {}",
             location_of(object), max_links);
    const std::vector<std::string> target = path_components(link->second->target);
    rest.insert(rest.end(), target.rbegin(), target.rend());
    found = link->second->target.starts_with('/') ? "" : parent;
  }
  return found;
}

const Hdf5Index::Object* Hdf5Index::find(const std::string& object) const {
  const std::string path = resolve(object);
  const auto found = objects_.find(path);
  if (found != objects_.end()) return found->second.get();
  // A group above may be damaged, so that its members are unknown.
  for (std::string group = path; !group.empty();) {
    const std::size_t slash = group.find_last_of('/');
    group.resize(slash == std::string::npos ? 0 : slash);
    const auto parent = objects_.find(group);
    if (parent != objects_.end())
      validate(parent->second->problem.empty(), "{}: {}", location_of(group),
               printable(parent->second->problem, max_problem_bytes));
  }
  return nullptr;
}

const Hdf5Index::Object& Hdf5Index::get(const std::string& object) const {
  const Object* found = find(object);
  validate(found != nullptr, "{} is missing", location_of(object));
  return *found;
}

bool Hdf5Index::has(const std::string& object) const { return find(object) != nullptr; }

std::vector<std::string> Hdf5Index::list_datasets(const std::string& group) const {
  std::vector<std::string> datasets;
  // Groups that are reached through soft links are followed to a limited depth.
  const std::size_t max_components = path_components(group).size() + detail::max_depth - 1;
  std::vector<std::string> pending{fmt::format("{}", fmt::join(path_components(group), "/"))};
  // Soft links can lead to the same objects by many long paths.
  std::size_t seen = 0, bytes = 0;
  while (!pending.empty()) {
    const std::string current = pending.back();
    pending.pop_back();
    const std::string real = resolve(current);
    const auto owner = objects_.find(real);
    validate(owner != objects_.end() && owner->second->kind == Object::Kind::group,
             "{}: no such group", location_of(current));
    validate(owner->second->problem.empty(), "{}: {}", location_of(current),
             printable(owner->second->problem, max_problem_bytes));
    validate(path_components(current).size() <= max_components,
             "{}: groups are nested deeper than {} levels at {}", path_, detail::max_depth - 1,
             printable(current));
    const std::string prefix = real.empty() ? "" : real + "/";
    for (auto child = objects_.lower_bound(prefix);
         child != objects_.end() && child->first.starts_with(prefix); ++child) {
      bytes += current.size() + child->first.size();
      validate(++seen <= detail::max_objects && bytes <= detail::max_report_bytes,
               "{}: more than {} objects, or their paths exceed {} MiB", path_, detail::max_objects,
               detail::max_report_bytes >> 20);
      const std::string name = child->first.substr(prefix.size());
      if (name.empty() || name.find('/') != std::string::npos) continue;
      const Object* object = find(child->first);
      const bool is_group = object != nullptr && object->kind == Object::Kind::group;
      (is_group ? pending : datasets).push_back(join(current, name));
    }
  }
  std::sort(datasets.begin(), datasets.end());
  return datasets;
}

const StoredDataset& Hdf5Index::dataset(const std::string& object) const {
  const Object& found = get(object);
  const std::string location = location_of(object);
  validate(found.problem.empty(), "{}: {}", location, printable(found.problem, max_problem_bytes));
  validate(found.kind == Object::Kind::dataset, "{}: is not a dataset", location);
  if (!found.dataset_problem.empty()) throw InputError(found.dataset_problem);
  return found.dataset;
}

const std::vector<std::string>& Hdf5Index::strings(const std::string& object) const {
  const StoredDataset& stored = dataset(object);
  const Object& found = get(object);
  validate(stored.kind == StoredDataset::Kind::text && stored.shape.size() <= 1,
           "{}: must be a list of strings", location_of(object));
  validate(found.strings.has_value(), "{}: {}", location_of(object),
           printable(found.strings_problem, max_problem_bytes));
  return *found.strings;
}

const detail::ReportedAttribute* Hdf5Index::find_attribute(const std::string& object,
                                                           const std::string& name) const {
  const Object& owner = get(object);
  const auto found = owner.attributes.find(name);
  if (found != owner.attributes.end()) return &found->second;
  const std::string& problem = owner.problem.empty() ? owner.attributes_problem : owner.problem;
  validate(problem.empty(), "{}: {}", location_of(object, name),
           printable(problem, max_problem_bytes));
  return nullptr;
}

bool Hdf5Index::has_attribute(const std::string& object, const std::string& name) const {
  return find_attribute(object, name) != nullptr;
}

std::optional<Hdf5Value> Hdf5Index::attribute(const std::string& object,
                                              const std::string& name) const {
  const detail::ReportedAttribute* found = find_attribute(object, name);
  if (found == nullptr) return std::nullopt;
  validate(found->problem.empty() && found->value.has_value(), "{}: {}", location_of(object, name),
           printable(found->problem, max_problem_bytes));
  return found->value;
}

std::map<std::string, Hdf5Value> Hdf5Index::attributes(const std::string& object) const {
  const Object& owner = get(object);
  validate(owner.attributes_problem.empty(), "{}: {}", location_of(object),
           printable(owner.attributes_problem, max_problem_bytes));
  std::map<std::string, Hdf5Value> values;
  for (const auto& [name, unused] : owner.attributes)
    values.emplace(name, *attribute(object, name));
  return values;
}

std::int64_t Hdf5Index::attribute_int(const std::string& object, const std::string& name) const {
  const std::optional<Hdf5Value> value = attribute(object, name);
  const std::string location = location_of(object, name);
  validate(value.has_value(), "{}: is missing (a whole number)", location);
  const auto* signed_value = std::get_if<std::int64_t>(&*value);
  validate(signed_value != nullptr, "{}: must be a whole number below 2^63", location);
  return *signed_value;
}

std::uint64_t Hdf5Index::attribute_uint(const std::string& object, const std::string& name) const {
  const std::optional<Hdf5Value> value = attribute(object, name);
  const std::string location = location_of(object, name);
  validate(value.has_value(), "{}: is missing (an unsigned whole number)", location);
  if (const auto* unsigned_value = std::get_if<std::uint64_t>(&*value)) return *unsigned_value;
  const auto* signed_value = std::get_if<std::int64_t>(&*value);
  validate(signed_value != nullptr && *signed_value >= 0, "{}: must be an unsigned whole number",
           location);
  return static_cast<std::uint64_t>(*signed_value);
}

double Hdf5Index::attribute_double(const std::string& object, const std::string& name) const {
  const std::optional<Hdf5Value> value = attribute(object, name);
  const std::string location = location_of(object, name);
  validate(value.has_value(), "{}: is missing (a number)", location);
  if (const auto* real = std::get_if<double>(&*value)) return *real;
  const auto* signed_value = std::get_if<std::int64_t>(&*value);
  validate(signed_value != nullptr, "{}: must be a number", location);
  return static_cast<double>(*signed_value);
}

std::string Hdf5Index::attribute_string(const std::string& object, const std::string& name) const {
  const std::optional<Hdf5Value> value = attribute(object, name);
  const std::string location = location_of(object, name);
  validate(value.has_value(), "{}: is missing (a string)", location);
  const auto* text = std::get_if<std::string>(&*value);
  validate(text != nullptr, "{}: must be a string", location);
  return *text;
}

const std::vector<std::string>& Hdf5Index::attribute_strings(const std::string& object,
                                                             const std::string& name) const {
  const detail::ReportedAttribute* found = find_attribute(object, name);
  const std::string location = location_of(object, name);
  validate(found != nullptr, "{}: is missing (strings)", location);
  validate(found->is_text, "{}: must be strings", location);
  // An attribute of several strings has a problem too: it is not a single value.
  validate(!found->strings.empty() || found->problem.empty(), "{}: {}", location,
           printable(found->problem, max_problem_bytes));
  return found->strings;
}

}  // namespace trireme::io
