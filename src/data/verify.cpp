#include "trireme/data/verify.hpp"

#include <algorithm>

#include "image_shard.hpp"
#include "trireme/base/check.hpp"
#include "trireme/data/shard_writer.hpp"

namespace trireme::data {
namespace {

std::int64_t block_of(const io::Hdf5File& file) {
  const std::string owner = file.has_attribute("checksums", "block") ? "checksums" : "/";
  const std::int64_t block = file.attribute_int(owner, "block");
  validate(block >= 1, "{}: attribute block of /checksums is {}; it counts the samples of a checksum", file.path(), block);
  return block;
}

std::vector<std::uint64_t> stored_checksums(const io::Hdf5File& file, std::int64_t expected) {
  const io::Hdf5Dataset dataset = file.dataset("checksums");
  const io::Hdf5Description& stored = dataset.description();
  validate(stored.kind == io::Hdf5Description::Kind::integer && stored.element_bytes == 8 && stored.shape.size() == 1,
           "{}: checksums are uint64 [blocks]", dataset.place());
  validate(stored.shape[0] == expected, "{}: holds {} checksums, where the samples make {} blocks", dataset.place(), stored.shape[0], expected);
  std::vector<std::uint64_t> values(static_cast<std::size_t>(expected));
  dataset.read_all(io::Hdf5Number::uint64, values.data());
  return values;
}

}  // namespace

std::string verify_shard(const std::string& path) {
  const io::Hdf5File file = io::Hdf5File::open(path);
  if (!file.has("checksums")) {
    describe_shard(path);
    return "no checksums";
  }
  const ImageShard shard(path, std::make_shared<RowCache>(0));
  const std::int64_t samples = shard.header().samples, block = std::min(block_of(file), std::max<std::int64_t>(samples, 1));
  const std::vector<std::uint64_t> stored = stored_checksums(file, (samples + block - 1) / block);
  std::vector<std::byte> images(static_cast<std::size_t>(std::min(block, samples) * shard.sample_bytes()));
  for (std::int64_t begin = 0; begin < samples; begin += block) {
    const std::int64_t count = std::min(block, samples - begin);
    shard.read(begin, count, images.data());
    const std::span<const std::int32_t> labels(shard.labels().data() + begin, static_cast<std::size_t>(count));
    const std::span<const std::byte> bytes(images.data(), static_cast<std::size_t>(count * shard.sample_bytes()));
    const std::uint64_t found = image_checksums(bytes, labels, shard.sample_bytes(), count).at(0);
    const std::uint64_t meant = stored[static_cast<std::size_t>(begin / block)];
    if (found != meant) {
      return fmt::format("block {} of /images and /labels (samples {} to {}): checksum {:016x}, where /checksums says {:016x}", begin / block, begin,
                         begin + count - 1, found, meant);
    }
  }
  return "";
}

}  // namespace trireme::data
