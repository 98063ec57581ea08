// SPDX-License-Identifier: Apache-2.0
#include "text_decoder.hpp"

#include <algorithm>

namespace trireme::train {

ReplicaOptions::Generation plan_generation(std::int64_t prompt_tokens, std::int64_t tokens,
                                           std::int64_t context) {
  const std::int64_t computed = prompt_tokens + tokens - 1;
  const bool has_cache = tokens > 1 && prompt_tokens < context;
  return {.prompt_rows = std::min(prompt_tokens, context),
          .cached_rows = has_cache ? std::min(computed, context) : 0,
          .slides = computed > context};
}

TextDecoder::TextDecoder(Replica& replica)
    : replica_(replica),
      generation_(*replica.options().generation),
      context_(replica.options().context()),
      window_(static_cast<std::size_t>(context_)) {}

Tensor TextDecoder::next_logits(std::span<const std::int32_t> text) {
  const auto length = static_cast<std::int64_t>(text.size());
  TRIREME_EXPECT(length > 0 && (computed_ == 0 || length == computed_ + 1));
  // 1. The positions that are computed.
  const bool reads_cache = computed_ > 0 && length <= generation_.cached_rows;
  const std::int64_t seen = std::min(context_, length), first = reads_cache ? seen - 1 : 0;
  const std::int64_t rows = seen - first;
  TRIREME_EXPECT(computed_ > 0 || rows == generation_.prompt_rows);
  computed_ = length;
  // 2. Their tokens.
  std::copy(text.end() - rows, text.end(), window_.begin());
  return replica_.stage().logits({window_.data(), DType::int32, DeviceKind::cpu, {1, rows}},
                                 rows - 1, first);
}

}  // namespace trireme::train
