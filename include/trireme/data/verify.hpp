#pragma once

#include <string>

namespace trireme::data {

/// Checks the content of a shard against its /checksums. `trireme verify` calls it, on one process.
///
/// Without checksums it only reads all data. Tokens are compared with the vocabulary in both cases.
/// Returns "" if the shard is intact, "no checksums" if the file has none (another program wrote
/// it), else the problem with its block and samples. Throws InputError if the file is not a
/// readable shard.
std::string verify_shard(const std::string& path);

}  // namespace trireme::data
