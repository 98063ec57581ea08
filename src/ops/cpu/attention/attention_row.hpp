// SPDX-License-Identifier: Apache-2.0
#pragma once

// Attention of one query of one head over cached keys and values. Sums of scores and outputs run
// along the head's width, which is contiguous in memory, so each key and value is read once.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attention_products.hpp"
#include "attention_scratch.hpp"
#include "ops/cpu/vector.hpp"
#include "trireme/kernels/types.hpp"
#include "trireme/ops/attention.hpp"

namespace trireme::ops::cpu {

/// Keys and values of one head: `count` rows of `width` elements, `stride` apart.
template <class T>
struct CachedHead {
  const T *keys, *values;
  std::int64_t stride, count, width;
};

/// A thread's arrays for attend_row(): query and out [width], scores [context, rounded up to
/// lanes].
struct RowScratch {
  float *query, *out, *scores;
  std::int64_t bytes;
  RowScratch(const Attention& a, ScratchAllocator allocator)
      : query(allocator.allocate<float>(a.head_width)),
        out(allocator.allocate<float>(a.head_width)),
        scores(allocator.allocate<float>((a.context + lanes - 1) / lanes * lanes)),
        bytes(allocator.bytes()) {}
};

/// Turns scores (in units of log 2) into probabilities relative to their maximum. Returns the sum
/// of the probabilities. The scores end at a multiple of `lanes`.
inline float softmax_row(float* scores, std::int64_t count, float maximum) {
  const std::int64_t end = (count + lanes - 1) / lanes * lanes;
  std::fill(scores + count, scores + end, -std::numeric_limits<float>::infinity());
  Vector sums{};
  for (std::int64_t k = 0; k < end; k += lanes) {
    const Vector p = exp2_of(load(scores + k) - maximum);
    store(scores + k, p);
    sums += p;
  }
  float sum = 0;
  for (int i = 0; i < lanes; ++i) sum += sums[i];
  return sum;
}

/// Writes out [width] = softmax(scale K q)^T V. Returns the log of the sum of exp(score).
template <class T>
float attend_row(const CachedHead<T>& head, const T* query, float scale, const RowScratch& scratch,
                 T* out) {
  float *const q = scratch.query, *const sums = scratch.out, *const scores = scratch.scores;
  // 1. Scores, in units of log 2, and their maximum.
  for (std::int64_t i = 0; i < head.width; ++i) q[i] = to_float(query[i]) * (scale * log2_e);
  float maximum = -std::numeric_limits<float>::infinity();
  for (std::int64_t k = 0; k < head.count; ++k) {
    const T* const key = head.keys + k * head.stride;
    float score = 0;
#pragma omp simd reduction(+ : score)
    for (std::int64_t i = 0; i < head.width; ++i) score += q[i] * to_float(key[i]);
    scores[k] = score;
    maximum = std::max(maximum, score);
  }
  // 2. Probabilities, and the mean of the values that they weight.
  const float sum = softmax_row(scores, head.count, maximum);
  std::fill_n(sums, head.width, 0.0f);
  for (std::int64_t k = 0; k < head.count; ++k) {
    const T* const value = head.values + k * head.stride;
    const float p = scores[k];
#pragma omp simd
    for (std::int64_t i = 0; i < head.width; ++i) sums[i] += p * to_float(value[i]);
  }
  for (std::int64_t i = 0; i < head.width; ++i) out[i] = from_float<T>(sums[i] / sum);
  return maximum / log2_e + std::log(sum);
}

}  // namespace trireme::ops::cpu
