// SPDX-License-Identifier: Apache-2.0
//
// `trireme evaluate`: metrics of a checkpoint on a split of the deck's data, on all ranks. The work
// is in train::evaluate_checkpoint().
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/commands.hpp"
#include "app/deck_source.hpp"
#include "app/files/weights_option.hpp"
#include "trireme/device/device.hpp"
#include "trireme/model/family.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/run/trainer.hpp"

namespace trireme::app {
namespace {

struct EvaluateOptions {
  DeckSource deck;
  std::string checkpoint, split = "validation";
  checkpoint::Weights weights = checkpoint::Weights::evaluated;
  bool json = false;
};

std::string describe(const train::Metrics& metrics, bool tokens) {
  if (tokens)
    return fmt::format("loss {:.6f}, perplexity {:.4f}, top-1 {:.3f} %, {} tokens", metrics.loss,
                       metrics.perplexity(), 100 * metrics.top1, metrics.num_labels);
  return fmt::format("loss {:.6f}, top-1 {:.3f} %, top-5 {:.3f} %, {} samples", metrics.loss,
                     100 * metrics.top1, 100 * metrics.top5, metrics.num_labels);
}

/// Returns the metrics as JSON, with the keys of rows of kind "evaluate" in metrics.jsonl.
std::string to_json(const EvaluateOptions& options, const train::Metrics& metrics,
                    const model::ModelOptions& model) {
  const bool tokens = takes_tokens(model);
  nlohmann::ordered_json json = {
      {"checkpoint", options.checkpoint},
      {"split", options.split},
      {"samples",
       tokens ? metrics.num_labels / family_of(model).context(model) : metrics.num_labels}};
  if (tokens) json["tokens"] = metrics.num_labels;
  json["loss"] = metrics.loss;
  json["top1"] = metrics.top1;
  json["top5"] = metrics.top5;
  json["perplexity"] = metrics.perplexity();
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

ExitCode evaluate_command(const EvaluateOptions& options) {
  comm::Environment environment;
  Log log(environment.world().rank() == 0);
  run_and_exit(environment, log, [&] {
    const deck::Deck deck =
        read_deck(options.deck, environment.world(), deck::DeckPurpose::evaluation);
    std::optional<KokkosScope> kokkos;
    comm::together(environment.world(), [&] {
      kokkos.emplace(0, train::choose_device(deck, environment.local_rank()));
    });
    const train::EvaluateRequest request{deck, options.checkpoint, options.split, options.weights};
    const train::Metrics metrics = with_deck_locations(
        deck, [&] { return train::evaluate_checkpoint(request, environment, log); });
    if (environment.world().rank() == 0 && options.json)
      fmt::print("{}\n", to_json(options, metrics, deck.model));
    else if (environment.world().rank() == 0)
      fmt::print("{}: {}\n", options.split, describe(metrics, takes_tokens(deck.model)));
    return ExitCode::done;
  });
}

}  // namespace

void add_evaluate(CommandLine& line) {
  Command command = line.add(
      "evaluate", "Metrics of a checkpoint on a split of the deck's data, at any number of ranks");
  const auto options = std::make_shared<EvaluateOptions>();
  add_deck_options(command, options->deck);
  command
      .option("--checkpoint", options->checkpoint,
              "The checkpoint to take weights and running statistics from")
      .required();
  command.option("--split", options->split, "The set that is evaluated")
      .type_name("train|validation|test")
      .default_shown();
  add_weights_option(command, options->weights, "the average where the checkpoint has one");
  command.flag("--json", options->json, "As one JSON object");
  command.footer(
      "Example:\n  trireme evaluate runs/fashion/deck.toml --checkpoint "
      "runs/fashion/checkpoints/best.h5 --split test");
  command.set_action([options] { return evaluate_command(*options); });
}

}  // namespace trireme::app
