#pragma once

#include "attention_products.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::ops::cpu {

/// Factors of a tile's attention probabilities under dropout: 0, or 1 / (1 - p). Elements are
/// numbered along the keys, vectors hold queries: one Philox call a query gives four keys, or parts
/// of two such fours where a row of probabilities does not begin at a multiple of four.
class DropoutTile {
 public:
  static constexpr int counters = tile / 4 + 1;
  static constexpr int word_elements = counters * 4 * 16;  ///< of the scratch `words`

  /// keep [tile keys, tile queries]; `first_element`: number of the element (query 0, key 0) of the
  /// tile, `row`: elements from a query to the next.
  static void draw(std::uint64_t key, float probability, std::uint64_t first_element,
                   std::uint64_t row, std::uint32_t* words, float* keep) {
    const float scale = 1.0f / (1.0f - probability);
    for (int q = 0; q < tile; q += 16) {
      std::uint64_t element[16];  // number of key 0's probability
      std::uint32_t phase[16];    // its word in its counter's four
      for (int lane = 0; lane < 16; ++lane) {
        element[lane] = first_element + static_cast<std::uint64_t>(q + lane) * row;
        phase[lane] = static_cast<std::uint32_t>(element[lane] % 4);
      }
      for (int counter = 0; counter < counters; ++counter) {
        for (int lane = 0; lane < 16; lane += lanes / 2) {
          philox_words(
              key, (load<LongVector>(element + lane) >> 2) + static_cast<std::uint64_t>(counter),
              words + counter * 4 * 16 + lane);
        }
      }
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
  /// philox() at several counters: word w of lane i is words[w * 16 + i]. Of a number's 64 bits the
  /// upper half is anything until the end.
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
