// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "data/shards/shard_kind.hpp"

namespace trireme::data {

/// Labels above this are damage: no classifier with so many classes fits in memory.
inline constexpr std::int64_t max_label = (std::int64_t{1} << 24) - 1;

// The labels and classes of shards of images, plain or encoded.

/// Reads all labels of a shard. Throws InputError unless there is one for each sample, and each is
/// a class.
std::vector<std::int32_t> read_labels(const io::Hdf5Reader& reader, const ShardDescription& shard);

/// Compares the classes of the shards of a folder, and sets info.classes and info.target.count.
/// Throws InputError if they differ, or a label is not one of them.
void combine_classes(const FolderShards& folder, DatasetInfo& info);

}  // namespace trireme::data
