// SPDX-License-Identifier: Apache-2.0
//
// Catalogs files of records of equal length: idx (MNIST), .npy of NumPy, and the binary version of
// CIFAR.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "catalog_names.hpp"
#include "channel_order.hpp"
#include "data/labels/image_labels.hpp"
#include "data/shards/shard_limits.hpp"
#include "idx.hpp"
#include "npy_header.hpp"
#include "trireme/base/check.hpp"
#include "trireme/data/sources/image_catalog.hpp"

namespace trireme::data {
namespace {

/// A version of CIFAR: https://www.cs.toronto.edu/~kriz/cifar.html
struct CifarVersion {
  const char* name;
  std::int64_t label_bytes;  ///< the last one is the class
  std::int64_t classes;
  std::int64_t record_bytes() const { return label_bytes + pixel_bytes; }
  static constexpr std::int64_t side = 32, channels = 3, pixel_bytes = side * side * channels;
};
constexpr CifarVersion cifar_versions[] = {{"CIFAR-10", 1, 10}, {"CIFAR-100", 2, 100}};

/// The files of a source, read as records of one version.
struct CifarReading {
  const CifarVersion* version = nullptr;
  std::vector<std::int32_t> labels;  ///< of all records of all files
  std::string problem;               ///< the first label that is none; empty: all are labels
};

/// Returns whether every file has a whole number of records.
bool has_records(const CifarVersion& version, const std::vector<std::string>& files) {
  return std::all_of(files.begin(), files.end(), [&](const std::string& path) {
    const std::int64_t bytes = io::File(path, io::File::Mode::read).size();
    return bytes > 0 && bytes % version.record_bytes() == 0;
  });
}

/// Reads the labels, up to the first that is none.
CifarReading read_labels_as(const CifarVersion& version, const std::vector<std::string>& files) {
  CifarReading reading;
  reading.version = &version;
  for (const std::string& path : files) {
    const io::File file(path, io::File::Mode::read);
    const std::int64_t records = file.size() / version.record_bytes();
    for (std::int64_t i = 0; i < records; ++i) {
      std::uint8_t label = 0;  // the last one: the fine label
      file.read_at(i * version.record_bytes() + version.label_bytes - 1, &label, 1);
      if (label >= version.classes) {
        reading.problem = fmt::format("{}: record {}: label {} is not one of the {} classes of {}",
                                      path, i, label, version.classes, version.name);
        return reading;
      }
      reading.labels.push_back(label);
    }
  }
  return reading;
}

/// Returns the reading of the first version whose records and labels fit all files, and sets
/// `warning` if another one fits too. Throws InputError.
CifarReading read_cifar(const std::vector<std::string>& files, std::string& warning) {
  std::vector<CifarReading> readings;
  for (const CifarVersion& version : cifar_versions)
    if (has_records(version, files)) readings.push_back(read_labels_as(version, files));
  validate(!readings.empty(),
           "{}{}: no file of records of {} bytes (CIFAR-10) or {} bytes (CIFAR-100); expected the "
           "files of the binary version, as data_batch_1.bin or train.bin",
           files.front(), files.size() == 1 ? "" : " and the other files",
           cifar_versions[0].record_bytes(), cifar_versions[1].record_bytes());
  std::string problems;
  std::vector<CifarReading> fitting;
  for (CifarReading& reading : readings) {
    if (!reading.problem.empty())
      problems += (problems.empty() ? "" : "; ") + reading.problem;
    else
      fitting.push_back(std::move(reading));
  }
  validate(!fitting.empty(), "{}", problems);
  if (fitting.size() > 1)
    warning =
        fmt::format("lengths and labels of the source fit {} and {}; it is read as {}",
                    fitting[0].version->name, fitting[1].version->name, fitting[0].version->name);
  return std::move(fitting[0]);
}

/// Reads the classes of `samples` images: integers [samples] or [samples, 1].
std::vector<std::int32_t> read_npy_labels(const std::string& path, std::int64_t samples,
                                          const std::string& images) {
  const io::File file(path, io::File::Mode::read);
  const NpyHeader header = read_npy_header(file);
  bool is_signed = false;
  const std::int64_t bytes = header.integer_bytes(is_signed);
  validate(bytes > 0, "{}: has type '{}'; labels are little-endian integers, as numpy.int64", path,
           printable(header.type));
  validate(!header.shape.empty() && header.shape[0] == samples && header.elements() == samples,
           "{}: its shape is [{}]; labels are one number for each of the {} images of {}", path,
           fmt::join(header.shape, ", "), samples, images);
  check_npy_size(file, header, bytes);
  std::vector<std::int32_t> labels(static_cast<std::size_t>(samples));
  std::vector<std::byte> stored(static_cast<std::size_t>(samples * bytes));
  file.read_at(header.begin, stored.data(), std::ssize(stored));
  const auto width = static_cast<std::size_t>(bytes);
  const int unused_bits = 64 - 8 * static_cast<int>(bytes);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    std::uint64_t bits = 0;  // little-endian, as the file
    std::memcpy(&bits, stored.data() + i * width, width);
    auto label = static_cast<std::int64_t>(bits << unused_bits);
    label = is_signed ? label >> unused_bits : static_cast<std::int64_t>(bits);
    validate(label >= 0 && label <= max_label,
             "{}: label {} of sample {} is no class; classes are 0 to {}", path, label, i,
             max_label);
    labels[i] = static_cast<std::int32_t>(label);
  }
  return labels;
}

}  // namespace

ImageCatalog catalog_idx(const std::vector<std::string>& sources) {
  validate(sources.size() == 2, "shard idx: {} files given, but two are needed: IMAGES LABELS",
           sources.size());
  const std::string &images_path = sources[0], &labels_path = sources[1];
  IdxReader images(images_path, IdxReader::Items::images);
  IdxReader labels(labels_path, IdxReader::Items::labels);
  const std::vector<std::int64_t>& shape = images.shape();
  validate(shape[0] == labels.shape()[0],
           "{} has {} images, but {} has {} labels: they do not belong together", images_path,
           shape[0], labels_path, labels.shape()[0]);
  validate(!images.compressed() || may_list(shape[0] * catalog_entry_bytes, images.file_bytes()),
           "{}: its header says {} images, but the compressed file has only {} bytes; if that is "
           "right, decompress it first (gunzip)",
           images_path, shape[0], images.file_bytes());
  ImageCatalog catalog;
  catalog.coding = ImageCoding::interleaved;
  catalog.height = shape[1];
  catalog.width = shape[2];
  catalog.channels = shape.size() > 3 ? shape[3] : 1;
  catalog.files = {images_path};
  catalog.class_source = "labels";
  std::vector<std::byte> stored(static_cast<std::size_t>(shape[0]));
  labels.read(stored);
  labels.finish();
  if (images.compressed()) catalog.compressed = {0};
  // Compressed images are read to the end, which shows damage.
  images.skip(images.compressed() ? shape[0] : 0);
  if (images.compressed()) images.finish();
  catalog.entries.resize(stored.size());
  for (std::size_t i = 0; i < stored.size(); ++i) {
    CatalogEntry& entry = catalog.entries[i];
    entry.name = fmt::format("sample {}", i);
    entry.label = std::to_integer<std::int32_t>(stored[i]);
    entry.bytes = images.item_bytes();
    entry.offset = images.header_bytes() + static_cast<std::int64_t>(i) * entry.bytes;
  }
  FileIdentity identity;
  identity.add(images_path);
  identity.add(labels_path);
  catalog.identity = identity.value();
  return catalog;
}

ImageCatalog catalog_npy(const std::vector<std::string>& sources) {
  validate(sources.size() == 2, "shard npy: {} files given, but two are needed: IMAGES LABELS",
           sources.size());
  const std::string &images_path = sources[0], &labels_path = sources[1];
  const io::File images(images_path, io::File::Mode::read);
  const NpyHeader header = read_npy_header(images);
  const std::vector<std::int64_t>& shape = header.shape;
  validate(
      header.type == "|u1" || header.type == "<u1" || header.type == "u1",
      "{}: has type '{}'; `shard npy` takes images of numpy.uint8. Arrays of other numbers are "
      "read from an HDF5 file, with [data.hdf5] in the deck: h5py.File(\"x.h5\", "
      "\"w\")[\"x\"] = array",
      images_path, printable(header.type));
  validate(
      (shape.size() == 3 || shape.size() == 4) && !header.is_fortran_order,
      "{}: its shape is [{}]{}; images are [samples, height, width] or [samples, height, width, "
      "channels] in the order of C, as numpy.ascontiguousarray returns",
      images_path, fmt::join(shape, ", "),
      header.is_fortran_order ? " in the order of Fortran" : "");
  const bool is_planar = looks_channels_first(shape);
  ImageCatalog catalog;
  catalog.coding = is_planar ? ImageCoding::planar : ImageCoding::interleaved;
  catalog.height = shape[is_planar ? 2 : 1];
  catalog.width = shape[is_planar ? 3 : 2];
  catalog.channels = shape.size() == 3 ? 1 : shape[is_planar ? 1 : 3];
  for (std::size_t i = 0; i < shape.size(); ++i)
    validate(shape[i] >= 1 && (i == 0 || shape[i] <= max_extent),
             "{}: its shape is [{}]; there must be samples, and sides of 1 to {} pixels",
             images_path, fmt::join(shape, ", "), max_extent);
  validate(catalog.channels <= max_channels, "{}: has {} channels; 1 to {} can be", images_path,
           catalog.channels, max_channels);
  check_npy_size(images, header, 1);
  if (is_planar)
    catalog.source_warning = fmt::format(
        "{}: its shape [{}] is read as [samples, channels, height, width], the order of PyTorch",
        images_path, fmt::join(shape, ", "));
  const std::vector<std::int32_t> labels = read_npy_labels(labels_path, shape[0], images_path);
  catalog.files = {images_path};
  catalog.class_source = "labels";
  catalog.entries.resize(labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    CatalogEntry& entry = catalog.entries[i];
    entry.name = fmt::format("sample {}", i);
    entry.label = labels[i];
    entry.bytes = catalog.height * catalog.width * catalog.channels;
    entry.offset = header.begin + static_cast<std::int64_t>(i) * entry.bytes;
  }
  FileIdentity identity;
  identity.add(images_path);
  identity.add(labels_path);
  catalog.identity = identity.value();
  return catalog;
}

ImageCatalog catalog_cifar(const std::vector<std::string>& sources) {
  ImageCatalog catalog;
  const CifarReading reading = read_cifar(sources, catalog.class_warning);
  const CifarVersion& version = *reading.version;
  catalog.coding = ImageCoding::planar;
  catalog.height = catalog.width = CifarVersion::side;
  catalog.channels = CifarVersion::channels;
  catalog.files = sources;
  catalog.class_source = version.name;
  FileIdentity identity;
  for (std::size_t f = 0; f < sources.size(); ++f) {
    const std::int64_t records = identity.add(sources[f]) / version.record_bytes();
    for (std::int64_t i = 0; i < records; ++i) {
      const std::int64_t begin = i * version.record_bytes();
      CatalogEntry& entry = catalog.entries.emplace_back();
      entry.name = fmt::format("record {}", i);
      entry.file = static_cast<std::uint32_t>(f);
      entry.offset = begin + version.label_bytes;
      entry.bytes = CifarVersion::pixel_bytes;
      entry.label = reading.labels[catalog.entries.size() - 1];
    }
  }
  catalog.identity = identity.value();
  return catalog;
}

}  // namespace trireme::data
