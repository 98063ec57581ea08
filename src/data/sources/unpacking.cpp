// SPDX-License-Identifier: Apache-2.0
#include "trireme/data/sources/unpacking.hpp"

#include <algorithm>
#include <atomic>

#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

// Data of real sources are packed to a hundredth at most.
constexpr std::int64_t always_unpacked_bytes = 1'000'000'000, max_packing_ratio = 200;
std::atomic<std::int64_t> allowed_bytes = always_unpacked_bytes;

}  // namespace

void allow_unpacked_bytes(std::int64_t bytes) {
  allowed_bytes = std::max(bytes, always_unpacked_bytes);
}

void check_unpacked_bytes(const std::string& path, std::int64_t packed, std::int64_t unpacked) {
  validate(unpacked <= allowed_bytes || unpacked / max_packing_ratio <= packed,
           "{}: {} bytes unpack to {} bytes and more, over {} times as many; if that is right, "
           "allow it with --max-unpacked SIZE, as in --max-unpacked 100GB",
           path, packed, unpacked, max_packing_ratio);
}

}  // namespace trireme::data
