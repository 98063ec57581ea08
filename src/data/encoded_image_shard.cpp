// Shards of encoded images (JPEG, PNG): recognized, but not read yet.
#include "shard_header.hpp"
#include "shard_kind.hpp"
#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

void describe_encoded_images(const io::Hdf5Reader& reader, ShardDescription& shard) {
  shard.samples = length_of(reader.index(), "labels");
}

ShardIndex refuse(const io::Hdf5Reader& reader, const ShardDescription&) {
  throw InputError(fmt::format(
      "{}: contains encoded-images, which this version does not read; it reads shards of images "
      "(uint8 pixels) and of tokens",
      reader.path()));
}

}  // namespace

const ShardKind encoded_image_shard_kind{DatasetKind::encoded_images,
                                         "encoded-images",
                                         "bytes",
                                         describe_encoded_images,
                                         refuse,
                                         nullptr,
                                         nullptr};

}  // namespace trireme::data
