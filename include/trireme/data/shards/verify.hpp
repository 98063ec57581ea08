// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::data {

/// Checks the samples of a shard against /checksums, and its tokens against the vocabulary. Reads
/// all samples. Returns "" if they agree, "no checksums" for a shard without them that can be read,
/// else the problem and its place. Throws InputError if the file is not a readable shard.
std::string verify_shard(io::Hdf5Index file);

/// Checks the seal of a shard over every byte, then its samples. Returns the results of
/// io::with_seal().
std::string verify_shard(const std::string& path);

}  // namespace trireme::data
