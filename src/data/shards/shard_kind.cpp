// SPDX-License-Identifier: Apache-2.0
//
// The table of the kinds of shards. A new kind is a row here and a file of its own.
#include "shard_kind.hpp"

namespace trireme::data {

const std::vector<ShardKind>& shard_kinds() {
  static const std::vector<ShardKind> all{image_shard_kind, encoded_image_shard_kind,
                                          token_shard_kind};
  return all;
}

const ShardKind& shard_kind(DatasetKind kind) {
  return shard_kinds()[static_cast<std::size_t>(kind)];
}

std::string_view to_string(DatasetKind kind) { return shard_kind(kind).name; }

}  // namespace trireme::data
