#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "trireme/checkpoint/import_export.hpp"

namespace trireme::train {

/// What `trireme generate` is asked for.
struct GenerateRequest {
  std::string checkpoint, prompt;
  std::string tokenizer;  ///< "bytes" or a SentencePiece model; empty: that of the training set,
                          ///< else bytes where the vocabulary is 256
  std::int64_t tokens = 256;  ///< at most
  double temperature = 0.8;   ///< 0: always the likeliest token
  std::int64_t top_k = 0;     ///< draws among the likeliest k; 0: among all
  std::uint64_t seed = 1;
  checkpoint::Weights weights = checkpoint::Weights::evaluated;
};

/// Continues the prompt by a language model's checkpoint, on one rank; `emit` gets the text as it
/// grows, the prompt first. Only the last `context` tokens are seen. The same request gives the
/// same text. Throws InputError: no language model, no tokenizer, a prompt without a token.
void generate(const GenerateRequest& request, const std::function<void(std::string_view)>& emit);

}  // namespace trireme::train
