#pragma once

#include <string>

namespace trireme::data {

/// Checks a shard against its /checksums, block by block; where there are none, whether all of it
/// can be read; and whether its tokens are of its vocabulary. Returns "" when whole, "no checksums"
/// where the file has none (another program made it), else what is wrong and where: which block,
/// which samples. By one process. Throws InputError where the file is no shard that can be read.
std::string verify_shard(const std::string& path);

}  // namespace trireme::data
