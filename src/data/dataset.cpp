// Opens a folder of shards as one dataset and finds the shard of each sample.
//
// The constructor opens all shards, checks that they agree (kind, extents, vocabulary, classes),
// and builds the table of first samples. Afterwards the object is constant, so reader threads of
// the loader call read() and read_tokens() without locks. ImageShard and TokenShard read the data.
#include "trireme/data/dataset.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "image_shard.hpp"
#include "shard_header.hpp"
#include "shard_limits.hpp"
#include "token_shard.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::data {
namespace {

// Budget of the row cache for chunked shards, in bytes.
constexpr std::int64_t cache_budget_bytes = std::int64_t{512} << 20;

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
  ShardDescription header;
  // Exactly one of these is set, by the kind.
  std::optional<ImageShard> images;
  std::optional<TokenShard> tokens;

  Shard(const std::string& path, const std::shared_ptr<RowCache>& cache) {
    io::Hdf5File file = io::Hdf5File::open(path);
    header = read_header(file);
    switch (header.kind) {
      case DatasetKind::images: images.emplace(std::move(file), header, cache); return;
      case DatasetKind::tokens: tokens.emplace(std::move(file), header, cache); return;
      case DatasetKind::encoded_images: break;
    }
    throw InputError(
        fmt::format("{}: contains {}, which this version does not read; it reads shards of images "
                    "(uint8 pixels) and of tokens",
                    path, to_string(header.kind)));
  }
};

Dataset::Dataset(const std::string& folder, std::int64_t context) {
  TRIREME_EXPECT(context >= 0);
  const std::vector<std::string> paths = shard_paths(folder);
  io::raise_open_file_limit(static_cast<std::int64_t>(paths.size()));
  const auto cache = std::make_shared<RowCache>(cache_budget_bytes);
  for (const std::string& path : paths) {
    shards_.push_back(std::make_unique<Shard>(path, cache));
    const DatasetKind kind = shards_.back()->header.kind, first = shards_.front()->header.kind;
    validate(kind == first,
             "{}: contains {}, but {} contains {}: all shards of a folder must be of the same kind",
             path, to_string(kind), paths.front(), to_string(first));
    info_.shard_names.push_back(std::filesystem::path(path).filename().string());
  }
  info_.kind = shards_.front()->header.kind;
  if (info_.kind == DatasetKind::images)
    collect_image_info(folder, paths);
  else
    collect_token_info(paths, context);
  for (const std::int64_t samples : info_.shard_samples) {
    first_sample_.push_back(info_.samples);
    info_.samples += samples;
  }
  validate(info_.samples > 0 || (info_.kind == DatasetKind::tokens && context == 0),
           "{}: its {} no sample{}", folder,
           paths.size() == 1 ? "shard contains" : fmt::format("{} shards contain", paths.size()),
           context == 0 ? ""
                        : fmt::format(" of context {}: a shard of at least {} tokens is needed, "
                                      "and the {} tokens are in shorter ones",
                                      context, context + 1, info_.tokens));
  info_.identity = dataset_identity(info_);
}

/// Collects and compares the properties of image shards, and determines the number of classes.
void Dataset::collect_image_info(const std::string& folder, const std::vector<std::string>& paths) {
  std::int32_t largest_label = -1;
  std::string classes_source;
  const ShardDescription& first = shards_.front()->header;
  info_.height = first.height;
  info_.width = first.width;
  info_.channels = first.channels;
  validate(first.channels <= max_channels,
           "{}: images of {} channels are not supported; 1 to {} are", paths.front(),
           first.channels, max_channels);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const ShardDescription& header = shards_[i]->header;
    validate(header.height == info_.height && header.width == info_.width &&
                 header.channels == info_.channels,
             "{}: images of {} x {} x {} among images of {} x {} x {} ({}): all shards of a folder "
             "must have the same size",
             paths[i], header.height, header.width, header.channels, info_.height, info_.width,
             info_.channels, paths.front());
    if (!header.classes.empty()) {
      validate(classes_source.empty() || header.classes == info_.classes,
               "{}: /classes differs from that of {}", paths[i], classes_source);
      info_.classes = header.classes;
      classes_source = paths[i];
    }
    for (const std::int32_t label : shards_[i]->images->labels())
      largest_label = std::max(largest_label, label);
    info_.shard_samples.push_back(header.samples);
  }
  validate(info_.classes.empty() || largest_label < static_cast<std::int64_t>(info_.classes.size()),
           "{}: label {} is not one of the {} classes (/classes of {})", folder, largest_label,
           info_.classes.size(), classes_source);
  info_.class_count = info_.classes.empty() ? std::int64_t{largest_label} + 1
                                            : static_cast<std::int64_t>(info_.classes.size());
}

/// Collects and compares the properties of token shards, and divides them into samples.
void Dataset::collect_token_info(const std::vector<std::string>& paths, std::int64_t context) {
  const ShardDescription& first = shards_.front()->header;
  info_.context = context;
  info_.vocabulary = first.vocabulary;
  info_.tokenizer = first.tokenizer;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const ShardDescription& header = shards_[i]->header;
    validate(header.vocabulary == info_.vocabulary && header.tokenizer == info_.tokenizer,
             "{}: tokens of vocabulary {} (tokenizer \"{}\") among tokens of vocabulary {} "
             "(tokenizer \"{}\", {}): all shards of a folder must have the same "
             "vocabulary",
             paths[i], header.vocabulary, header.tokenizer, info_.vocabulary, info_.tokenizer,
             paths.front());
    info_.tokens += header.samples;
    info_.documents += header.documents;
    info_.shard_samples.push_back(
        context == 0 ? 0 : std::max<std::int64_t>(header.samples - 1, 0) / context);
  }
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
