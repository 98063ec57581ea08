#pragma once

#include "trireme/data/shard.hpp"
#include "trireme/io/hdf5.hpp"

namespace trireme::data {

/// Returns the description of an open shard; see describe_shard().
ShardDescription read_header(const io::Hdf5File& file);

/// Checks that the document offsets of a shard, if it has any, ascend from 0 to its token count.
/// Training does not use them, so describe_shard() and probe_shards() check them and the ranks that
/// open the shard do not. Throws InputError.
void check_document_offsets(const io::Hdf5File& file, const ShardDescription& shard);

}  // namespace trireme::data
