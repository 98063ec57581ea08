#pragma once

#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// All tensors of a checkpoint with digests computed from the values that are really in the file
/// (as float32), whatever its attributes say. By one rank. Throws InputError where the file cannot
/// be read.
std::vector<Contents::Entry> compute_digests(const std::string& path);

/// Whether the digests that a file's contents say are those computed: "", else what is wrong.
std::string compare_digests(const Contents& contents, const std::vector<Contents::Entry>& computed);

/// Checks everything: the seal over every byte, then each tensor's values against its digest.
/// Returns "" when whole, "no checksums" for a file that has neither (another program made it),
/// else what is wrong and where. Throws InputError where it is no checkpoint.
std::string verify_checkpoint(const std::string& path);

/// All values of one tensor (its path in the file) as float32 in file order.
std::vector<float> read_tensor(const std::string& path, const std::string& tensor);

}  // namespace trireme::checkpoint
