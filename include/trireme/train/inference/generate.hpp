// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "trireme/base/log.hpp"
#include "trireme/checkpoint/weights/import_export.hpp"
#include "trireme/model/options.hpp"

namespace trireme::train {

/// The arguments of `trireme generate`.
struct GenerateRequest {
  std::string checkpoint, prompt;
  /// "bytes" or the path of a SentencePiece model. Empty: the tokenizer of the training set, or
  /// bytes if the training set is missing and the checkpoint says that tokens are bytes, or says
  /// nothing and the vocabulary is 256.
  std::string tokenizer;
  std::int64_t tokens = 256;  ///< Number of tokens to generate at most.
  double temperature = 0.8;   ///< 0: always the most probable token.
  std::int64_t top_k = 0;     ///< Draws among the k most probable tokens; 0: among all.
  std::uint64_t seed = 1;
  checkpoint::Weights weights = checkpoint::Weights::evaluated;
};

/// How long generate() computed: the prompt with the first token, and all later tokens.
struct GenerateTimes {
  std::int64_t tokens = 0;  ///< Generated, with that at the end of a text.
  double first_token_seconds = 0, later_seconds = 0;
};

/// Returns the rows of a checkpoint's token embedding; 0 if it has none.
std::int64_t stored_vocabulary(const model::ModelOptions& model,
                               const checkpoint::Contents& contents);

/// Continues the prompt with the language model of a checkpoint, on one rank.
///
/// Logs the memory that it needs. Calls `emit` with the prompt and then with each new piece of
/// text. Stops at the end-of-text token of the training set, if its folder is there and has one,
/// and no other tokenizer is asked for. The model sees the last `context` tokens. Equal requests
/// produce equal text. Throws InputError if the checkpoint holds no language model, no tokenizer is
/// found, or the prompt has no token.
GenerateTimes generate(const GenerateRequest& request, Log& log,
                       const std::function<void(std::string_view)>& emit);

}  // namespace trireme::train
