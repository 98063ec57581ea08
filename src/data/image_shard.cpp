#include "image_shard.hpp"

#include <fmt/ranges.h>

#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

// Labels above this are damage: no classifier with so many classes fits in memory.
constexpr std::int64_t label_limit = (std::int64_t{1} << 24) - 1;

/// Reads all labels of a shard and checks that each is a class.
std::vector<std::int32_t> read_labels(const io::Hdf5File& file, const ShardDescription& header) {
  const io::Hdf5Dataset stored = file.dataset("labels");
  const io::Hdf5Description& description = stored.description();
  validate(description.kind == io::Hdf5Description::Kind::integer,
           "{}: labels must be whole numbers (int32)", stored.location());
  validate(description.shape.size() == 1 && description.shape[0] == header.samples,
           "{}: extents [{}] do not fit the {} images", stored.location(),
           fmt::join(description.shape, ", "), header.samples);
  std::vector<std::int64_t> wide(static_cast<std::size_t>(header.samples));
  if (!wide.empty()) stored.read_all(io::Hdf5Number::int64, wide.data());
  const std::int64_t max_label =
      header.classes.empty() ? label_limit : static_cast<std::int64_t>(header.classes.size()) - 1;
  std::vector<std::int32_t> labels;
  labels.reserve(wide.size());
  for (std::size_t i = 0; i < wide.size(); ++i) {
    validate(wide[i] >= 0 && wide[i] <= max_label,
             "{}: label {} of sample {} is not a class; labels must be 0 to {}", stored.location(),
             wide[i], i, max_label);
    labels.push_back(static_cast<std::int32_t>(wide[i]));
  }
  return labels;
}

}  // namespace

ImageShard::ImageShard(io::Hdf5File file, const ShardDescription& header,
                       std::shared_ptr<RowCache> cache)
    : labels_(read_labels(file, header)), images_(std::move(file), "images", std::move(cache)) {}

}  // namespace trireme::data
