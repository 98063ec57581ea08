// SPDX-License-Identifier: Apache-2.0
#include "trireme/base/philox.hpp"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace trireme {
namespace {

void expect_words(const RandomWords& words, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                  std::uint32_t d) {
  EXPECT_EQ(words.word[0], a);
  EXPECT_EQ(words.word[1], b);
  EXPECT_EQ(words.word[2], c);
  EXPECT_EQ(words.word[3], d);
}

// From the file kat_vectors of Random123, lines "philox4x32 10".
TEST(Philox, KnownAnswers) {
  expect_words(philox(0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  expect_words(philox(~0ull, ~0ull, ~0ull), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
  // The digits of pi: counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0.
  expect_words(philox(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull),
               0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(Philox, UniformNumbersStayInTheirRange) {
  EXPECT_EQ(uniform_unit(0), 0.0f);
  EXPECT_LT(uniform_unit(~0u), 1.0f);
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const double u = uniform_at(7, i);
    EXPECT_GE(u, 0.0);
    EXPECT_LT(u, 1.0);
  }
}

// The mean of n standard normals has standard deviation 1/sqrt(n), their variance sqrt(2/n). Five
// deviations fail once in a million keys.
TEST(Philox, NormalNumbersHaveMeanZeroAndVarianceOne) {
  constexpr int count = 100000;
  double sum = 0, squares = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const double x = normal_at(random_key(1, "init/test"), i);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / count, 0.0, 5 / std::sqrt(count));
  EXPECT_NEAR(squares / count, 1.0, 5 * std::sqrt(2.0 / count));
}

TEST(Philox, KeysDependOnSeedAndName) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 100; ++seed)
    for (const char* name : {"augment", "shuffle", "init/conv1.weight", "init/conv2.weight"})
      keys.insert(random_key(seed, name));
  EXPECT_EQ(keys.size(), 400u);
}

}  // namespace
}  // namespace trireme
