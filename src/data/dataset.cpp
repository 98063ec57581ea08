// SPDX-License-Identifier: Apache-2.0
//
// A folder of shards as one dataset: finds the shard of each sample.
//
// The constructor builds the table of first samples from the index of the folder. Afterwards the
// object is constant, so reader threads of the loader call read() at once. Each shard is a
// SampleSource of its kind. Images are decoded, cropped, scaled and changed in color here, in the
// thread that reads.
#include "trireme/data/dataset.hpp"

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "data/arrays/array_source.hpp"
#include "data/images/image_operation.hpp"
#include "data/shards/shard_kind.hpp"
#include "data/shards/stored_rows.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::data {
namespace {

// Budget of the row cache for chunked shards, in bytes.
constexpr std::int64_t cache_budget_bytes = std::int64_t{512} << 20;
// Samples that are at most so far apart are read ahead at once, with those between them. Images of
// 32 x 32 came from a virtual disk at 232,764 to 266,075 a second one by one, and at 257,508 to
// 369,782 merged.
constexpr std::int64_t max_gap_bytes = std::int64_t{64} << 10;

/// Returns the open files of all datasets of this process: the limit on open files is the
/// process's.
std::shared_ptr<io::FilePool> shared_files() {
  constexpr std::size_t max_open = 1024;
  static std::mutex mutex;
  static std::weak_ptr<io::FilePool> shared;
  const std::lock_guard lock(mutex);
  std::shared_ptr<io::FilePool> files = shared.lock();
  if (!files) shared = files = std::make_shared<io::FilePool>(max_open);
  return files;
}

/// Returns the hash of shard names and sample counts.
std::uint64_t dataset_identity(const DatasetInfo& info) {
  io::Xxh3 hash;
  for (std::size_t i = 0; i < info.shard_names.size(); ++i) {
    hash.update(info.shard_names[i].c_str(), info.shard_names[i].size() + 1);
    // Little-endian on any machine.
    std::byte count[8];
    for (int b = 0; b < 8; ++b) count[b] = static_cast<std::byte>(info.shard_samples[i] >> (8 * b));
    hash.update(count, sizeof count);
  }
  return hash.digest();
}

}  // namespace

std::uint64_t preparation_hash(const DatasetInfo& info) {
  if (info.preparation.empty()) return 0;
  io::Xxh3 hash;
  hash.update(info.preparation.data(), info.preparation.size());
  return hash.digest();
}

std::string outputs_in_words(const AnswerExtents& outputs, const Answer& answer) {
  std::string text = counted(outputs.count, answer.part, answer.parts);
  if (answer.is_map)
    text += fmt::format(" for each of {} x {} pixels", outputs.height, outputs.width);
  return text;
}

Dataset::Dataset(const std::string& folder, const SampleForm& form)
    : Dataset(index_dataset(folder, form), form) {}

Dataset::Dataset(DatasetIndex index, const SampleForm& form)
    : info_(std::move(index.info)),
      folder_(std::move(index.folder)),
      image_form_(form.image),
      files_(shared_files()) {
  const bool are_tokens = info_.kind == DatasetKind::tokens;
  // Images have no context, whatever the form says.
  const std::int64_t context = are_tokens ? form.context : 0;
  TRIREME_EXPECT(context >= 0);
  const ShardResources resources{*files_, std::make_shared<RowCache>(cache_budget_bytes)};
  const ShardKind& kind = shard_kind(info_.kind);
  std::int64_t all_bytes = 0;
  for (ShardIndex& shard : index.shards) {
    info_.shard_names.push_back(std::filesystem::path(shard.path).filename().string());
    checksums_.push_back(std::move(shard.checksums));
    first_block_.push_back(checksum_blocks_);
    checksum_blocks_ += std::ssize(checksums_.back().values);
    all_bytes += shard.bytes();
    for (const ArrayVariable& input : shard.inputs)
      if (!input.rows.filters.empty())
        info_.chunk_samples = std::max(info_.chunk_samples, input.rows.chunk[0]);
    shards_.push_back(shard.is_of_other_program
                          ? open_arrays(std::move(shard), form, info_.pixel_type, resources)
                          : kind.open(std::move(shard), info_, form, resources));
    info_.shard_samples.push_back(shards_.back()->size());
    first_sample_.push_back(info_.samples);
    info_.samples += info_.shard_samples.back();
  }
  sample_ = shards_.front()->info();
  if (!are_tokens) {
    validate(image_form_.kind == ImageForm::Kind::stored || info_.pixel_type == DType::uint8,
             "{}: holds {} images, but only uint8 images can be scaled; store the images in the "
             "size of the model and leave {} out",
             folder_, to_string(info_.pixel_type),
             image_form_.kind == ImageForm::Kind::random_resized_crop
                 ? "data.augment.random_resized_crop"
                 : "data.augment.evaluate");
    const ImageExtents extents = extents_of(image_form_, {info_.height, info_.width});
    info_.height = extents.height;
    info_.width = extents.width;
    sample_.input = {info_.height, info_.width, info_.channels};
  }
  if (are_tokens) info_.context = sample().labels[0];
  validate(info_.samples > 0 || (are_tokens && context == 0), "{}: its {} no sample{}", folder_,
           form.arrays.is_used()
               ? fmt::format("{} {}", counted(std::ssize(shards_), "file", "files"),
                             shards_.size() == 1 ? "has" : "have")
           : shards_.size() == 1 ? "shard contains"
                                 : fmt::format("{} shards contain", shards_.size()),
           context == 0 ? ""
                        : fmt::format(" of context {}: a shard of at least {} tokens is needed, "
                                      "and the {} tokens are in shorter ones",
                                      context, context + 1, info_.tokens));
  info_.identity = dataset_identity(info_);
  if (info_.samples > 0) stored_bytes_ = std::max<std::int64_t>(1, all_bytes / info_.samples);
}

Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;

Dataset::SampleLocation Dataset::locate(std::int64_t index) const {
  TRIREME_EXPECT(index >= 0 && index < info_.samples);
  const auto after = std::upper_bound(first_sample_.begin(), first_sample_.end(), index);
  const auto which = static_cast<std::size_t>(after - first_sample_.begin() - 1);
  return {which, *shards_[which], index - first_sample_[which]};
}

void Dataset::read(std::int64_t index, std::byte* input, void* labels) const {
  ReaderState state;
  read(index, input, labels, 0, state);
}

void Dataset::read(std::int64_t index, std::byte* input, void* labels, std::int64_t epoch,
                   ReaderState& state) const {
  const SampleLocation at = locate(index);
  const bool is_formed = input != nullptr && info_.kind != DatasetKind::tokens &&
                         image_form_.kind != ImageForm::Kind::stored;
  if (is_formed) read_formed_image(at, index, input, epoch, state);
  TRIREME_EXPECT(is_formed || input == nullptr || info_.kind != DatasetKind::encoded_images);
  const double begin = monotonic_seconds();
  at.shard.read(at.index_in_shard, is_formed ? nullptr : input, labels);
  const double end = monotonic_seconds();
  state.times.read += end - begin;
  if (input == nullptr || !image_form_.augmentation.changes_colors()) return;
  TRIREME_EXPECT(sample_.dtype == DType::uint8 && info_.channels == 3);
  augment_image(image_form_.augmentation, image_form_.seed, epoch, index,
                {info_.height, info_.width, reinterpret_cast<std::uint8_t*>(input)}, state.scratch);
  const double color_seconds = monotonic_seconds() - end;
  state.times.augment += color_seconds;
  state.times.colors += color_seconds;
}

void Dataset::read_formed_image(const SampleLocation& at, std::int64_t index, std::byte* out,
                                std::int64_t epoch, ReaderState& state) const {
  double mark = monotonic_seconds();
  const auto lap = [&](double& part) {
    const double now = monotonic_seconds();
    part += now - mark;
    mark = now;
  };
  // 1. Read the stored image.
  state.stored.resize(static_cast<std::size_t>(at.shard.sample_bytes(at.index_in_shard)));
  at.shard.read(at.index_in_shard, state.stored.data(), nullptr);
  lap(state.times.read);
  // 2. Decode the rectangle that is needed.
  const Shape& stored = at.shard.info().input;
  ImagePart decoded;
  ImageView image{stored[0], stored[1], stored[2], state.stored.data()};
  PixelBox box;
  const auto box_of_extents = [&](ImageExtents extents) {
    return box = box_of(image_form_, extents, epoch, index);
  };
  if (info_.kind == DatasetKind::images) {
    box_of_extents({image.height, image.width});
  } else {
    try {
      decoded = decode_part(state.stored, box_of_extents, smallest_extents(image_form_));
    } catch (const InputError& error) {
      throw InputError(fmt::format(
          "{}/{}: sample {} {}; trireme verify {} checks the dataset: copy a damaged shard again, "
          "or make it again (shard --on-error skip leaves out images that cannot be decoded)",
          folder_, info_.shard_names[at.shard_index], at.index_in_shard, error.what(), folder_));
    }
    image = decoded.image;
    lap(state.times.decode);
  }
  // 3. Crop and scale it.
  form_image(image_form_, image, box, decoded.locate(box), out);
  lap(state.times.augment);
}

void Dataset::read_ahead(std::vector<std::int64_t>& samples) const {
  const std::int64_t max_step = 1 + max_gap_bytes / stored_bytes_;
  std::sort(samples.begin(), samples.end());
  for (std::size_t i = 0; i < samples.size();) {
    const SampleLocation first = locate(samples[i]);
    const std::int64_t begin = samples[i],
                       shard_end = begin - first.index_in_shard + first.shard.size();
    std::int64_t last = begin;
    for (++i; i < samples.size() && samples[i] < shard_end && samples[i] - last <= max_step; ++i)
      last = samples[i];
    first.shard.read_ahead(first.index_in_shard, last - begin + 1);
  }
}

Dataset::ChecksumBlocks Dataset::checksum_blocks_of(std::int64_t index) const {
  const SampleLocation at = locate(index);
  const ShardChecksums& checksums = checksums_[at.shard_index];
  TRIREME_EXPECT(!checksums.values.empty());
  // A sample of tokens has one row more than labels: its last label begins the next sample.
  const bool are_tokens = info_.kind == DatasetKind::tokens;
  const std::int64_t rows = are_tokens ? info_.context : 1, first_row = at.index_in_shard * rows,
                     last_row = first_row + (are_tokens ? rows : 0);
  return {at.shard_index,
          {first_row / checksums.block, last_row / checksums.block + 1},
          first_block_[at.shard_index]};
}

void Dataset::compare_block(std::size_t shard, std::int64_t block) const {
  const std::string difference = shards_[shard]->verify(&checksums_[shard], {block, block + 1});
  validate(difference.empty(), "{}/{}: damaged: {}; make or copy this shard again", folder_,
           info_.shard_names[shard], difference);
}

}  // namespace trireme::data
