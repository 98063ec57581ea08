// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_products.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::ops::cpu {

/// Dropout factors of a tile of attention probabilities: 0, or 1 / (1 - p).
///
/// Random numbers are indexed along the keys, but vectors hold queries. One Philox call makes four
/// numbers, of four adjacent keys of a query. If a row of probabilities does not begin at a
/// multiple of four, its first four keys need parts of two calls. So all counters that a tile
/// touches are drawn first into `words`, and each key then selects its word.
class DropoutTile {
 public:
  /// Philox counters that the 64 keys of a row can touch.
  static constexpr int counters = tile / 4 + 1;
  /// Size of the scratch `words` for 16 queries.
  static constexpr int word_elements = counters * 4 * 16;

  /// Writes keep [tile keys, tile queries]. `first_element`: index of the probability (query 0, key
  /// 0) of the tile. `row`: indices from one query to the next.
  static void draw(std::uint64_t key, float probability, std::uint64_t first_element,
                   std::uint64_t row, std::uint32_t* words, float* keep) {
    const float scale = 1.0f / (1.0f - probability);
    for (int q = 0; q < tile; q += 16) {
      std::uint64_t element[16];  // index of the probability of key 0
      std::uint32_t phase[16];    // its word among the four of its counter
      for (int lane = 0; lane < 16; ++lane) {
        element[lane] = first_element + static_cast<std::uint64_t>(q + lane) * row;
        phase[lane] = static_cast<std::uint32_t>(element[lane] % 4);
      }
      // 1. All words of these queries, each counter once.
      for (int counter = 0; counter < counters; ++counter) {
        for (int lane = 0; lane < 16; lane += lanes / 2) {
          philox_words(
              key, (load<LongVector>(element + lane) >> 2) + static_cast<std::uint64_t>(counter),
              words + counter * 4 * 16 + lane);
        }
      }
      // 2. Key k takes word k + phase.
      for (int k = 0; k < tile; ++k) {
        const std::uint32_t* from = words + k * 16;
#pragma omp simd
        for (int lane = 0; lane < 16; ++lane) {
          const std::uint32_t early = phase[lane] == 0 ? from[lane] : from[16 + lane],
                              late = phase[lane] == 2 ? from[32 + lane] : from[48 + lane];
          keep[k * tile + q + lane] =
              uniform_unit(phase[lane] < 2 ? early : late) >= probability ? scale : 0.0f;
        }
      }
    }
  }

 private:
  /// philox() of several counters at once: word w of lane i is words[w * 16 + i]. The upper 32 bits
  /// of each 64-bit number are not maintained; the final conversion drops them.
  static void philox_words(std::uint64_t key, LongVector counter, std::uint32_t* words) {
    LongVector c0 = counter, c1 = counter >> 32, c2{}, c3{};
    std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const LongVector p0 = multiply_low_halves(c0, 0xD2511F53u),
                       p1 = multiply_low_halves(c2, 0xCD9E8D57u);
      c0 = (p1 >> 32) ^ c1 ^ k0;
      c2 = (p0 >> 32) ^ c3 ^ k1;
      c1 = p1;
      c3 = p0;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    using Half = std::uint32_t __attribute__((vector_size(vector_bytes / 2)));
    const LongVector all[] = {c0, c1, c2, c3};
    for (int w = 0; w < 4; ++w) store(words + w * 16, __builtin_convertvector(all[w], Half));
  }
};

}  // namespace trireme::ops::cpu
