// SPDX-License-Identifier: Apache-2.0
//
// Writes shards of images, of encoded images and of tokens.
//
// write_shard() holds the order of events for all kinds:
// 1. Size the user block for the seal, check the free space of the disk.
// 2. Create the file under a temporary name, with the common attributes.
// 3. Let the caller write datasets and checksums, then flush the file to the disk.
// 4. Read it back: compare the samples with the checksums of memory, hash every byte, seal it.
// 5. Rename it. After an error the temporary file is removed.
// `trireme shard` and tests call the functions of shard_writer.hpp.
#include "trireme/data/shards/shard_writer.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <type_traits>

#include <unistd.h>

#include "shard_limits.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/io/hdf5/hdf5.hpp"
#include "trireme/io/seal.hpp"
#include "verify_samples.hpp"

namespace trireme::data {
namespace {

static_assert(std::endian::native == std::endian::little,
              "numbers are hashed as they lie in memory");

// Large datasets begin on a page, so that direct reads are possible.
constexpr std::int64_t page_bytes = 4096;
// Generous upper bound for HDF5's metadata and the padding of datasets. It only sizes the user
// block and the free space.
constexpr std::int64_t metadata_bytes = 1 << 20;

/// Compares a closed shard with the checksums of what was written. Throws Failure.
void check_read_back(const std::string& path) {
  const io::Hdf5Reader reader(io::index_own_hdf5(path));
  const std::string difference = verify_samples(reader).value_or("");
  ensure(difference.empty(), "{}: {}: the disk or the file system lost data", path, difference);
}

/// Creates a shard, calls `fill` to write its content, seals it, and renames it once it is
/// complete. `max_content_bytes`: upper bound of the bytes of all datasets. Returns the bytes of
/// the file. Throws Failure if the disk is full or fails.
std::int64_t write_shard(const std::string& path, const std::string& kind,
                         std::int64_t max_content_bytes,
                         const std::function<void(io::Hdf5File&)>& fill) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const std::int64_t max_rest_bytes = max_content_bytes + metadata_bytes;
  // HDF5 requires a user block of at least the alignment.
  const std::int64_t user_block = std::max(page_bytes, io::user_block_bytes(max_rest_bytes));
  const std::int64_t needed = user_block + max_rest_bytes,
                     available = io::free_bytes(folder.empty() ? "." : folder.string());
  ensure(available >= needed, "{}: needs {}, but the disk has {} free", path, format_bytes(needed),
         format_bytes(available));
  // Another rank of a killed command may still write the same shard: the names differ.
  io::StagedFile staged(path, fmt::format("{}{}", io::StagedFile::default_suffix, ::getpid()));
  const std::string& temporary = staged.temporary();
  io::Hdf5File file =
      io::Hdf5File::create(temporary, {.user_block_bytes = user_block, .alignment = page_bytes});
  file.write_attribute("/", "format", std::string("trireme-shard"));
  file.write_attribute("/", "version", std::int64_t{1});
  file.write_attribute("/", "kind", kind);
  fill(file);
  file.close();
  io::sync_file(temporary);
  check_read_back(temporary);
  io::seal_file(temporary, user_block);
  const std::int64_t bytes = io::File(temporary, io::File::Mode::read).size();
  staged.commit();
  return bytes;
}

void write_uint64s(io::Hdf5File& file, const std::string& name,
                   std::span<const std::uint64_t> values) {
  const std::int64_t shape[1] = {static_cast<std::int64_t>(values.size())};
  file.create_dataset(name, io::Hdf5Number::uint64, shape)
      .write_all(io::Hdf5Number::uint64, values.data());
}

void write_checksums(io::Hdf5File& file, std::span<const std::uint64_t> checksums,
                     std::int64_t block) {
  write_uint64s(file, "checksums", checksums);
  file.write_attribute("checksums", "block", block);
}

/// Returns the bytes of /checksums for `samples` in blocks of `block`; 0: no checksums.
std::int64_t checksum_bytes(std::int64_t samples, std::int64_t block) {
  return block > 0 ? (samples + block - 1) / block * std::int64_t{sizeof(std::uint64_t)} : 0;
}

/// Returns the bytes of a list of strings, which have one length in a file.
std::int64_t string_bytes(const std::vector<std::string>& list) {
  std::size_t longest = 1;
  for (const std::string& text : list) longest = std::max(longest, text.size());
  return static_cast<std::int64_t>(longest * list.size());
}

/// Computes the checksum of every `block_bytes` of a stream that arrives in pieces.
class BlockChecksums {
 public:
  explicit BlockChecksums(std::int64_t block_bytes)
      : block_bytes_(static_cast<std::size_t>(block_bytes)) {}
  void add(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::size_t part = std::min(bytes.size(), block_bytes_ - held_);
      hash_.update(bytes.data(), part);
      bytes = bytes.subspan(part);
      held_ += part;
      if (held_ == block_bytes_) close_block();
    }
  }
  const std::vector<std::uint64_t>& finish() {
    if (held_ > 0) close_block();
    return values_;
  }

 private:
  void close_block() {
    values_.push_back(hash_.digest());
    hash_.reset();
    held_ = 0;
  }
  std::size_t block_bytes_, held_ = 0;
  io::Xxh3 hash_;
  std::vector<std::uint64_t> values_;
};

}  // namespace

std::string shard_file_name(std::int64_t index) { return fmt::format("shard_{:05}.h5", index); }

std::int64_t ImageSetOptions::target_bytes() const {
  const bool has_numbers = answer_of(target.kind).has_float_targets;
  const std::int64_t bytes = has_numbers ? target.extents.count * std::int64_t{sizeof(double)}
                                         : std::int64_t{sizeof(std::int32_t)};
  return bytes * target.extents.places();
}

void ImageSetOptions::check_extents(const std::string& where) const {
  validate(
      height <= max_extent && width <= max_extent && channels <= max_channels,
      "{}: samples of {} x {} x {} (height, width, channels) do not fit in shards, whose sides "
      "have up to {} and channels up to {}",
      where, height, width, channels, max_extent, max_channels);
}

namespace {

/// The labels or targets of a shard as they are stored.
struct StoredAnswers {
  const char* dataset;
  io::Hdf5Number number;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  std::int64_t none = -1;  ///< of pixels that do not count
  std::size_t sample_bytes() const { return bytes.size() / static_cast<std::size_t>(shape[0]); }
};

StoredAnswers stored_labels(std::span<const std::int32_t> labels) {
  return {"labels", io::Hdf5Number::int32, {std::ssize(labels)}, std::as_bytes(labels), -1};
}

/// Returns the checksums of the samples in blocks of `block`: XXH3 over the bytes of the block's
/// images, then over those of its labels or targets. Sample i begins at byte `offset_of(i)`.
std::vector<std::uint64_t> image_checksums(std::span<const std::byte> images,
                                           const StoredAnswers& answers,
                                           const std::function<std::size_t(std::size_t)>& offset_of,
                                           std::int64_t block) {
  std::vector<std::uint64_t> checksums;
  io::Xxh3 hash;
  const auto step = static_cast<std::size_t>(block),
             samples = static_cast<std::size_t>(answers.shape[0]);
  for (std::size_t begin = 0; begin < samples; begin += step) {
    const std::size_t count = std::min(step, samples - begin);
    hash.reset();
    hash.update(images.data() + offset_of(begin), offset_of(begin + count) - offset_of(begin));
    hash.update(answers.bytes.data() + begin * answers.sample_bytes(),
                count * answers.sample_bytes());
    checksums.push_back(hash.digest());
  }
  return checksums;
}

/// Throws InputError if a label is no class.
void check_labels(const std::string& path, const ImageSetOptions& options,
                  std::span<const std::int32_t> labels) {
  for (std::size_t i = 0; i < labels.size(); ++i) {
    validate(labels[i] >= 0, "{}: label {} of sample {} is below 0", path, labels[i], i);
    validate(
        options.classes.empty() || static_cast<std::size_t>(labels[i]) < options.classes.size(),
        "{}: label {} of sample {} is past the {} classes", path, labels[i], i,
        options.classes.size());
  }
}

/// Writes a shard of images of a kind. `write_images` writes their datasets, and `further_bytes`
/// bytes beside the images. The rest is common: labels or targets, classes and checksums.
std::int64_t write_answered_shard(const std::string& path, const std::string& kind,
                                  const ImageSetOptions& options, std::span<const std::byte> images,
                                  const StoredAnswers& answers,
                                  const std::function<std::size_t(std::size_t)>& offset_of,
                                  std::int64_t further_bytes,
                                  const std::function<void(io::Hdf5File&)>& write_images) {
  return write_shard(
      path, kind,
      static_cast<std::int64_t>(images.size() + answers.bytes.size()) + further_bytes +
          checksum_bytes(answers.shape[0], options.checksum_block) + string_bytes(options.classes) +
          string_bytes(options.table),
      [&](io::Hdf5File& file) {
        write_images(file);
        file.create_dataset(answers.dataset, answers.number, answers.shape)
            .write_all(answers.number, answers.bytes.data());
        if (!options.classes.empty()) file.write_strings("classes", options.classes);
        if (!options.table.empty()) file.write_strings("table", options.table);
        if (!options.target.is_one_class()) {
          const Answer& answer = answer_of(options.target.kind);
          file.write_attribute(answers.dataset, "kind", std::string(answer.word));
          if (!answer.has_float_targets) {
            file.write_attribute(answers.dataset, "classes", options.target.extents.count);
            file.write_attribute(answers.dataset, "_FillValue", answers.none);
          }
        }
        if (options.checksum_block > 0)
          write_checksums(file, image_checksums(images, answers, offset_of, options.checksum_block),
                          options.checksum_block);
      });
}

io::Hdf5Number number_of(DType type) {
  switch (type) {
    case DType::uint8: return io::Hdf5Number::uint8;
    case DType::uint16: return io::Hdf5Number::uint16;
    case DType::float16: return io::Hdf5Number::float16;
    default: TRIREME_EXPECT(type == DType::float32); return io::Hdf5Number::float32;
  }
}

/// Copies numbers as those of a smaller type; -1 becomes the largest of an unsigned type.
template <class From, class To>
std::vector<std::byte> narrowed(std::span<const std::byte> numbers) {
  std::vector<std::byte> narrow(numbers.size() / sizeof(From) * sizeof(To));
  const auto* from = reinterpret_cast<const From*>(numbers.data());
  std::transform(from, from + numbers.size() / sizeof(From), reinterpret_cast<To*>(narrow.data()),
                 [](From one) { return static_cast<To>(one); });
  return narrow;
}

/// Returns whether float32 holds all of these float64 numbers, or NaN.
bool is_exact_as_float(std::span<const std::byte> numbers) {
  const auto* from = reinterpret_cast<const double*>(numbers.data());
  return std::all_of(from, from + numbers.size() / sizeof(double), [](double one) {
    return std::isnan(one) || static_cast<double>(static_cast<float>(one)) == one;
  });
}

/// Returns labels or targets as they are stored. `narrow`: memory for them. Throws InputError if a
/// label is no class.
StoredAnswers stored_targets(const std::string& path, const ImageSetOptions& options,
                             std::span<const std::byte> targets, std::vector<std::byte>& narrow) {
  const Answer& answer = answer_of(options.target.kind);
  const AnswerExtents& extents = options.target.extents;
  if (answer.is_one_class()) {
    const std::span labels(reinterpret_cast<const std::int32_t*>(targets.data()),
                           targets.size() / sizeof(std::int32_t));
    check_labels(path, options, labels);
    return stored_labels(labels);
  }
  StoredAnswers answers{"targets",
                        io::Hdf5Number::int32,
                        {std::ssize(targets) / options.target_bytes()},
                        targets,
                        -1};
  if (answer.is_map) answers.shape.insert(answers.shape.end(), {extents.height, extents.width});
  if (answer.has_float_targets) {
    answers.shape.push_back(extents.count);
    answers.number = io::Hdf5Number::float64;
    if (!is_exact_as_float(targets)) return answers;
    narrow = narrowed<double, float>(targets);
    answers.number = io::Hdf5Number::float32;
    answers.bytes = narrow;
    return answers;
  }
  if (extents.count <= std::numeric_limits<std::uint8_t>::max()) {
    narrow = narrowed<std::int32_t, std::uint8_t>(targets);
    answers.number = io::Hdf5Number::uint8;
    answers.none = std::numeric_limits<std::uint8_t>::max();
  } else if (extents.count <= std::numeric_limits<std::uint16_t>::max()) {
    narrow = narrowed<std::int32_t, std::uint16_t>(targets);
    answers.number = io::Hdf5Number::uint16;
    answers.none = std::numeric_limits<std::uint16_t>::max();
  }
  if (!narrow.empty()) answers.bytes = narrow;
  return answers;
}

}  // namespace

std::int64_t write_image_shard(const std::string& path, const ImageSetOptions& options,
                               std::span<const std::byte> images,
                               std::span<const std::byte> targets) {
  const auto image_bytes = static_cast<std::size_t>(options.image_bytes()),
             target_bytes = static_cast<std::size_t>(options.target_bytes());
  TRIREME_EXPECT(images.size() / image_bytes == targets.size() / target_bytes);
  std::vector<std::byte> narrow;
  const StoredAnswers answers = stored_targets(path, options, targets, narrow);
  return write_answered_shard(
      path, "images", options, images, answers, [&](std::size_t i) { return i * image_bytes; }, 0,
      [&](io::Hdf5File& file) {
        const std::int64_t shape[4] = {answers.shape[0], options.height, options.width,
                                       options.channels};
        const io::Hdf5Number number = number_of(options.pixel_type);
        file.create_dataset("images", number, shape).write_all(number, images.data());
        // The order of the extents is known, also if they look like another one.
        file.write_attribute("images", "layout", std::string("hwc"));
      });
}

std::int64_t write_encoded_image_shard(const std::string& path, const ImageSetOptions& options,
                                       std::span<const std::byte> files,
                                       std::span<const std::uint64_t> offsets,
                                       std::span<const std::int32_t> labels) {
  TRIREME_EXPECT(offsets.size() == labels.size() + 1 && offsets.back() == files.size());
  check_labels(path, options, labels);
  return write_answered_shard(
      path, "encoded-images", options, files, stored_labels(labels),
      [&](std::size_t i) { return static_cast<std::size_t>(offsets[i]); },
      static_cast<std::int64_t>(offsets.size_bytes()),
      [&](io::Hdf5File& file) {
        const std::int64_t shape[1] = {static_cast<std::int64_t>(files.size())};
        file.create_dataset("bytes", io::Hdf5Number::uint8, shape)
            .write_all(io::Hdf5Number::uint8, files.data());
        write_uint64s(file, "offsets", offsets);
      });
}

std::int64_t TokenSetOptions::token_bytes() const {
  return vocabulary <= 1 << 8 ? 1 : vocabulary <= 1 << 16 ? 2 : 4;
}

std::int64_t write_token_shard(const std::string& path, const TokenSetOptions& options,
                               std::int64_t count, std::span<const std::uint64_t> documents,
                               const std::function<void(std::span<std::byte>)>& next) {
  constexpr std::int64_t piece_tokens = 1 << 20;
  const std::int64_t token_bytes = options.token_bytes();
  const io::Hdf5Number number = token_bytes == 1   ? io::Hdf5Number::uint8
                                : token_bytes == 2 ? io::Hdf5Number::uint16
                                                   : io::Hdf5Number::uint32;
  TRIREME_EXPECT(documents.empty() ||
                 (documents.front() == 0 && documents.back() == static_cast<std::uint64_t>(count)));
  return write_shard(
      path, "tokens",
      count * token_bytes + static_cast<std::int64_t>(documents.size_bytes()) +
          checksum_bytes(count, options.checksum_block),
      [&](io::Hdf5File& file) {
        const std::int64_t shape[1] = {count};
        {
          const io::Hdf5Dataset tokens = file.create_dataset("tokens", number, shape);
          BlockChecksums checksums(std::max<std::int64_t>(options.checksum_block, 1) * token_bytes);
          std::vector<std::byte> piece;
          for (std::int64_t first = 0; first < count; first += piece_tokens) {
            const std::int64_t start[1] = {first},
                               extent[1] = {std::min(piece_tokens, count - first)};
            piece.resize(static_cast<std::size_t>(extent[0] * token_bytes));
            next(piece);
            if (options.checksum_block > 0) checksums.add(piece);
            tokens.write(start, extent, number, piece.data());
          }
          if (options.checksum_block > 0)
            write_checksums(file, checksums.finish(), options.checksum_block);
        }
        for (const char* owner : {"/", "tokens"})
          file.write_attribute(owner, "vocabulary",
                               // Programs look for the attribute at either place.
                               options.vocabulary);
        if (options.end_of_text >= 0) file.write_attribute("/", "end_of_text", options.end_of_text);
        if (!options.tokenizer.empty()) file.write_attribute("/", "tokenizer", options.tokenizer);
        if (!options.tokenizer_digest.empty())
          file.write_attribute("/", "tokenizer_digest", options.tokenizer_digest);
        if (!documents.empty()) write_uint64s(file, "documents", documents);
      });
}

}  // namespace trireme::data
