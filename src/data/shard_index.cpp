// Finds the samples of one shard and reads its labels.
#include <fmt/ranges.h>

#include "shard_header.hpp"
#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

// Labels above this are damage: no classifier with so many classes fits in memory.
constexpr std::int64_t label_limit = (std::int64_t{1} << 24) - 1;

/// Reads all labels of a shard and checks that each is a class.
std::vector<std::int32_t> read_labels(const io::Hdf5Reader& reader, const ShardDescription& shard) {
  const io::StoredDataset& stored = reader.index().dataset("labels");
  validate(stored.kind == io::StoredDataset::Kind::integer,
           "{}: labels must be whole numbers (int32)", stored.location);
  validate(stored.shape.size() == 1 && stored.shape[0] == shard.samples,
           "{}: extents [{}] do not fit the {} images", stored.location,
           fmt::join(stored.shape, ", "), shard.samples);
  std::vector<std::int64_t> wide(static_cast<std::size_t>(shard.samples));
  reader.read(stored, io::Hdf5Number::int64, wide.data());
  const std::int64_t max_label =
      shard.classes.empty() ? label_limit : static_cast<std::int64_t>(shard.classes.size()) - 1;
  std::vector<std::int32_t> labels;
  labels.reserve(wide.size());
  for (std::size_t i = 0; i < wide.size(); ++i) {
    validate(wide[i] >= 0 && wide[i] <= max_label,
             "{}: label {} of sample {} is not a class; labels must be 0 to {}", stored.location,
             wide[i], i, max_label);
    labels.push_back(static_cast<std::int32_t>(wide[i]));
  }
  return labels;
}

}  // namespace

ShardIndex index_shard(const io::Hdf5Reader& reader, const ShardDescription& shard) {
  validate(shard.kind != DatasetKind::encoded_images,
           "{}: contains {}, which this version does not read; it reads shards of images (uint8 "
           "pixels) and of tokens",
           reader.path(), to_string(shard.kind));
  if (shard.kind == DatasetKind::tokens)
    return {reader.path(), reader.stamp(), reader.index().dataset("tokens"), {}};
  return {reader.path(), reader.stamp(), reader.index().dataset("images"),
          read_labels(reader, shard)};
}

}  // namespace trireme::data
