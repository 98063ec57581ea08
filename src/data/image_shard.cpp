// Shards of images: header, labels, and samples as they are stored.
//
// Labels are small and are read at the start, by the rank that indexes the folder. Images are read
// by the reader threads of the loader, with one positioned read each.
#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "image_labels.hpp"
#include "shard_checksums.hpp"
#include "shard_header.hpp"
#include "shard_kind.hpp"
#include "shard_limits.hpp"
#include "stored_rows.hpp"
#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

void describe_images(const io::Hdf5Reader& reader, ShardDescription& shard) {
  const io::StoredDataset& stored = reader.index().dataset("images");
  validate(stored.kind == io::StoredDataset::Kind::integer && stored.element_bytes == 1 &&
               !stored.is_signed,
           "{}: is not uint8; images are uint8 [samples, height, width, channels]",
           stored.location);
  validate(stored.shape.size() == 4,
           "{}: has {} dimensions [{}]; images are [samples, height, width, channels] (gray ones: "
           "channels = 1)",
           stored.location, stored.shape.size(), fmt::join(stored.shape, ", "));
  for (int i = 1; i < 4; ++i) {
    validate(stored.shape[i] >= 1 && stored.shape[i] <= max_extent,
             "{}: extents [{}] are invalid for images", stored.location,
             fmt::join(stored.shape, ", "));
  }
  shard.samples = stored.shape[0];
  shard.height = stored.shape[1];
  shard.width = stored.shape[2];
  shard.channels = stored.shape[3];
  shard.storage = storage_of(stored);
}

ShardIndex index_images(const io::Hdf5Reader& reader, const ShardDescription& shard) {
  return {reader.path(),
          reader.stamp(),
          reader.index().dataset("images"),
          read_labels(reader, shard),
          {},
          {}};
}

/// Compares the extents and classes of image shards.
void combine_images(const FolderShards& folder, DatasetInfo& info) {
  const auto path = [&](std::size_t i) { return folder.shards[i].index.path; };
  const ShardDescription& first = folder.shards.front().header;
  info.height = first.height;
  info.width = first.width;
  info.channels = first.channels;
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
  }
  combine_classes(folder, info);
}

class ImageSource : public SampleSource {
 public:
  ImageSource(ShardIndex shard, const ShardResources& resources)
      : labels_(std::move(shard.labels)),
        info_{DType::uint8, {shard.rows.shape[1], shard.rows.shape[2], shard.rows.shape[3]}, {}},
        images_(std::move(shard.path), shard.stamp, std::move(shard.rows), resources.files,
                resources.cache) {}

  const SampleInfo& info() const override { return info_; }
  std::int64_t size() const override { return std::ssize(labels_); }
  std::int64_t sample_bytes(std::int64_t) const override { return info_.input_bytes(); }

  void read(std::int64_t index, std::byte* input, std::int32_t* label) const override {
    if (input != nullptr) images_.read(index, 1, input);
    if (label != nullptr) *label = labels_[static_cast<std::size_t>(index)];
  }

  void read_ahead(std::int64_t first, std::int64_t count) const override {
    images_.read_ahead(first, count);
  }

  std::string verify(const ShardChecksums* checksums, BlockRange blocks) const override {
    std::vector<std::byte> piece;
    const auto hash_rows = [&](std::int64_t begin, std::int64_t count, io::Xxh3& hash) {
      const std::int64_t step =
          std::max<std::int64_t>(1, verified_piece_bytes / info_.input_bytes());
      for (std::int64_t first = begin; first < begin + count; first += step) {
        const std::int64_t part = std::min(step, begin + count - first);
        piece.resize(static_cast<std::size_t>(part * info_.input_bytes()));
        images_.read(first, part, piece.data());
        hash.update(piece.data(), piece.size());
      }
      hash.update(labels_.data() + begin, static_cast<std::size_t>(count) * sizeof labels_[0]);
    };
    return compare_blocks(checksums, blocks, size(), {"/images and /labels", "samples"}, hash_rows);
  }

 private:
  std::vector<std::int32_t> labels_;
  SampleInfo info_;
  StoredRows images_;
};

std::unique_ptr<SampleSource> open_images(ShardIndex shard, const DatasetInfo&, std::int64_t,
                                          const ShardResources& resources) {
  return std::make_unique<ImageSource>(std::move(shard), resources);
}

}  // namespace

const ShardKind image_shard_kind{DatasetKind::images, "images",       "images",   describe_images,
                                 index_images,        combine_images, open_images};

}  // namespace trireme::data
