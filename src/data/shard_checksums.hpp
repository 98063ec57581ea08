#pragma once

#include <cstdint>
#include <string>

#include "image_shard.hpp"
#include "token_shard.hpp"
#include "trireme/io/hdf5_values.hpp"

namespace trireme::data {

/// Reads all samples of a shard and compares each block with /checksums, which the shard has.
/// `samples`: images, or tokens. Returns "" or a description of the first block that differs.
/// Throws InputError if the samples or the checksums cannot be read.
std::string compare_checksums(const io::Hdf5Reader& reader, const ImageShard& shard,
                              std::int64_t samples);
std::string compare_checksums(const io::Hdf5Reader& reader, const TokenShard& shard,
                              std::int64_t samples);

}  // namespace trireme::data
