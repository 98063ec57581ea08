#pragma once

#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/io/seal.hpp"

namespace trireme::checkpoint {

/// Returns all tensors of a checkpoint with digests computed from the values in the file (as
/// float32). Ignores the digests that the file stores. Reads every tensor; called by one rank.
/// Throws InputError if the file cannot be read.
std::vector<Contents::Entry> compute_digests(const std::string& path);

/// Compares stored with computed digests. Returns "" if they agree, else a message for the first
/// tensor that differs.
std::string compare_digests(const Contents& contents, const std::vector<Contents::Entry>& computed);

/// Checks the seal, then the values of each tensor against its digest. `check` is head if the
/// caller has compared every byte with the seal.
///
/// Returns "" for an intact file, "no seal" if only digests could be compared, "no checksums" for a
/// file without seal and digests, else the damage and its place. Reads the file twice; called by
/// one rank. Throws InputError if the file is not a checkpoint.
std::string verify_checkpoint(const std::string& path,
                              io::SealCheck check = io::SealCheck::every_byte);

/// Reads one tensor (by its path in the file) as float32 in file order. Throws InputError if it
/// cannot be read.
std::vector<float> read_tensor(const std::string& path, const std::string& tensor);

}  // namespace trireme::checkpoint
