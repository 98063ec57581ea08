// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"

namespace trireme::checkpoint {

/// Returns all tensors of a checkpoint with digests computed from the values in the file (as
/// float32). Ignores the digests that the file stores. Reads every tensor; called by one rank.
/// Throws InputError if the file cannot be read.
std::vector<Contents::Entry> compute_digests(const io::Hdf5Reader& reader);

/// Compares stored with computed digests. Returns "" if they agree, else a message for the first
/// tensor that differs.
std::string compare_digests(const Contents& contents, const std::vector<Contents::Entry>& computed);

/// Checks the values of each tensor against its digest. Returns "" if they agree, "no checksums"
/// for a file without digests, else the damage. Reads every tensor; called by one rank. Throws
/// InputError if the file is not a checkpoint.
std::string verify_values(const io::Hdf5Reader& reader);

/// Reads one tensor (by its path in the file) as float32 in file order. Throws InputError if it
/// cannot be read.
std::vector<float> read_tensor(const io::Hdf5Reader& reader, const std::string& tensor);

}  // namespace trireme::checkpoint
