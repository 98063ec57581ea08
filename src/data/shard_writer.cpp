#include "trireme/data/shard_writer.hpp"

#include <algorithm>
#include <bit>
#include <filesystem>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/io/hdf5.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t page_bytes = 4096;          // large datasets begin on a page, so that direct reads are possible
constexpr std::int64_t header_room_bytes = 1 << 20;  // what the file holds beside samples, generously

void write_contents(const std::string& path, const ImageSetOptions& options, std::span<const std::byte> images, std::span<const std::int32_t> labels) {
  const auto samples = static_cast<std::int64_t>(labels.size());
  io::Hdf5File file = io::Hdf5File::create(path, {.communicator = nullptr, .user_block_bytes = 0, .alignment = page_bytes});
  file.write_attribute("/", "format", std::string("trireme-shard"));
  file.write_attribute("/", "version", std::int64_t{1});
  file.write_attribute("/", "kind", std::string("images"));
  const std::int64_t image_shape[4] = {samples, options.height, options.width, options.channels};
  file.create_dataset("images", io::Hdf5Number::uint8, image_shape).write_all(io::Hdf5Number::uint8, images.data());
  file.create_dataset("labels", io::Hdf5Number::int32, {image_shape, 1}).write_all(io::Hdf5Number::int32, labels.data());
  if (!options.classes.empty()) file.write_strings("classes", options.classes);
  if (options.checksum_block > 0) {
    const std::vector<std::uint64_t> checksums =
        image_checksums(images, labels, options.height * options.width * options.channels, options.checksum_block);
    const std::int64_t blocks[1] = {static_cast<std::int64_t>(checksums.size())};
    file.create_dataset("checksums", io::Hdf5Number::uint64, blocks).write_all(io::Hdf5Number::uint64, checksums.data());
    file.write_attribute("checksums", "block", options.checksum_block);
  }
  file.close();
}

}  // namespace

std::string shard_file_name(std::int64_t index) { return fmt::format("shard_{:05}.h5", index); }

std::vector<std::uint64_t> image_checksums(std::span<const std::byte> images, std::span<const std::int32_t> labels, std::int64_t sample_bytes,
                                           std::int64_t block) {
  static_assert(std::endian::native == std::endian::little, "labels are hashed as they lie in memory");
  std::vector<std::uint64_t> checksums;
  io::Xxh3 hash;
  const auto step = static_cast<std::size_t>(block), bytes = static_cast<std::size_t>(sample_bytes);
  for (std::size_t begin = 0; begin < labels.size(); begin += step) {
    const std::size_t count = std::min(step, labels.size() - begin);
    hash.reset();
    hash.update(images.data() + begin * bytes, count * bytes);
    hash.update(labels.data() + begin, count * sizeof(std::int32_t));
    checksums.push_back(hash.digest());
  }
  return checksums;
}

std::int64_t write_image_shard(const std::string& path, const ImageSetOptions& options, std::span<const std::byte> images,
                               std::span<const std::int32_t> labels) {
  TRIREME_EXPECT(images.size() == labels.size() * static_cast<std::size_t>(options.height * options.width * options.channels));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    validate(labels[i] >= 0, "{}: label {} of sample {} is below 0", path, labels[i], i);
    validate(options.classes.empty() || static_cast<std::size_t>(labels[i]) < options.classes.size(), "{}: label {} of sample {} is past the {} classes",
             path, labels[i], i, options.classes.size());
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const auto needed = static_cast<std::int64_t>(images.size() + labels.size_bytes()) + header_room_bytes;
  const std::int64_t available = io::free_bytes(folder.empty() ? "." : folder.string());
  ensure(available >= needed, "{}: needs {}, the disk has {}", path, format_bytes(static_cast<double>(needed)), format_bytes(static_cast<double>(available)));
  const std::string temporary = path + ".tmp";
  try {
    write_contents(temporary, options, images, labels);
    io::sync_file(temporary);
    const std::int64_t bytes = io::File(temporary, io::File::Mode::read).size();
    io::rename_durably(temporary, path);
    return bytes;
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
}

}  // namespace trireme::data
