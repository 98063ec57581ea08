// SPDX-License-Identifier: Apache-2.0
//
// Tests generation with cached keys and values (train/inference/text_decoder.hpp): it continues a
// text as the computation of all positions does, for each form of transformer, and takes the
// planned memory.
#include "train/inference/text_decoder.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "support/replica.hpp"

namespace trireme::train {
namespace {

constexpr std::int64_t context = 24;

ReplicaOptions gpt2(DType compute) {
  ReplicaOptions options = test::small_gpt(2, 32);
  options.model.as<model::TransformerOptions>().context = context;
  options.compute = compute;
  return options;
}

/// Rotary positions, and two key/value heads for four heads.
ReplicaOptions llama(DType compute) {
  ReplicaOptions options = gpt2(compute);
  test::make_llama(options.model);
  return options;
}

/// Another base of rotary positions, and another epsilon of norms.
ReplicaOptions other_numbers(ReplicaOptions options) {
  options.model.as<model::TransformerOptions>().rope_base = 50;
  options.model.as<model::TransformerOptions>().norm_epsilon = 0.01;
  return options;
}

std::vector<ReplicaOptions> all_forms() {
  return {gpt2(DType::float32),
          gpt2(DType::bfloat16),
          llama(DType::float32),
          llama(DType::bfloat16),
          other_numbers(gpt2(DType::float32)),
          other_numbers(llama(DType::float32)),
          other_numbers(llama(DType::bfloat16))};
}

/// A model that has learned to count for some steps, and the texts that it continues.
struct DecoderFixture {
  DecoderFixture(ReplicaOptions options, const ReplicaOptions::Generation& generation, int steps)
      : fixture((options.generation = generation, options)) {
    for (int step = 0; step < steps; ++step) fixture.step(0.02, step % 8);
  }

  /// Appends the likeliest token to the text, or `given`. Returns the logits.
  static std::vector<float> append(const Tensor& logits, std::vector<std::int32_t>& text,
                                   std::int32_t given = -1) {
    std::vector<float> row(logits.as<float>(), logits.as<float>() + logits.elements());
    const auto likeliest = std::max_element(row.begin(), row.end()) - row.begin();
    text.push_back(given >= 0 ? given : static_cast<std::int32_t>(likeliest));
    return row;
  }
  /// Computes the logits behind a text from the whole context, without reading the cache.
  Tensor logits_of_whole(const std::vector<std::int32_t>& text) {
    const auto seen = std::min<std::int64_t>(context, static_cast<std::int64_t>(text.size()));
    window.assign(static_cast<std::size_t>(context), 0);
    std::copy(text.end() - seen, text.end(), window.begin());
    return fixture.replica.stage().logits(
        {window.data(), DType::int32, DeviceKind::cpu, {1, context}}, seen - 1);
  }
  test::ReplicaFixture fixture;
  std::vector<std::int32_t> window;
};

std::string name_of(const ReplicaOptions& options) {
  return std::string(to_string(options.compute)) +
         (options.model.as<model::TransformerOptions>().positions == model::PositionKind::rope
              ? " llama"
              : " gpt2");
}

/// Continues a prompt beyond the context, with and without the cache.
void expect_same_text(const ReplicaOptions& options, std::int64_t prompt) {
  constexpr std::int64_t tokens = context + 6;
  std::vector<std::int32_t> text, expected_text;
  for (std::int64_t i = 0; i < prompt; ++i)
    text.push_back(static_cast<std::int32_t>(3 + 2 * i) % 37);
  expected_text = text;
  DecoderFixture model(options, plan_generation(prompt, tokens, context), 30);
  TextDecoder decoder(model.fixture.replica);
  std::vector<std::vector<float>> found, expected;
  for (int i = 0; i < tokens; ++i)
    found.push_back(DecoderFixture::append(decoder.next_logits(text), text));
  for (int i = 0; i < tokens; ++i)
    expected.push_back(DecoderFixture::append(model.logits_of_whole(expected_text), expected_text));
  EXPECT_EQ(text, expected_text);
  // Sums in another order: some units of the type's rounding error, of logits of order ten.
  const double tolerance = options.compute == DType::float32 ? 1e-4 : 0.25;
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (std::size_t c = 0; c < found[i].size(); ++c)
      ASSERT_NEAR(found[i][c], expected[i][c], tolerance) << "token " << i << ", class " << c;
  }
  EXPECT_EQ(model.fixture.replica.peaks(), model.fixture.plan);
}

TEST(TextDecoder, ContinuesATextAsWithoutTheCache) {
  for (const ReplicaOptions& options : all_forms()) {
    SCOPED_TRACE(name_of(options));
    expect_same_text(options, 7);
  }
}

TEST(TextDecoder, PromptsOfAnyLengthAreContinued) {
  for (const std::int64_t prompt : {std::int64_t{1}, context - 1, context, context + 5})
    expect_same_text(gpt2(DType::float32), prompt);
}

// The test of equal texts would not notice a cache that is never read.
TEST(TextDecoder, LaterTokensReadTheCache) {
  for (const ReplicaOptions& options : all_forms()) {
    SCOPED_TRACE(name_of(options));
    DecoderFixture model(options, plan_generation(3, 4, context), 0);
    const auto last_logits = [&](std::vector<std::int32_t> text) {
      TextDecoder decoder(model.fixture.replica);
      for (const std::int32_t given : {11, 12, 13})
        DecoderFixture::append(decoder.next_logits(text), text, given);
      return DecoderFixture::append(decoder.next_logits(text), text);
    };
    EXPECT_NE(last_logits({1, 2, 10}), last_logits({1, 5, 10}));
  }
}

TEST(TextDecoder, TheCacheHasARowForEachComputedPosition) {
  const auto cache_bytes = [](const ReplicaOptions& form, std::int64_t prompt,
                              std::int64_t tokens) {
    ReplicaOptions options = form;
    options.generation = plan_generation(prompt, tokens, context);
    return Replica::measure(options, {}, 0, DeviceKind::cpu).keys_values;
  };
  // 2 layers, keys and values: 32 numbers of each, or with grouped heads 16.
  EXPECT_EQ(cache_bytes(gpt2(DType::float32), 4, 6), 9 * 2 * 2 * 32 * 4);
  EXPECT_EQ(cache_bytes(llama(DType::float32), 4, 6), 9 * 2 * 2 * 16 * 4);
  EXPECT_EQ(cache_bytes(llama(DType::bfloat16), 4, 7), 10 * 2 * 2 * 16 * 2);
  EXPECT_EQ(cache_bytes(gpt2(DType::float32), 4, 100), context * 2 * 2 * 32 * 4);
  EXPECT_EQ(cache_bytes(gpt2(DType::float32), 4, 1), 0);
  EXPECT_EQ(cache_bytes(gpt2(DType::float32), context, 100), 0);
}

}  // namespace
}  // namespace trireme::train
