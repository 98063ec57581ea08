// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// Converts metadata to bytes and back. All ranks must write the same metadata, so rank 0
/// broadcasts its own.
std::string to_bytes(const Info& info);
Info info_from_bytes(const std::string& bytes);

/// Converts the contents of a file to bytes and back.
std::string to_bytes(const Contents& contents);
Contents contents_from_bytes(const std::string& bytes);

/// Returns the contents of rank 0 on all ranks. Rank 0 keeps its index of the file. Collective.
Contents broadcast_contents(const comm::Communicator& world, Contents contents);

}  // namespace trireme::checkpoint
