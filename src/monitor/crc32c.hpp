// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace trireme::monitor {

/// Returns the CRC-32C checksum (Castagnoli, RFC 3720 appendix B.4) of `bytes`.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace trireme::monitor
