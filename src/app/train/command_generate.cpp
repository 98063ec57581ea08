// SPDX-License-Identifier: Apache-2.0
//
// `trireme generate`: continues a text with a language model, on one process. Prints each token at
// once.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "app/commands.hpp"
#include "app/files/weights_option.hpp"
#include "trireme/base/log.hpp"
#include "trireme/device/device.hpp"
#include "trireme/train/inference/generate.hpp"

namespace trireme::app {

void add_generate(CommandLine& line) {
  Command command = line.add("generate", "Continue a text by a language model");
  const auto request = std::make_shared<train::GenerateRequest>();
  command.option("CHECKPOINT", request->checkpoint, "A checkpoint of a language model").required();
  command.option("--prompt", request->prompt, "The text to continue").type_name("TEXT").required();
  command.option("--tokens", request->tokens, "Tokens to add at most; the end of a text ends it")
      .range(1, std::int64_t{1} << 30)
      .default_shown();
  command
      .option("--temperature", request->temperature,
              "Below 1 likelier tokens are drawn more often; 0: always the likeliest")
      .range_of_reals(0, 1000)
      .default_shown();
  command.option("--top-k", request->top_k, "Draw among the likeliest k tokens; 0: among all")
      .range(0, std::int64_t{1} << 30)
      .default_shown();
  command.option("--seed", request->seed, "Another seed draws another text").default_shown();
  command
      .option("--tokenizer", request->tokenizer,
              "\"bytes\" or a SentencePiece model; default: that of the training set")
      .type_name("bytes|FILE.model");
  add_weights_option(command, request->weights, "the average where the checkpoint has one");
  command.footer(
      "Example:\n  trireme generate runs/bible/checkpoints/best.h5 --prompt \"In the beginning\" "
      "--tokens 200");
  command.set_single_rank_action([request] {
    const KokkosScope kokkos;
    Log log;
    const train::GenerateTimes times = train::generate(*request, log, [](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    });
    std::fputc('\n', stdout);
    std::fflush(stdout);
    log.info("first token after {:.3f} s", times.first_token_seconds);
    if (times.tokens > 1)
      log.info("later tokens: {:.1f} tokens/s",
               static_cast<double>(times.tokens - 1) / times.later_seconds);
    return ExitCode::done;
  });
}

}  // namespace trireme::app
