// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/data/dataset.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::data {

/// A dataset of a file of another program. Its first dimension counts samples.
struct ArrayVariable {
  io::StoredDataset rows;
  double scale = 1, offset = 0;      ///< value = stored * scale + offset
  std::vector<double> missing = {};  ///< stored values that stand for a value that is missing
  bool has_scale = false;            ///< it says scale or offset, even if they change nothing
  bool is_packed() const { return has_scale || !missing.empty(); }
};

/// The samples of one shard: the place of the images or tokens, and the labels or the place of the
/// targets.
struct ShardIndex {
  std::string path;
  io::FileStamp stamp;                 ///< of the file when it was indexed
  io::StoredDataset rows;              ///< /images, /bytes or /tokens
  std::vector<std::int32_t> labels;    ///< images: one for each sample
  std::vector<std::uint64_t> offsets;  ///< encoded images: of their files in `rows`, and the end
  ShardChecksums checksums;            ///< no values unless they were asked for
  bool is_of_other_program = false;    ///< it is no shard of Trireme
  std::vector<ArrayVariable> inputs = {};  ///< in place of `rows`, with the following
  /// In place of `labels`, unless the target is one class of a sample.
  std::vector<ArrayVariable> targets = {};
  /// Returns the first dataset of the samples.
  const io::StoredDataset& samples() const { return inputs.empty() ? rows : inputs.front().rows; }
  /// Returns the bytes of the samples, unpacked.
  std::int64_t bytes() const;
};

/// Everything that a rank needs to read a folder of shards. One rank makes it; the others receive
/// it and open a file only to read samples.
struct DatasetIndex {
  std::string folder;  ///< or file, pattern, or the first of several places and how many follow
  DatasetInfo info;    ///< what follows from the shards together: no samples, no shard names
  std::vector<ShardIndex> shards;
};

/// Reads the headers and labels of all shards of a folder. The files are untrusted: a child process
/// opens them (io/hdf5/hdf5_index.hpp), so one rank calls this.
///
/// `form.arrays`: if it is used, the files are those of another program, or shards that were made
/// from such with this table; `place` may also name one file or be a pattern with * and ?.
/// `form.target`: what they have as targets.
///
/// Checks the heads of seals, the document offsets, that each label is a class, and that the shards
/// agree: kind, extents, vocabulary, classes. Reads no images and tokens. Throws InputError that
/// names the folder, file and dataset. `with_checksums`: reads /checksums too, which every shard
/// must have then.
DatasetIndex index_dataset(const std::string& place, const SampleForm& form = {},
                           bool with_checksums = false);
/// The same for several places, whose shards follow each other and must agree.
DatasetIndex index_dataset(const std::vector<std::string>& places, const SampleForm& form = {},
                           bool with_checksums = false);

/// Converts an index to bytes and back, to broadcast it.
std::string to_bytes(const DatasetIndex& index);
DatasetIndex dataset_index_from_bytes(const std::string& bytes);

}  // namespace trireme::data
