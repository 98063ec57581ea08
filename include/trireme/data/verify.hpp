#pragma once

#include <string>

#include "trireme/io/seal.hpp"

namespace trireme::data {

/// Checks a shard: its seal over every byte, then its samples against /checksums and its tokens
/// against the vocabulary. `trireme verify` calls it, on one process. `check` is head if the caller
/// has compared every byte with the seal.
///
/// Returns "" if the shard is intact, else the problem and its place. Of a shard without a seal
/// that has no problem it returns "no seal", or "no checksums" if it has none (another program
/// wrote it): attributes, class names and datasets without checksums were not checked. Throws
/// InputError if the file is not a readable shard.
std::string verify_shard(const std::string& path, io::SealCheck check = io::SealCheck::every_byte);

}  // namespace trireme::data
