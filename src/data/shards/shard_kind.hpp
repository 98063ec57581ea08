// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/sample_source.hpp"
#include "trireme/data/shards/dataset_index.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/io/file_pool.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"

namespace trireme::data {

class RowCache;

/// A shard of a folder while the folder is indexed.
struct IndexedShard {
  ShardDescription header;         ///< without classes, which many shards repeat
  std::uint64_t classes_hash = 0;  ///< 0: the shard names no classes
  ShardIndex index;
};

/// All shards of a folder, in the order of their names.
struct FolderShards {
  std::vector<IndexedShard> shards;
  std::vector<std::string> classes;  ///< of the first shard that names them
  std::size_t classes_from = 0;      ///< this shard
};

/// The open files and decompressed rows that shards share while they are read.
struct ShardResources {
  io::FilePool& files;
  std::shared_ptr<RowCache> cache;
};

/// All that distinguishes one kind of shard from the others. The rest of the program treats kinds
/// alike. The functions check untrusted files: they throw InputError with file and dataset.
struct ShardKind {
  DatasetKind kind;
  std::string_view name;     ///< attribute `kind` of a shard
  std::string_view dataset;  ///< HDF5 dataset that shows the kind of a file without this attribute
  /// Reads the properties of a shard, and checks extents and lists. Reads no samples.
  void (*describe)(const io::Hdf5Reader& reader, ShardDescription& shard);
  /// Returns the place of the samples, with the labels or the place of the targets.
  ShardIndex (*index)(const io::Hdf5Reader& reader, const ShardDescription& shard,
                      const SampleForm& form);
  /// Checks that the shards of a folder agree, and sets what follows from all of them.
  void (*combine)(const FolderShards& folder, DatasetInfo& info);
  /// Returns the samples of an indexed shard.
  std::unique_ptr<SampleSource> (*open)(ShardIndex shard, const DatasetInfo& info,
                                        const SampleForm& form, const ShardResources& resources);
};

/// Returns the table of all kinds, in the order of DatasetKind.
const std::vector<ShardKind>& shard_kinds();
const ShardKind& shard_kind(DatasetKind kind);

// The kinds; each is in the source file of its name.
extern const ShardKind image_shard_kind, encoded_image_shard_kind, token_shard_kind;

}  // namespace trireme::data
