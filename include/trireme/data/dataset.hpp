// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/data/arrays/array_form.hpp"
#include "trireme/data/images/image_form.hpp"
#include "trireme/data/sample_source.hpp"
#include "trireme/data/targets/target_options.hpp"

namespace trireme::io {
class FilePool;
}

namespace trireme::data {

/// Content of a shard: images as arrays, encoded images (JPEG or PNG), or tokens.
enum class DatasetKind : std::uint8_t { images, encoded_images, tokens };

/// Description of a folder of shards. It comes only from the shards' headers; every extent is
/// checked against the file's size before use.
struct DatasetInfo {
  DatasetKind kind = DatasetKind::images;
  std::int64_t samples = 0;
  /// Images, as the model takes them. Encoded images in their stored form have height and width 0.
  std::int64_t height = 0, width = 0, channels = 0;
  DType pixel_type = DType::uint8;   ///< images; see SampleInfo::dtype
  std::vector<std::string> classes;  ///< images; may be empty
  /// Images: the outputs of a model of them. Classes: size of `classes`, or 1 + the largest label
  /// of all shards.
  AnswerExtents target;
  /// Images from files of other programs: the keys that change their numbers, as "key = value,
  /// ...". Empty: not known.
  std::string preparation;
  AnswerKind target_kind = AnswerKind::one_class;
  /// Returns whether the targets are numbers, and no classes.
  bool has_float_targets() const { return answer_of(target_kind).has_float_targets; }
  std::int64_t context = 0;  ///< tokens: length of a sample, as requested
  /// Tokens are 0 .. vocabulary - 1. If no shard has the attribute: the range of the stored type.
  std::int64_t vocabulary = 0;
  /// Totals over all shards; documents: 0 if the shards do not list them.
  std::int64_t tokens = 0, documents = 0;
  std::string tokenizer;  ///< "bytes" or "sentencepiece"; empty if unknown
  /// Digest of the SentencePiece model beside the shards; empty: there is none.
  std::string tokenizer_digest;
  std::int64_t end_of_text = -1;         ///< token after every document; -1: none is named
  std::vector<std::string> shard_names;  ///< file names in order
  std::vector<std::int64_t> shard_samples;
  /// Images: the most samples that have to be unpacked to read one; 1 without compression.
  std::int64_t chunk_samples = 1;
  /// XXH3 of shard names and sample counts. A restart must find the same value.
  std::uint64_t identity = 0;
};

/// Returns a hash of DatasetInfo::preparation; 0 if it is not known.
std::uint64_t preparation_hash(const DatasetInfo& info);

/// Returns outputs of a model, or targets, as in "3 classes for each of 6 x 8 pixels".
std::string outputs_in_words(const AnswerExtents& outputs, const Answer& answer);

struct DatasetIndex;

/// The targets that are read.
enum class TargetUse : std::uint8_t {
  as_said,   ///< those that SampleForm::target says
  exact,     ///< the same; numbers are float64, in units of the data
  none,      ///< inputs alone; of shards with labels these are read, too
  of_shards  ///< those that shards have, to describe them
};

/// How the stored samples of a set become samples of the model.
struct SampleForm {
  SampleForm() = default;
  SampleForm(std::int64_t the_context, const ImageForm& the_image = {},
             const ArrayForm& the_arrays = {}, const TargetOptions& the_target = {})
      : context(the_context), image(the_image), arrays(the_arrays), target(the_target) {}
  /// Tokens a sample; ignored for images. 0: a folder of tokens is only described.
  std::int64_t context = 0;
  ImageForm image;   ///< images; ignored for tokens
  ArrayForm arrays;  ///< used for files of other programs, which hold images
  TargetOptions target;
  TargetUse target_use = TargetUse::as_said;
};

/// Time that a thread spent with samples, in seconds.
struct ReadTimes {
  double read = 0;     ///< reading them from files, or from the page cache
  double decode = 0;   ///< decoding JPEG and PNG
  double augment = 0;  ///< crops, scaling and colors
  double colors = 0;   ///< the part of `augment` in which colors were changed
  double verify = 0;   ///< comparing checksums (data.verify)
  ReadTimes& operator+=(const ReadTimes& other) {
    read += other.read;
    decode += other.decode;
    augment += other.augment;
    colors += other.colors;
    verify += other.verify;
    return *this;
  }
};

/// Memory and times of one thread that reads samples.
struct ReaderState {
  std::vector<std::byte> stored;   ///< a sample as it is stored
  std::vector<std::byte> scratch;  ///< an image before it is changed
  ReadTimes times;
};

/// A folder of *.h5 shards of one kind, or files of another program, in the order of their names,
/// for random access by sample.
///
/// Reads are thread-safe, and any number of threads may read at once. A shard is opened when it is
/// first read; all datasets of a process together keep up to 1,024 files open. Contiguous HDF5
/// datasets are read with positioned reads, at the speed of the disk. Chunked or compressed ones
/// are decompressed by the reading thread; decompressed rows are cached (512 MiB).
class Dataset {
 public:
  /// Opens no file. A shard of n tokens holds floor((n - 1) / context) samples. Throws InputError
  /// that names the folder if there are no samples.
  explicit Dataset(DatasetIndex index, const SampleForm& form = {});
  /// Indexes the folder first (index_dataset()), so one rank calls this.
  explicit Dataset(const std::string& folder, const SampleForm& form = {});
  ~Dataset();
  Dataset(Dataset&&) noexcept;

  const DatasetInfo& info() const { return info_; }
  /// Returns the form of every sample: input [height, width, channels] or [context], and labels.
  const SampleInfo& sample() const { return sample_; }
  /// Returns the mean bytes of a stored sample.
  std::int64_t stored_bytes() const { return stored_bytes_; }
  /// Copies sample `index` (0 .. samples - 1). The labels have the form of sample(): of an image a
  /// class, a vector or a map; of `context` tokens their successors. Either pointer may be null.
  /// `epoch` decides random crops and colors. Adds to `state.times`. Encoded images in their stored
  /// form cannot be read.
  ///
  /// Throws InputError with shard and position if the file ends too early, an image cannot be
  /// decoded or a token is not below the vocabulary, Failure if the disk fails.
  void read(std::int64_t index, std::byte* input, void* labels, std::int64_t epoch,
            ReaderState& state) const;
  /// Copies a sample as in epoch 0.
  void read(std::int64_t index, std::byte* input, void* labels) const;
  /// Asks the system to read samples into the page cache soon; see SampleSource::read_ahead().
  /// Sorts them, and asks for samples that are close together at once.
  void read_ahead(std::vector<std::int64_t>& samples) const;
  /// Checksum blocks of one shard. The blocks of all shards are numbered in their order.
  struct ChecksumBlocks {
    std::size_t shard = 0;
    BlockRange range;
    std::int64_t number_of_first = 0;  ///< number of the first block of this shard
  };
  /// Returns the blocks with rows of sample `index`. Needs an index with checksums.
  ChecksumBlocks checksum_blocks_of(std::int64_t index) const;
  /// Returns the number of checksum blocks of all shards.
  std::int64_t checksum_blocks() const { return checksum_blocks_; }
  /// Compares one block of a shard with the file. Throws InputError with shard and block if it
  /// differs.
  void compare_block(std::size_t shard, std::int64_t block) const;

 private:
  struct SampleLocation {
    std::size_t shard_index;
    const SampleSource& shard;
    std::int64_t index_in_shard;  // index of the sample in the shard
  };
  SampleLocation locate(std::int64_t index) const;
  /// Reads the image of sample `index`, gives it its form, and writes it to `out`.
  void read_formed_image(const SampleLocation& at, std::int64_t index, std::byte* out,
                         std::int64_t epoch, ReaderState& state) const;

  DatasetInfo info_;
  std::string folder_;
  ImageForm image_form_;
  SampleInfo sample_;
  std::int64_t stored_bytes_ = 1;
  std::vector<ShardChecksums> checksums_;  ///< of each shard
  std::vector<std::int64_t> first_block_;  ///< of each shard: the number of its first block
  std::int64_t checksum_blocks_ = 0;
  std::shared_ptr<io::FilePool> files_;
  std::vector<std::unique_ptr<SampleSource>> shards_;
  std::vector<std::int64_t> first_sample_;
};

}  // namespace trireme::data
