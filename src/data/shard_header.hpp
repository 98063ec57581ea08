#pragma once

#include "trireme/data/shard.hpp"
#include "trireme/io/hdf5.hpp"

namespace trireme::data {

/// What an open file says of itself; see describe_shard().
ShardDescription read_header(const io::Hdf5File& file);

/// Whether the offsets of a shard's documents, where it has any, ascend from 0 to its count of
/// tokens. Training needs none of them: they are read where a shard is looked over, not by each
/// rank that opens it. Throws InputError.
void check_document_offsets(const io::Hdf5File& file, const ShardDescription& shard);

}  // namespace trireme::data
