// A folder of shards as one dataset: finds the shard of each sample.
//
// The constructor builds the table of first samples from the index of the folder. Afterwards the
// object is constant, so reader threads of the loader call read() and read_tokens() at once.
// ImageShard and TokenShard read the data.
#include "trireme/data/dataset.hpp"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <optional>

#include "image_shard.hpp"
#include "token_shard.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::data {
namespace {

// Budget of the row cache for chunked shards, in bytes.
constexpr std::int64_t cache_budget_bytes = std::int64_t{512} << 20;

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

struct Dataset::Shard {
  // Exactly one of these is set, by the kind.
  std::optional<ImageShard> images;
  std::optional<TokenShard> tokens;
};

Dataset::Dataset(const std::string& folder, std::int64_t context)
    : Dataset(index_dataset(folder), context) {}

Dataset::Dataset(DatasetIndex index, std::int64_t context)
    : info_(std::move(index.info)), files_(shared_files()) {
  TRIREME_EXPECT(context >= 0);
  const auto cache = std::make_shared<RowCache>(cache_budget_bytes);
  if (info_.kind == DatasetKind::tokens) info_.context = context;
  for (ShardIndex& shard : index.shards) {
    const std::int64_t rows = shard.rows.shape[0];
    info_.shard_names.push_back(std::filesystem::path(shard.path).filename().string());
    shards_.push_back(std::make_unique<Shard>());
    if (info_.kind == DatasetKind::images) {
      info_.shard_samples.push_back(rows);
      shards_.back()->images.emplace(std::move(shard), *files_, cache);
    } else {
      info_.shard_samples.push_back(context == 0 ? 0
                                                 : std::max<std::int64_t>(rows - 1, 0) / context);
      shards_.back()->tokens.emplace(std::move(shard), info_.vocabulary, *files_, cache);
    }
    first_sample_.push_back(info_.samples);
    info_.samples += info_.shard_samples.back();
  }
  validate(
      info_.samples > 0 || (info_.kind == DatasetKind::tokens && context == 0),
      "{}: its {} no sample{}", index.folder,
      shards_.size() == 1 ? "shard contains" : fmt::format("{} shards contain", shards_.size()),
      context == 0 ? ""
                   : fmt::format(" of context {}: a shard of at least {} tokens is needed, "
                                 "and the {} tokens are in shorter ones",
                                 context, context + 1, info_.tokens));
  info_.identity = dataset_identity(info_);
}

Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;

std::int64_t Dataset::sample_bytes() const {
  return info_.kind == DatasetKind::images ? info_.height * info_.width * info_.channels
                                           : info_.context * size_of(DType::int32);
}

std::int64_t Dataset::sample_labels() const {
  return info_.kind == DatasetKind::images ? 1 : info_.context;
}

Dataset::SampleLocation Dataset::locate(std::int64_t index) const {
  TRIREME_EXPECT(index >= 0 && index < info_.samples);
  const auto after = std::upper_bound(first_sample_.begin(), first_sample_.end(), index);
  const auto which = static_cast<std::size_t>(after - first_sample_.begin() - 1);
  return {*shards_[which], index - first_sample_[which]};
}

void Dataset::read(std::int64_t index, std::byte* image, std::int32_t* label) const {
  TRIREME_EXPECT(info_.kind == DatasetKind::images);
  const auto [shard, index_in_shard] = locate(index);
  if (image != nullptr) shard.images->read(index_in_shard, 1, image);
  if (label != nullptr) *label = shard.images->labels()[static_cast<std::size_t>(index_in_shard)];
}

void Dataset::read_tokens(std::int64_t index, std::int32_t* ids) const {
  TRIREME_EXPECT(info_.kind == DatasetKind::tokens);
  const auto [shard, index_in_shard] = locate(index);
  shard.tokens->read_ids(index_in_shard * info_.context, info_.context + 1, ids);
}

}  // namespace trireme::data
