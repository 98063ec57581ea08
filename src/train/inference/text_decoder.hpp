// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/train/step/replica.hpp"

namespace trireme::train {

/// Returns the forward passes that continue a prompt by `tokens` tokens, for ReplicaOptions. The
/// cache has a row for each position that is computed, up to `context`; the last token is not.
ReplicaOptions::Generation plan_generation(std::int64_t prompt_tokens, std::int64_t tokens,
                                           std::int64_t context);

/// Computes the logits of the next token of a text that grows by one token a call.
///
///   first call           all positions of the prompt; keys and values go to the cache
///   up to the context    the last token alone, with the cache
///   beyond the context   the last `context` tokens, because the position of each has changed
///
/// A prompt that fills the context has no cache.
class TextDecoder {
 public:
  /// The replica has ReplicaOptions::generation, and outlives the decoder.
  explicit TextDecoder(Replica& replica);
  /// Returns the logits behind `text`, float32 [1, classes] in device memory until the next call.
  /// At the first call `text` is the prompt; later it is one token longer than at the call before.
  Tensor next_logits(std::span<const std::int32_t> text);

 private:
  Replica& replica_;
  ReplicaOptions::Generation generation_;
  std::int64_t context_, computed_ = 0;  ///< computed_: positions of the last call
  std::vector<std::int32_t> window_;
};

}  // namespace trireme::train
