#pragma once

#include <string>

#include "trireme/data/shard.hpp"
#include "trireme/io/hdf5_values.hpp"

namespace trireme::data {

/// Reads all samples of a shard of images or tokens and compares each block with /checksums,
/// which the shard has. Returns "" or a description of the first block that differs. Throws
/// InputError if the samples or the checksums cannot be read.
std::string compare_checksums(const io::Hdf5Reader& reader, const ShardDescription& header);

}  // namespace trireme::data
