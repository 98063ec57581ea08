#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/dataset.hpp"

namespace trireme::data {

/// What one shard says of itself, of any kind: read from its headers alone, for `inspect`.
struct ShardDescription {
  DatasetKind kind = DatasetKind::images;
  std::int64_t version = 1;
  std::int64_t samples = 0;                          ///< tokens: the count of tokens
  std::int64_t height = 0, width = 0, channels = 0;  ///< images
  std::vector<std::string> classes;
  std::int64_t token_bytes = 0;  ///< tokens: 1, 2 or 4
  std::int64_t vocabulary =
      0;  ///< tokens: attribute of /tokens or of the file; without it, what the type can hold
  std::int64_t documents = 0;  ///< tokens: 0 where /documents is missing
  std::string tokenizer;       ///< tokens: attribute of the file; may be empty
  std::string storage;         ///< "contiguous", "chunked"
  bool checksums = false;
  std::int64_t file_bytes = 0;
};

/// The contract's word for a kind: "images", "encoded-images", "tokens".
std::string_view to_string(DatasetKind kind);

/// Throws InputError where the file is no shard: no HDF5, another format or version, a dataset
/// missing or misshapen. By one rank.
ShardDescription describe_shard(const std::string& path);

/// Looks over a folder's shards before any rank opens them, first in a process of its own
/// (io/hdf5_probe.hpp), then for what one look is enough for (where documents begin): by one rank.
/// Throws InputError.
void probe_shards(const std::string& folder);

/// Paths of a folder's *.h5 files in the order of their names. Throws InputError where there is no
/// such folder or no such file.
std::vector<std::string> shard_paths(const std::string& folder);

/// The description in words, a line each: for people.
std::string to_text(const ShardDescription& description);

}  // namespace trireme::data
