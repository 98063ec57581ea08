#pragma once

#include <string>

#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// Info as bytes and back: what goes into a file's metadata must be the same on all ranks, so rank
/// 0's is sent to the others.
std::string to_bytes(const Info& info);
Info info_from_bytes(const std::string& bytes);

/// Likewise of all that a file says of itself.
std::string to_bytes(const Contents& contents);
Contents contents_from_bytes(const std::string& bytes);

}  // namespace trireme::checkpoint
