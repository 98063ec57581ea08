// SPDX-License-Identifier: Apache-2.0
//
// Results of single samples from their logits, on the host, and their exchange between ranks.
#include "trireme/train/scores/sample_result.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace trireme::train {
namespace {

/// Returns the logit as a number that can be ordered.
float ordered(float logit) {
  return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
}

/// Returns log(sum of exp(logit)).
double log_sum_of(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

std::int64_t rank_of(std::size_t label, std::span<const float> logits) {
  std::int64_t rank = 0;
  for (std::size_t c = 0; c < logits.size(); ++c)
    rank += c < label ? !(logits[c] < logits[label]) : !(logits[c] <= logits[label]);
  return rank;
}

}  // namespace

std::vector<std::int32_t> top_classes(std::span<const float> logits, std::size_t count) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float x = ordered(logits[static_cast<std::size_t>(a)]),
                                  y = ordered(logits[static_cast<std::size_t>(b)]);
                      return x != y ? x > y : a < b;
                    });
  order.resize(count);
  return order;
}

std::int32_t predicted_class(std::span<const float> logits) {
  std::size_t greatest = 0;
  for (std::size_t c = 0; c < logits.size(); ++c) {
    if (std::isnan(logits[c])) return -1;
    if (logits[c] > logits[greatest]) greatest = c;
  }
  return static_cast<std::int32_t>(greatest);
}

std::vector<double> probabilities_of(std::span<const float> logits) {
  const double log_sum = log_sum_of(logits);
  std::vector<double> probabilities;
  for (const float logit : logits) probabilities.push_back(std::exp(logit - log_sum));
  return probabilities;
}

SampleResult result_of(std::int64_t sample, std::int32_t label, std::span<const float> logits) {
  const auto of_label = static_cast<std::size_t>(label);
  const std::int32_t predicted = predicted_class(logits);
  const double log_sum = log_sum_of(logits);
  return {.sample = sample,
          .label = label,
          .predicted = predicted,
          .label_rank = rank_of(of_label, logits),
          .loss = log_sum - logits[of_label],
          .probability = predicted < 0
                             ? std::numeric_limits<double>::quiet_NaN()
                             : std::exp(logits[static_cast<std::size_t>(predicted)] - log_sum)};
}

Metrics metrics_of(std::span<const SampleResult> results) {
  double loss = 0, top1 = 0, top5 = 0;
  for (const SampleResult& result : results) {
    loss += result.loss;
    top1 += result.label_rank < 1;
    top5 += result.label_rank < 5;
  }
  const double count = std::max(1.0, static_cast<double>(results.size()));
  return {loss / count, top1 / count, top5 / count, std::ssize(results), std::ssize(results)};
}

std::vector<SampleResult> largest_losses(std::span<const SampleResult> results, std::size_t count) {
  std::vector<SampleResult> sorted(results.begin(), results.end());
  const auto key = [](const SampleResult& result) {
    return std::isnan(result.loss) ? std::numeric_limits<double>::infinity() : result.loss;
  };
  std::sort(sorted.begin(), sorted.end(), [&](const SampleResult& a, const SampleResult& b) {
    return key(a) != key(b) ? key(a) > key(b) : a.sample < b.sample;
  });
  sorted.resize(std::min(sorted.size(), count));
  return sorted;
}

std::vector<SampleResult> gather_results(const comm::Communicator& world,
                                         std::span<const SampleResult> mine) {
  // 1. All ranks send as many: the last ones of a rank are empty.
  std::vector<SampleResult> sent(mine.begin(), mine.end());
  sent.resize(static_cast<std::size_t>(world.all_reduce(std::ssize(mine), comm::Reduction::max)));
  std::vector<SampleResult> all(sent.size() * static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(sent)), std::as_writable_bytes(std::span(all)));
  // 2. The order of the dataset.
  std::erase_if(all, [](const SampleResult& result) { return result.sample < 0; });
  std::sort(all.begin(), all.end(),
            [](const SampleResult& a, const SampleResult& b) { return a.sample < b.sample; });
  return all;
}

}  // namespace trireme::train
