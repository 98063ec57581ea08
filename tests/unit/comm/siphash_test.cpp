// SPDX-License-Identifier: Apache-2.0
//
// Tests comm::siphash() against the vectors that its authors published.
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "comm/datagrams/siphash.hpp"

namespace trireme::comm {
namespace {

/// Returns the bytes 0, 1, 2 ...
std::vector<std::byte> counted_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

SipKey counted_key() {
  SipKey key{};
  const std::vector<std::byte> bytes = counted_bytes(key.size());
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return key;
}

/// vectors_sip64 of the reference implementation (github.com/veorq/SipHash) at these lengths:
/// empty, within a word, at its end, behind it. The vector of 15 bytes is appendix A of the paper.
TEST(SipHash, HasThePublishedVectors) {
  const std::vector<std::pair<std::size_t, std::uint64_t>> vectors = {
      {0, 0x726fdb47dd0e0e31},  {1, 0x74f839c593dc67fd},  {2, 0x0d6c8009d9a94f5a},
      {3, 0x85676696d7fb7e2d},  {4, 0xcf2794e0277187b7},  {5, 0x18765564cd99a68d},
      {6, 0xcbc9466e58fee3ce},  {7, 0xab0200f58b01d137},  {8, 0x93f5f5799a932462},
      {9, 0x9e0082df0ba9e4b0},  {10, 0x7a5dbbc594ddb9f3}, {11, 0xf4b32f46226bada7},
      {12, 0x751e8fbc860ee5fb}, {13, 0x14ea5627c0843d90}, {14, 0xf723ca908e7af2ee},
      {15, 0xa129ca6149be45e5}, {16, 0x3f2acc7f57c29bdb}, {17, 0x699ae9f52cbe4794},
      {31, 0x32d892fad841c342}, {32, 0x7127512f72f27cce}, {33, 0xa7f32346f95978e3}};
  for (const auto& [length, code] : vectors)
    EXPECT_EQ(siphash(counted_key(), counted_bytes(length)), code) << length;
}

TEST(SipHash, DependsOnEveryBitOfKeyAndMessage) {
  const std::vector<std::byte> message = counted_bytes(21);
  std::set<std::uint64_t> codes{siphash(counted_key(), message)};
  for (std::size_t bit = 0; bit < 128; ++bit) {
    SipKey key = counted_key();
    key[bit / 8] ^= std::byte{1} << (bit % 8);
    codes.insert(siphash(key, message));
  }
  for (std::size_t bit = 0; bit < 8 * message.size(); ++bit) {
    std::vector<std::byte> changed = message;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    codes.insert(siphash(counted_key(), changed));
  }
  EXPECT_EQ(codes.size(), 1 + 128 + 8 * message.size());
}

TEST(SipHash, KeysDiffer) { EXPECT_NE(secret_key(), secret_key()); }

}  // namespace
}  // namespace trireme::comm
