// SPDX-License-Identifier: Apache-2.0
//
// `trireme evaluate`: metrics of a checkpoint on a split of the deck's data, on all ranks.
//
// Order: read the deck and check the options; evaluate (train::evaluate_checkpoint), which passes
// the results of single samples to this file; gather the results of all ranks; rank 0 computes
// scores of classes from them, prints and writes files.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/commands.hpp"
#include "app/deck_source.hpp"
#include "app/files/weights_option.hpp"
#include "class_report.hpp"
#include "confusion_file.hpp"
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
  std::string confusion;
  bool json = false;
};

/// The scores of images, computed from the results of single samples.
struct ImageScores {
  train::Confusion confusion;
  std::vector<train::ClassScore> classes;
  double calibration_error = 0;
};

std::string describe(const train::Metrics& metrics, bool tokens) {
  if (tokens)
    return fmt::format("loss {:.6f}, perplexity {:.4f}, top-1 {:.3f} %, {} tokens", metrics.loss,
                       metrics.perplexity(), 100 * metrics.top1, metrics.num_labels);
  return fmt::format("loss {:.6f}, top-1 {:.3f} %, top-5 {:.3f} %, {} samples", metrics.loss,
                     100 * metrics.top1, 100 * metrics.top5, metrics.num_labels);
}

/// Returns the metrics as JSON, with the keys of rows of kind "evaluate" in metrics.jsonl.
std::string to_json(const EvaluateOptions& options, const train::CheckpointEvaluation& found,
                    const std::optional<ImageScores>& scores, const model::ModelOptions& model) {
  const train::Metrics& metrics = found.metrics;
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
  if (scores) {
    json["calibration_error"] = scores->calibration_error;
    json["classes"] = class_json(scores->classes, found.classes);
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// Checks options that the command line cannot check by itself. Throws InputError.
void validate_options(const EvaluateOptions& options, const model::ModelOptions& model) {
  if (options.confusion.empty()) return;
  validate(!takes_tokens(model),
           "--confusion {}: a language model has no classes to confuse; leave the option out",
           options.confusion);
  validate_confusion_file(options.confusion);
}

/// Gathers the results of all ranks and computes the scores. Collective.
ImageScores image_scores(const comm::Communicator& world,
                         const std::vector<train::SampleResult>& mine, std::int64_t classes) {
  const std::vector<train::SampleResult> all = train::gather_results(world, mine);
  ImageScores scores{.confusion = train::confusion_of(all),
                     .classes = {},
                     .calibration_error = train::calibration_error(all)};
  scores.classes = train::class_scores(scores.confusion, classes);
  return scores;
}

/// Prints the results and writes the files. Called by rank 0.
void report(const EvaluateOptions& options, const train::CheckpointEvaluation& found,
            const std::optional<ImageScores>& scores, const model::ModelOptions& model) {
  if (!options.confusion.empty())
    write_confusion(options.confusion,
                    fmt::format("Confusion of {} on {}", options.checkpoint, options.split),
                    scores->confusion, found.classes);
  if (options.json) {
    fmt::print("{}\n", to_json(options, found, scores, model));
    return;
  }
  if (scores)
    fmt::print("{}calibration error {:.3f} % ({} bins)\n",
               class_table(scores->classes, found.classes), 100 * scores->calibration_error,
               train::calibration_bins);
  fmt::print("{}: {}\n", options.split, describe(found.metrics, takes_tokens(model)));
}

ExitCode evaluate_command(const EvaluateOptions& options) {
  comm::Environment environment;
  const comm::Communicator& world = environment.world();
  Log log(world.rank() == 0);
  run_and_exit(environment, log, [&] {
    // 1. Deck, options, device.
    const deck::Deck deck = read_deck(options.deck, world, deck::DeckPurpose::evaluation);
    comm::together(world, [&] {
      if (world.rank() == 0) validate_options(options, deck.model);
    });
    std::optional<KokkosScope> kokkos;
    comm::together(
        world, [&] { kokkos.emplace(0, train::choose_device(deck, environment.local_rank())); });
    // 2. Evaluate, and keep the results of this rank's images.
    train::EvaluateRequest request{deck, options.checkpoint, options.split, options.weights};
    std::vector<train::SampleResult> mine;
    if (!takes_tokens(deck.model))
      request.sink = [&mine](const train::EvaluatedRows& rows) {
        const auto classes = static_cast<std::size_t>(rows.classes);
        for (std::size_t i = 0; i < rows.samples.size(); ++i)
          mine.push_back(train::result_of(rows.samples[i], rows.labels[i],
                                          rows.logits.subspan(i * classes, classes)));
      };
    const train::CheckpointEvaluation found = with_deck_locations(
        deck, [&] { return train::evaluate_checkpoint(request, environment, log); });
    // 3. Scores and reports.
    std::optional<ImageScores> scores;
    if (request.sink) scores = image_scores(world, mine, std::ssize(found.classes));
    comm::together(world, [&] {
      if (world.rank() == 0) report(options, found, scores, deck.model);
    });
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
  command
      .option("--confusion", options->confusion,
              "Write how often each class was predicted as each other one: as CSV, or as an SVG "
              "picture")
      .type_name("FILE.csv|FILE.svg");
  command.flag("--json", options->json, "As one JSON object");
  command.footer(
      "Example:\n  trireme evaluate runs/fashion/deck.toml --checkpoint "
      "runs/fashion/checkpoints/best.h5 --split test");
  command.set_action([options] { return evaluate_command(*options); });
}

}  // namespace trireme::app
