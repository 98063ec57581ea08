#pragma once

#include <string>

namespace trireme::data {

/// Checks a shard against its /checksums, block by block. Returns "" when whole, "no checksums" where the file has none (another program
/// made it), else what is wrong and where: which block, which samples. Throws InputError where the file is no shard that can be read.
std::string verify_shard(const std::string& path);

}  // namespace trireme::data
