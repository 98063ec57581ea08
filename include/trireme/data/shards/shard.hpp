// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/dataset.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::data {

/// The targets of the samples of a shard.
struct StoredTarget {
  AnswerKind kind = AnswerKind::one_class;
  /// The extents of /targets. Not used for classes of samples, which are in /labels.
  AnswerExtents extents = {};
  bool is_one_class() const { return kind == AnswerKind::one_class; }
};
/// Returns kind and extents in words, as in "values (3 values)".
std::string to_text(const StoredTarget& target);

/// Description of one shard of any kind, read from its header. `trireme inspect` prints it.
struct ShardDescription {
  DatasetKind kind = DatasetKind::images;
  std::int64_t version = 1;
  std::int64_t samples = 0;                          ///< tokens: the number of tokens
  std::int64_t height = 0, width = 0, channels = 0;  ///< images
  DType pixel_type = DType::uint8;                   ///< images; see SampleInfo::dtype
  StoredTarget target = {};                          ///< images
  std::string preparation = {};                      ///< DatasetInfo::preparation
  std::vector<std::string> classes;
  std::int64_t token_bytes = 0;  ///< tokens: 1, 2 or 4
  /// Tokens: attribute of /tokens or of the file; without it, the range of the stored type.
  std::int64_t vocabulary = 0;
  std::int64_t documents = 0;     ///< tokens: 0 if /documents is missing
  std::string tokenizer;          ///< tokens: attribute of the file; may be empty
  std::string tokenizer_digest;   ///< tokens: digest of the SentencePiece model; may be empty
  std::int64_t end_of_text = -1;  ///< tokens: the one after every document; -1: not named
  std::string storage;            ///< "contiguous", "chunked", "compact"
  bool checksums = false;
  bool sealed = false;  ///< has checksums of every byte (io/seal.hpp)
  std::int64_t file_bytes = 0;
};

/// Returns the word for a kind in files and messages: "images", "encoded-images", "tokens".
std::string_view to_string(DatasetKind kind);

/// Returns the description of one shard. The file is untrusted: a child process opens it
/// (io/hdf5/hdf5_index.hpp), so only one rank should call this.
///
/// Throws InputError if the file is not a shard: not HDF5, another format or version, a dataset
/// missing or of the wrong shape. Throws it also if the seal is damaged or counts another length.
ShardDescription describe_shard(const std::string& path);
/// Returns the description of a shard that is indexed already.
ShardDescription describe_shard(io::Hdf5Index file);

/// Returns the name of DatasetInfo::end_of_text in messages: "token 256", or "no token of their
/// own".
std::string end_of_text_name(std::int64_t token);

/// Returns whether a file of this name in a folder may be a shard (or a checkpoint): *.h5, but no
/// name that begins with a dot.
bool is_shard_name(const std::filesystem::path& path);

/// Returns the end of a message for a path that should be a folder of shards: how to name the
/// folder of a shard, or the form of a well-known other file. Else "".
std::string no_folder_hint(const std::string& path);

/// Names in the folder of a dataset that `shard` makes: its staging folder begins with this, and
/// has a file of this name while the shards are moved from it into the folder.
inline constexpr std::string_view staging_prefix = ".making-", publishing_name = "publishing";

/// Returns the staging folder from which shards are being moved into a folder, or were when the
/// command was killed; empty: none.
std::string unfinished_staging(const std::string& folder);
/// Throws InputError if a folder is not complete: shards are or were being moved into it.
void check_complete(const std::string& folder);

/// Returns the paths of a folder's *.h5 files in the order of their names. Throws InputError if the
/// folder does not exist, has no such file, or is not complete.
std::vector<std::string> shard_paths(const std::string& folder);

/// Returns the description as text for people, one property per line.
std::string to_text(const ShardDescription& description);

}  // namespace trireme::data
