// SPDX-License-Identifier: Apache-2.0
//
// Shards of encoded images: JPEG and PNG files one after the other in /bytes, with /offsets.
//
// Labels and offsets are read at the start, by the rank that indexes the folder. The files are read
// by the reader threads of the loader, with one positioned read each, and decoded by them
// (Dataset::read). The bytes are untrusted: the decoders check them again at every reading.
#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "data/labels/image_labels.hpp"
#include "shard_checksums.hpp"
#include "shard_header.hpp"
#include "shard_kind.hpp"
#include "stored_list.hpp"
#include "stored_rows.hpp"
#include "trireme/base/check.hpp"
#include "trireme/data/images/image.hpp"

namespace trireme::data {
namespace {

// Images are decoded to RGB.
constexpr std::int64_t rgb = 3;
// Compressed /bytes may be so many times as large in memory as in the file, or at least so large.
constexpr std::int64_t max_ratio = 16, always_allowed_bytes = std::int64_t{64} << 20;

void describe_encoded_images(const io::Hdf5Reader& reader, ShardDescription& shard) {
  const io::Hdf5Index& file = reader.index();
  const io::StoredDataset& bytes = file.dataset("bytes");
  validate(bytes.kind == io::StoredDataset::Kind::integer && bytes.element_bytes == 1 &&
               !bytes.is_signed && bytes.shape.size() == 1,
           "{}: must be uint8 with one dimension: files one after the other", bytes.location);
  // JPEG and PNG files hardly become smaller.
  validate(bytes.bytes() <= std::max(always_allowed_bytes, max_ratio * bytes.stored_bytes()),
           "{}: claims {} bytes in {} compressed ones, which JPEG and PNG files cannot be: it is "
           "damaged or malicious",
           bytes.location, bytes.bytes(), bytes.stored_bytes());
  check_list(file.dataset("offsets"), bytes);
  shard.samples = length_of(file, "offsets") - 1;
  validate(shard.samples >= 0, "{}: is empty; it has one number more than there are samples",
           file.dataset("offsets").location);
  shard.channels = rgb;
  shard.storage = storage_of(bytes);
}

/// Reads the offsets of the files and checks that each file has 1 byte to max_encoded_bytes.
std::vector<std::uint64_t> read_offsets(const io::Hdf5Reader& reader,
                                        const ShardDescription& shard) {
  const io::StoredDataset& stored = reader.index().dataset("offsets");
  validate(stored.kind == io::StoredDataset::Kind::integer,
           "{}: offsets must be whole numbers (uint64)", stored.location);
  std::vector<std::uint64_t> offsets(static_cast<std::size_t>(shard.samples) + 1);
  reader.read(stored, io::Hdf5Number::uint64, offsets.data());
  const auto end = static_cast<std::uint64_t>(reader.index().dataset("bytes").shape[0]);
  validate(offsets.front() == 0 && offsets.back() == end,
           "{}: goes from {} to {}; the offsets of files in {} bytes go from 0 to {}",
           stored.location, offsets.front(), offsets.back(), end, end);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    validate(offsets[i] < offsets[i + 1] &&
                 offsets[i + 1] - offsets[i] <= static_cast<std::uint64_t>(max_encoded_bytes),
             "{}: sample {} is from byte {} to {}; a file has 1 to {} bytes", stored.location, i,
             offsets[i], offsets[i + 1], max_encoded_bytes);
  }
  return offsets;
}

ShardIndex index_encoded_images(const io::Hdf5Reader& reader, const ShardDescription& shard,
                                const SampleForm&) {
  return {reader.path(),
          reader.stamp(),
          reader.index().dataset("bytes"),
          read_labels(reader, shard),
          read_offsets(reader, shard),
          {}};
}

void combine_encoded_images(const FolderShards& folder, DatasetInfo& info) {
  info.channels = rgb;
  combine_classes(folder, info);
}

class EncodedImageSource : public SampleSource {
 public:
  EncodedImageSource(ShardIndex shard, const ShardResources& resources)
      : labels_(std::move(shard.labels)),
        offsets_(std::move(shard.offsets)),
        info_{DType::uint8, {0, 0, rgb}, {}},
        files_(std::move(shard.path), shard.stamp, std::move(shard.rows), resources.files,
               resources.cache) {}

  const SampleInfo& info() const override { return info_; }
  std::int64_t size() const override { return std::ssize(labels_); }
  std::int64_t sample_bytes(std::int64_t index) const override {
    return offset_of(index + 1) - offset_of(index);
  }

  void read(std::int64_t index, std::byte* input, void* labels) const override {
    if (input != nullptr) files_.read(offset_of(index), sample_bytes(index), input);
    if (labels != nullptr)
      *static_cast<std::int32_t*>(labels) = labels_[static_cast<std::size_t>(index)];
  }

  void read_ahead(std::int64_t first, std::int64_t count) const override {
    files_.read_ahead(offset_of(first), offset_of(first + count) - offset_of(first));
  }

  /// Checksums show damage, so then only headers are read. Without them every file is decoded.
  std::string verify(const ShardChecksums* checksums, BlockRange blocks) const override {
    std::vector<std::byte> file;
    std::string wrong;
    const auto hash_rows = [&](std::int64_t begin, std::int64_t count, io::Xxh3& hash) {
      for (std::int64_t i = begin; i < begin + count; ++i) {
        file.resize(static_cast<std::size_t>(sample_bytes(i)));
        files_.read(offset_of(i), sample_bytes(i), file.data());
        hash.update(file.data(), file.size());
        if (wrong.empty()) wrong = error_of(i, file, checksums == nullptr);
        validate(checksums != nullptr || wrong.empty(), "{}", wrong);
      }
      hash.update(labels_.data() + begin, static_cast<std::size_t>(count) * sizeof labels_[0]);
    };
    const std::string difference =
        compare_blocks(checksums, blocks, size(), {"/bytes and /labels", "samples"}, hash_rows);
    // A file in a damaged block is damaged, too.
    validate(!difference.empty() || wrong.empty(), "{}", wrong);
    return difference;
  }

 private:
  std::int64_t offset_of(std::int64_t index) const {
    return static_cast<std::int64_t>(offsets_[static_cast<std::size_t>(index)]);
  }

  /// Returns "" if a file, or at least its header, is that of an image that can be decoded.
  std::string error_of(std::int64_t index, std::span<const std::byte> file, bool decodes) const {
    try {
      if (decodes)
        decode_image(file);
      else
        read_image_extents(file);
      return "";
    } catch (const InputError& error) {
      return fmt::format(
          "{}: sample {} {}; make the shard again (shard --on-error skip leaves out images that "
          "cannot be decoded)",
          files_.path(), index, error.what());
    }
  }

  std::vector<std::int32_t> labels_;
  std::vector<std::uint64_t> offsets_;
  SampleInfo info_;
  StoredRows files_;
};

std::unique_ptr<SampleSource> open_encoded_images(ShardIndex shard, const DatasetInfo&,
                                                  const SampleForm&,
                                                  const ShardResources& resources) {
  return std::make_unique<EncodedImageSource>(std::move(shard), resources);
}

}  // namespace

const ShardKind encoded_image_shard_kind{
    DatasetKind::encoded_images, "encoded-images",     "bytes",
    describe_encoded_images,     index_encoded_images, combine_encoded_images,
    open_encoded_images};

}  // namespace trireme::data
