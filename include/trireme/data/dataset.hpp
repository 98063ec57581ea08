#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

enum class DatasetKind : std::uint8_t { images, encoded_images, tokens };

/// What a folder of shards holds, read from their headers alone (every extent is checked against the file's size before use).
struct DatasetInfo {
  DatasetKind kind = DatasetKind::images;
  std::int64_t samples = 0;
  std::int64_t height = 0, width = 0, channels = 0;  ///< images
  std::vector<std::string> classes;                  ///< may be empty
  std::int64_t class_count = 0;                      ///< size of classes, else 1 + the largest label of all shards
  std::vector<std::string> shard_names;              ///< file names in order
  std::vector<std::int64_t> shard_samples;
  std::uint64_t identity = 0;                        ///< XXH3 of shard names and sample counts: may not change at a restart
};

/// A folder of *.h5 shards, read in the order of their names. Contiguous datasets are read with positioned reads at the speed of the disk,
/// by any number of threads at once; chunked or compressed ones go through HDF5 (one lock a process).
class Dataset {
 public:
  /// Throws InputError naming folder, file and dataset.
  explicit Dataset(const std::string& folder);
  ~Dataset();
  Dataset(Dataset&&) noexcept;

  const DatasetInfo& info() const { return info_; }
  std::int64_t sample_bytes() const { return info_.height * info_.width * info_.channels; }
  /// Copies image and label of sample `index` (0 .. samples). Thread-safe. Throws InputError (a read past the end), Failure (the disk).
  void read(std::int64_t index, std::byte* image, std::int32_t* label) const;

 private:
  struct Shard;
  DatasetInfo info_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<std::int64_t> first_sample_;
};

}  // namespace trireme::data
