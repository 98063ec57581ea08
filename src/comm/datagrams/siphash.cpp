// SPDX-License-Identifier: Apache-2.0
#include "siphash.hpp"

#include <bit>
#include <cerrno>
#include <cstring>

#include <sys/random.h>

#include "trireme/base/check.hpp"

namespace trireme::comm {
namespace {

/// Reads 64 bits in little-endian order.
std::uint64_t load(const std::byte* from) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

/// The internal state v0 to v3 of the paper.
struct SipState {
  std::uint64_t v0, v1, v2, v3;

  void round() {
    v0 += v1;
    v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32);
    v2 += v1;
    v0 += v3;
    v1 = std::rotl(v1, 17) ^ v2;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  }
  void compress(std::uint64_t word) {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }
};

}  // namespace

SipKey secret_key() {
  SipKey key{};
  // Reads of up to 256 bytes are never partial.
  ensure(::getrandom(key.data(), key.size(), 0) == static_cast<ssize_t>(key.size()),
         "getrandom() failed: {}", std::strerror(errno));
  return key;
}

std::uint64_t siphash(const SipKey& key, std::span<const std::byte> message) {
  const std::uint64_t k0 = load(key.data()), k1 = load(key.data() + 8);
  // "somepseudorandomlygeneratedbytes"
  SipState state{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261,
                 k1 ^ 0x7465646279746573};
  // 1. Whole words, then the remaining bytes with the length in the highest byte.
  std::size_t at = 0;
  for (; at + 8 <= message.size(); at += 8) state.compress(load(message.data() + at));
  std::array<std::byte, 8> last{};
  if (at < message.size()) std::memcpy(last.data(), message.data() + at, message.size() - at);
  last.back() = static_cast<std::byte>(message.size());
  state.compress(load(last.data()));
  // 2. Four rounds of finalization.
  state.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) state.round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

}  // namespace trireme::comm
