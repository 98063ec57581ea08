// SPDX-License-Identifier: Apache-2.0
//
// Shards of images: header, labels, and samples as they are stored.
//
// Labels are small and are read at the start, by the rank that indexes the folder. Images are read
// by the reader threads of the loader, with one positioned read each. Values of floating-point
// images must be finite; every read checks it. Shards with targets of another kind are read as
// arrays (array_shard.hpp).
#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "data/arrays/array_index.hpp"
#include "data/arrays/array_shard.hpp"
#include "data/arrays/array_source.hpp"
#include "data/finite_values.hpp"
#include "data/labels/image_labels.hpp"
#include "data/sources/channel_order.hpp"
#include "shard_checksums.hpp"
#include "shard_header.hpp"
#include "shard_kind.hpp"
#include "shard_limits.hpp"
#include "stored_rows.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::data {
namespace {

/// Returns the type of the pixels of stored images. Throws InputError for other types.
DType pixel_type_of(const io::StoredDataset& stored) {
  using Kind = io::StoredDataset::Kind;
  if (stored.kind == Kind::integer && !stored.is_signed && stored.element_bytes <= 2)
    return stored.element_bytes == 1 ? DType::uint8 : DType::uint16;
  if (stored.kind == Kind::real && stored.element_bytes <= 4)
    return stored.element_bytes == 2 ? DType::float16 : DType::float32;
  const char* const found = stored.kind == Kind::real      ? "real numbers"
                            : stored.kind != Kind::integer ? "no numbers"
                            : stored.is_signed             ? "signed integers"
                                                           : "unsigned integers";
  throw InputError(fmt::format(
      "{}: contains {}{}; images are uint8, uint16, float16 or float32 [samples, height, width, "
      "channels]; write them with another dtype",
      stored.location, found,
      stored.is_number() ? fmt::format(" of {} bits", 8 * stored.element_bytes) : ""));
}

/// Throws InputError if images have another order of extents: the attribute `layout`, of the
/// dataset or of the root, says so, or it is missing and the extents do.
void check_layout(const io::Hdf5Index& file, const io::StoredDataset& stored) {
  constexpr const char* known = "hwc";
  for (const char* object : {"images", "/"}) {
    if (!file.has_attribute(object, "layout")) continue;
    const std::string layout = file.attribute_string(object, "layout");
    validate(layout == known,
             "{}: the attribute layout = \"{}\" is unknown; images are [samples, height, width, "
             "channels], which is \"{}\"",
             stored.location, printable(layout), known);
    return;
  }
  const std::string problem = channels_first_problem(stored.shape);
  validate(problem.empty(),
           "{}: {}; if their order is right, say so: file[\"images\"].attrs[\"layout\"] = \"{}\"",
           stored.location, problem, known);
}

void describe_images(const io::Hdf5Reader& reader, ShardDescription& shard) {
  const io::StoredDataset& stored = reader.index().dataset("images");
  shard.pixel_type = pixel_type_of(stored);
  validate(stored.shape.size() == 4,
           "{}: has {} dimensions [{}]; images are [samples, height, width, channels] (gray ones: "
           "channels = 1)",
           stored.location, stored.shape.size(), fmt::join(stored.shape, ", "));
  for (int i = 1; i < 4; ++i) {
    validate(stored.shape[i] >= 1 && stored.shape[i] <= max_extent,
             "{}: extents [{}] are invalid for images", stored.location,
             fmt::join(stored.shape, ", "));
  }
  check_layout(reader.index(), stored);
  shard.samples = stored.shape[0];
  shard.height = stored.shape[1];
  shard.width = stored.shape[2];
  shard.channels = stored.shape[3];
  shard.storage = storage_of(stored);
  shard.target = read_stored_target(reader, shard.samples);
  if (reader.index().has("table"))
    shard.preparation = preparation_of(reader.index().strings("table"));
}

ShardIndex index_images(const io::Hdf5Reader& reader, const ShardDescription& shard,
                        const SampleForm& form) {
  if (shard.target.is_one_class())
    return {reader.path(),
            reader.stamp(),
            reader.index().dataset("images"),
            read_labels(reader, shard),
            {},
            {}};
  check_ignore(reader.index(), form);
  ShardIndex index = index_array_file(reader, form_of_shard(form, shard.target)).index;
  // The attributes of packed values are not followed in images of shards.
  for (ArrayVariable& images : index.inputs) images = {.rows = std::move(images.rows)};
  return index;
}

/// Compares the extents and classes of image shards.
void combine_images(const FolderShards& folder, DatasetInfo& info) {
  const auto path = [&](std::size_t i) { return folder.shards[i].index.path; };
  const ShardDescription& first = folder.shards.front().header;
  info.height = first.height;
  info.width = first.width;
  info.channels = first.channels;
  info.pixel_type = first.pixel_type;
  validate(first.channels <= max_channels,
           "{}: images of {} channels are not supported; 1 to {} are", path(0), first.channels,
           max_channels);
  for (std::size_t i = 0; i < folder.shards.size(); ++i) {
    const ShardDescription& header = folder.shards[i].header;
    validate(header.height == info.height && header.width == info.width &&
                 header.channels == info.channels,
             "{}: images of {} x {} x {} among images of {} x {} x {} ({}): all shards of a "
             "folder must have the same size",
             path(i), header.height, header.width, header.channels, info.height, info.width,
             info.channels, path(0));
    validate(header.pixel_type == info.pixel_type,
             "{}: images of {} among images of {} ({}): all shards of a folder must have the same "
             "type",
             path(i), to_string(header.pixel_type), to_string(info.pixel_type), path(0));
  }
  combine_classes(folder, info);
}

class ImageSource : public SampleSource {
 public:
  ImageSource(ShardIndex shard, const ShardResources& resources)
      : labels_(std::move(shard.labels)),
        info_{pixel_type_of(shard.rows),
              {shard.rows.shape[1], shard.rows.shape[2], shard.rows.shape[3]},
              {}},
        images_(std::move(shard.path), shard.stamp, std::move(shard.rows), resources.files,
                resources.cache) {}

  const SampleInfo& info() const override { return info_; }
  std::int64_t size() const override { return std::ssize(labels_); }
  std::int64_t sample_bytes(std::int64_t) const override { return info_.input_bytes(); }

  void read(std::int64_t index, std::byte* input, void* labels) const override {
    if (input != nullptr) {
      images_.read(index, 1, input);
      check_finite(index, input);
    }
    if (labels != nullptr)
      *static_cast<std::int32_t*>(labels) = labels_[static_cast<std::size_t>(index)];
  }

  void read_ahead(std::int64_t first, std::int64_t count) const override {
    images_.read_ahead(first, count);
  }

  std::string verify(const ShardChecksums* checksums, BlockRange blocks) const override {
    std::vector<std::byte> piece;
    std::string wrong;
    const auto hash_rows = [&](std::int64_t begin, std::int64_t count, io::Xxh3& hash) {
      const std::int64_t step =
          std::max<std::int64_t>(1, verified_piece_bytes / info_.input_bytes());
      for (std::int64_t first = begin; first < begin + count; first += step) {
        const std::int64_t part = std::min(step, begin + count - first);
        piece.resize(static_cast<std::size_t>(part * info_.input_bytes()));
        images_.read(first, part, piece.data());
        hash.update(piece.data(), piece.size());
        for (std::int64_t i = 0; i < part; ++i)
          if (wrong.empty())
            wrong = finite_error(first + i, piece.data() + i * info_.input_bytes());
      }
      hash.update(labels_.data() + begin, static_cast<std::size_t>(count) * sizeof labels_[0]);
    };
    const std::string difference =
        compare_blocks(checksums, blocks, size(), {"/images and /labels", "samples"}, hash_rows);
    // A value in a damaged block is damaged, too.
    validate(!difference.empty() || wrong.empty(), "{}", wrong);
    return difference;
  }

 private:
  void check_finite(std::int64_t index, const std::byte* image) const {
    const std::string wrong = finite_error(index, image);
    validate(wrong.empty(), "{}", wrong);
  }

  /// Returns "" if all values of an image are finite.
  std::string finite_error(std::int64_t index, const std::byte* image) const {
    const std::int64_t at = find_not_finite(info_.dtype, image, info_.input.elements());
    if (at < 0) return "";
    const std::int64_t channels = info_.input[2], pixel = at / channels, width = info_.input[1];
    return fmt::format(
        "{}: sample {} has a value that is infinite or NaN (row {}, column {}, channel {}); "
        "replace such values before the shard is made",
        images_.path(), index, pixel / width, pixel % width, at % channels);
  }

  std::vector<std::int32_t> labels_;
  SampleInfo info_;
  StoredRows images_;
};

std::unique_ptr<SampleSource> open_images(ShardIndex shard, const DatasetInfo& info,
                                          const SampleForm& form, const ShardResources& resources) {
  if (!shard.inputs.empty())
    return open_arrays(std::move(shard), form_of_shard(form, {info.target_kind, info.target}),
                       info.pixel_type, resources, ArrayChecksums::stored);
  return std::make_unique<ImageSource>(std::move(shard), resources);
}

}  // namespace

const ShardKind image_shard_kind{DatasetKind::images, "images",       "images",   describe_images,
                                 index_images,        combine_images, open_images};

}  // namespace trireme::data
