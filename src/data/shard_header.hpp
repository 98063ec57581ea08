#pragma once

#include <string>

#include "trireme/data/dataset_index.hpp"
#include "trireme/data/shard.hpp"
#include "trireme/io/hdf5_values.hpp"

namespace trireme::data {

/// Checks the seal of a shard, if it has one, against itself and the size of the file. Reads only
/// the user block. Returns whether there is a seal. Throws InputError.
bool check_seal_head(const std::string& path);

/// Returns the description of an indexed shard, without `sealed`; see describe_shard().
ShardDescription read_header(const io::Hdf5Index& file);

/// Checks that the document offsets of a shard, if it has any, ascend from 0 to its token count.
/// Throws InputError.
void check_document_offsets(const io::Hdf5Reader& reader, const ShardDescription& shard);

/// Returns the place of a shard's samples, with the labels. Throws InputError if a label is not a
/// class, or if this program cannot read the kind of shard.
ShardIndex index_shard(const io::Hdf5Reader& reader, const ShardDescription& shard);

}  // namespace trireme::data
