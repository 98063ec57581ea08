#include "trireme/data/dataset.hpp"

#include <algorithm>
#include <filesystem>

#include "image_shard.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/hash.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t cache_budget_bytes = std::int64_t{512} << 20;  // of uncompressed rows, where shards are chunked
constexpr std::int64_t most_channels = 4;                              // what the preparation of images takes

std::uint64_t identity_of(const DatasetInfo& info) {
  io::Xxh3 hash;
  for (std::size_t i = 0; i < info.shard_names.size(); ++i) {
    hash.update(info.shard_names[i].c_str(), info.shard_names[i].size() + 1);
    std::byte count[8];  // little-endian on any machine
    for (int b = 0; b < 8; ++b) count[b] = static_cast<std::byte>(info.shard_samples[i] >> (8 * b));
    hash.update(count, sizeof count);
  }
  return hash.digest();
}

}  // namespace

struct Dataset::Shard : ImageShard {
  using ImageShard::ImageShard;
};

Dataset::Dataset(const std::string& folder) {
  const std::vector<std::string> paths = shard_paths(folder);
  io::allow_open_files(static_cast<std::int64_t>(paths.size()));
  const auto cache = std::make_shared<RowCache>(cache_budget_bytes);
  std::int32_t largest_label = -1;
  std::string classes_from;
  for (const std::string& path : paths) {
    auto shard = std::make_unique<Shard>(path, cache);
    const ShardDescription& header = shard->header();
    if (shards_.empty()) {
      info_.height = header.height;
      info_.width = header.width;
      info_.channels = header.channels;
      validate(header.channels <= most_channels, "{}: images of {} channels; 1 to {} can be", path, header.channels, most_channels);
    }
    validate(header.height == info_.height && header.width == info_.width && header.channels == info_.channels,
             "{}: images of {} x {} x {} among images of {} x {} x {} ({}): all shards of a folder hold one size", path, header.height, header.width,
             header.channels, info_.height, info_.width, info_.channels, paths.front());
    if (!header.classes.empty()) {
      validate(classes_from.empty() || header.classes == info_.classes, "{}: /classes differs from that of {}", path, classes_from);
      info_.classes = header.classes;
      classes_from = path;
    }
    for (const std::int32_t label : shard->labels()) largest_label = std::max(largest_label, label);
    first_sample_.push_back(info_.samples);
    info_.samples += header.samples;
    info_.shard_names.push_back(std::filesystem::path(path).filename().string());
    info_.shard_samples.push_back(header.samples);
    shards_.push_back(std::move(shard));
  }
  validate(info_.samples > 0, "{}: its {} shards hold no sample", folder, paths.size());
  validate(info_.classes.empty() || largest_label < static_cast<std::int64_t>(info_.classes.size()),
           "{}: a label {} stands among {} classes (/classes of {})", folder, largest_label, info_.classes.size(), classes_from);
  info_.class_count = info_.classes.empty() ? std::int64_t{largest_label} + 1 : static_cast<std::int64_t>(info_.classes.size());
  info_.identity = identity_of(info_);
}

Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;

void Dataset::read(std::int64_t index, std::byte* image, std::int32_t* label) const {
  TRIREME_EXPECT(index >= 0 && index < info_.samples);
  const auto after = std::upper_bound(first_sample_.begin(), first_sample_.end(), index);
  const auto which = static_cast<std::size_t>(after - first_sample_.begin() - 1);
  const std::int64_t inside = index - first_sample_[which];
  shards_[which]->read(inside, 1, image);
  *label = shards_[which]->labels()[static_cast<std::size_t>(inside)];
}

}  // namespace trireme::data
