#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "commands.hpp"
#include "weights_option.hpp"
#include "trireme/device/device.hpp"
#include "trireme/train/generate.hpp"

namespace trireme::app {

void add_generate(CLI::App& root, Run& run) {
  CLI::App* command = root.add_subcommand("generate", "Continue a text by a language model");
  const auto request = std::make_shared<train::GenerateRequest>();
  command->add_option("CHECKPOINT", request->checkpoint, "A checkpoint of a language model")->required();
  command->add_option("--prompt", request->prompt, "The text to go on from")->type_name("TEXT")->required();
  command->add_option("--tokens", request->tokens, "Tokens to add")->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))->capture_default_str();
  command->add_option("--temperature", request->temperature, "Below 1 likelier tokens are drawn more often; 0: always the likeliest")->check(CLI::Range(0.0, 1000.0))->capture_default_str();
  command->add_option("--top-k", request->top_k, "Draw among the likeliest k tokens; 0: among all")->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30))->capture_default_str();
  command->add_option("--seed", request->seed, "Another seed draws another text")->capture_default_str();
  command->add_option("--tokenizer", request->tokenizer, "\"bytes\" or a SentencePiece model; default: that of the training set")->type_name("NAME|FILE");
  add_weights_option(*command, request->weights, "the average where the checkpoint has one");
  command->footer("Example:\n  trireme generate runs/bible/checkpoints/best.h5 --prompt \"In the beginning\" --tokens 200");
  command->callback([request, &run] {
    run = [request] {
      const KokkosScope kokkos;
      train::generate(*request, [](std::string_view text) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      });
      std::fputc('\n', stdout);
      return ExitCode::done;
    };
  });
}

}  // namespace trireme::app
