#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

enum class DatasetKind : std::uint8_t { images, encoded_images, tokens };

/// What a folder of shards holds, read from their headers alone (every extent is checked against
/// the file's size before use).
struct DatasetInfo {
  DatasetKind kind = DatasetKind::images;
  std::int64_t samples = 0;
  std::int64_t height = 0, width = 0, channels = 0;  ///< images
  std::vector<std::string> classes;                  ///< images; may be empty
  std::int64_t class_count =
      0;                     ///< images: size of classes, else 1 + the largest label of all shards
  std::int64_t context = 0;  ///< tokens: of a sample, as asked for
  std::int64_t vocabulary =
      0;  ///< tokens are 0 .. vocabulary - 1; where no shard says so, what their type can hold
  std::int64_t tokens = 0,
               documents = 0;  ///< of all shards; documents: 0 where shards do not name them
  std::string tokenizer;       ///< tokens: "bytes", "sentencepiece"; empty where no shard says so
  std::vector<std::string> shard_names;  ///< file names in order
  std::vector<std::int64_t> shard_samples;
  std::uint64_t identity =
      0;  ///< XXH3 of shard names and sample counts: may not change at a restart
};

/// A folder of *.h5 shards of one kind, read in the order of their names. Contiguous datasets are
/// read with positioned reads at the speed of the disk, by any number of threads at once; chunked
/// or compressed ones go through HDF5 (one lock a process).
class Dataset {
 public:
  /// `context` is the length of a sample of tokens; a folder of images passes over it. A shard of n
  /// tokens holds floor((n - 1) / context) samples; with context = 0 it holds none and the folder
  /// is only described. Throws InputError naming folder, file and dataset.
  explicit Dataset(const std::string& folder, std::int64_t context = 0);
  ~Dataset();
  Dataset(Dataset&&) noexcept;

  const DatasetInfo& info() const { return info_; }
  /// Bytes of one sample's input as a micro-batch holds it: uint8 [height, width, channels] or
  /// int32 [context].
  std::int64_t sample_bytes() const;
  /// Labels of one sample: 1, or `context`.
  std::int64_t sample_labels() const;
  /// Images: copies image and label of sample `index` (0 .. samples). Either may be null.
  /// Thread-safe. Throws InputError (a read past the end), Failure (the disk).
  void read(std::int64_t index, std::byte* image, std::int32_t* label) const;
  /// Tokens: copies the context + 1 ids [i * context, i * context + context] of sample `index`'s
  /// shard; the first `context` of them are the input, the last `context` the labels. Thread-safe.
  /// Throws InputError (also for a token that is not below the vocabulary, naming shard and
  /// position), Failure (the disk).
  void read_tokens(std::int64_t index, std::int32_t* ids) const;

 private:
  struct Shard;
  struct SampleLocation {
    const Shard& shard;
    std::int64_t index_in_shard;  // the sample's number in it
  };
  void collect_image_info(const std::string& folder, const std::vector<std::string>& paths);
  void collect_token_info(const std::vector<std::string>& paths, std::int64_t context);
  SampleLocation locate(std::int64_t index) const;

  DatasetInfo info_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<std::int64_t> first_sample_;
};

}  // namespace trireme::data
