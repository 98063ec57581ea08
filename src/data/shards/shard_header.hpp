// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/data/shards/shard.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"

namespace trireme::data {

/// Checks the seal of a shard, if it has one, against itself and the size of the file. Reads only
/// the user block. Returns whether there is a seal. Throws InputError.
bool check_seal_head(const std::string& path);

/// Returns the description of an indexed shard, without `sealed`; see describe_shard().
ShardDescription read_header(const io::Hdf5Reader& reader);

// Parts of the header that kinds share.

/// Returns the length of a dataset with one dimension. Throws InputError if it has more.
std::int64_t length_of(const io::Hdf5Index& file, const std::string& name);
/// Returns the word for the storage of a dataset in descriptions.
const char* storage_of(const io::StoredDataset& dataset);

}  // namespace trireme::data
