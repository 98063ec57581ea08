// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace trireme::data {

/// Lets every packed source of this process unpack to `bytes` (--max-unpacked). Without this, to
/// 1 GB or 200 times its own size, whichever is more.
void allow_unpacked_bytes(std::int64_t bytes);

/// Throws InputError if a packed source has unpacked to more than it may: a small file of repeated
/// bytes could fill a disk. `packed`: its size, `unpacked`: the bytes so far.
void check_unpacked_bytes(const std::string& path, std::int64_t packed, std::int64_t unpacked);

}  // namespace trireme::data
