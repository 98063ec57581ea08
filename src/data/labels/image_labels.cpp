// SPDX-License-Identifier: Apache-2.0
//
// Labels and classes of shards of images, plain or encoded. Labels are small; the rank that indexes
// a folder reads them.
#include "image_labels.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/ranges.h>

#include "data/shards/shard_kind.hpp"
#include "data/shards/stored_list.hpp"
#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

// Shards without names may have so many classes, or as many as there are samples.
constexpr std::int64_t always_allowed_classes = 1 << 16;

}  // namespace

std::vector<std::int32_t> read_labels(const io::Hdf5Reader& reader, const ShardDescription& shard) {
  const io::StoredDataset& stored = reader.index().dataset("labels");
  validate(stored.kind == io::StoredDataset::Kind::integer,
           "{}: labels must be whole numbers (int32)", stored.location);
  validate(stored.shape.size() == 1 && stored.shape[0] == shard.samples,
           "{}: extents [{}] do not fit the {} images", stored.location,
           fmt::join(stored.shape, ", "), shard.samples);
  check_list(stored, reader.index().dataset(std::string(shard_kind(shard.kind).dataset)));
  const std::int64_t largest =
      shard.classes.empty() ? data::max_label : static_cast<std::int64_t>(shard.classes.size()) - 1;
  std::vector<std::int32_t> labels;
  labels.reserve(static_cast<std::size_t>(shard.samples));
  read_list(reader, stored, [&](std::int64_t first, std::span<const std::int64_t> values) {
    for (const std::int64_t& label : values) {
      validate(label >= 0 && label <= largest,
               "{}: label {} of sample {} is not a class; labels must be 0 to {}", stored.location,
               label, first + (&label - values.data()), largest);
      labels.push_back(static_cast<std::int32_t>(label));
    }
  });
  return labels;
}

void combine_classes(const FolderShards& folder, DatasetInfo& info) {
  const auto path = [&](std::size_t i) { return folder.shards[i].index.path; };
  info.classes = folder.classes;
  std::int32_t largest_label = -1;
  std::string largest_path;
  for (std::size_t i = 0; i < folder.shards.size(); ++i) {
    const IndexedShard& shard = folder.shards[i];
    validate(shard.classes_hash == 0 ||
                 shard.classes_hash == folder.shards[folder.classes_from].classes_hash,
             "{}: /classes differs from that of {}", path(i), path(folder.classes_from));
    const auto largest = std::max_element(shard.index.labels.begin(), shard.index.labels.end());
    if (largest == shard.index.labels.end() || *largest <= largest_label) continue;
    largest_label = *largest;
    largest_path = path(i);
    const std::int64_t classes = std::ssize(info.classes);
    validate(classes == 0 || largest_label < classes,
             "{}: label {} is not one of the {} classes (/classes of {})", path(i), largest_label,
             classes, path(folder.classes_from));
  }
  // Without names a single damaged label would make a model of gigabytes.
  const std::int64_t samples = std::accumulate(
      folder.shards.begin(), folder.shards.end(), std::int64_t{0},
      [](std::int64_t sum, const IndexedShard& shard) { return sum + shard.header.samples; });
  validate(!info.classes.empty() || largest_label < std::max(always_allowed_classes, samples),
           "{}: label {} makes {} classes of {} samples: it is damaged; if it is not, name the "
           "classes in /classes",
           largest_path, largest_label, std::int64_t{largest_label} + 1, samples);
  info.target.count =
      info.classes.empty() ? std::int64_t{largest_label} + 1 : std::ssize(info.classes);
}

}  // namespace trireme::data
