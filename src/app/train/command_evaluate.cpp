// SPDX-License-Identifier: Apache-2.0
//
// `trireme evaluate`: metrics of a checkpoint on a split of the deck's data, on all ranks.
//
// Order: read the deck and check the options; evaluate (train::evaluate_checkpoint), which passes
// the results of single samples to this file; gather the results of all ranks; rank 0 computes
// scores of classes from them and prints them; files are written.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "answer_options.hpp"
#include "app/commands.hpp"
#include "app/deck_source.hpp"
#include "app/files/weights_option.hpp"
#include "app/output_file.hpp"
#include "class_report.hpp"
#include "confusion_file.hpp"
#include "predictions_file.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/arrays/array_files.hpp"
#include "trireme/device/device.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/run/trainer.hpp"
#include "worst_sheet.hpp"

namespace trireme::app {
namespace {

struct EvaluateOptions {
  DeckSource deck;
  std::string checkpoint, split = "validation";
  checkpoint::Weights weights = checkpoint::Weights::evaluated;
  std::string confusion, predictions, worst;
  std::int64_t worst_count = 24;
  train::PredictionOptions kept;  ///< in the file of --predictions
  bool flips = false, overwrites = false, json = false;
};

/// The scores of images, computed from the results of single samples.
struct ImageScores {
  train::Confusion confusion;
  std::vector<train::ClassScore> classes;
  double calibration_error = 0;
  std::vector<train::SampleResult> worst;
};

/// Returns a line for each part of the target, if there are several. `datasets`: their names, if
/// there is one for each part.
std::string score_table(const train::Scores& scores, const std::vector<std::string>& datasets) {
  constexpr std::size_t max_lines = 100;
  const std::size_t parts = scores.each.size();
  const Answer& answer = *scores.answer;
  if (parts > max_lines) return fmt::format("{} {}: --json lists them\n", parts, answer.parts);
  std::string text;
  for (std::size_t i = 0; parts > 1 && i < parts; ++i)
    text +=
        fmt::format("{} {}{}: {}\n", answer.part, i,
                    datasets.size() == parts ? fmt::format(" ({})", printable(datasets[i])) : "",
                    train::describe(answer, scores.each[i]));
  return text;
}

nlohmann::ordered_json score_json(const train::Scores& scores) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const std::vector<double>& part : scores.each) {
    nlohmann::ordered_json& one = list.emplace_back();
    for (std::size_t i = 0; i < part.size(); ++i)
      one[std::string(scores.answer->metrics[i])] = part[i];
  }
  return list;
}

/// Returns the metrics as JSON, with the keys of rows of kind "evaluate" in metrics.jsonl.
std::string to_json(const EvaluateOptions& options, const train::CheckpointEvaluation& found,
                    const std::optional<ImageScores>& scores, const deck::Deck& deck) {
  const train::Metrics& metrics = found.metrics;
  const Answer& answer = deck::answer_of(deck);
  nlohmann::ordered_json json = {{"checkpoint", options.checkpoint},
                                 {"split", options.split},
                                 {"samples", metrics.num_samples}};
  if (answer.is_tokens()) json["tokens"] = metrics.num_labels;
  if (answer.is_map) json["counted"] = metrics.counted;
  json["loss"] = metrics.loss;
  for (const std::string_view word : answer.metrics)
    json[std::string(word)] = metrics.value_of(word);
  if (metrics.scores) json[answer.parts] = score_json(*metrics.scores);
  if (options.flips) json["flip"] = true;
  if (scores) {
    json["calibration_error"] = scores->calibration_error;
    json["classes"] = class_json(scores->classes, found.classes);
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// Checks options that the command line cannot check by itself. Throws InputError.
void validate_options(const EvaluateOptions& options, const std::vector<std::string>& given,
                      const deck::Deck& deck) {
  const auto is_given = [&](const char* option) {
    return std::find(given.begin(), given.end(), option) != given.end();
  };
  validate_answer_options(deck::answer_of(deck), given);
  validate(is_given("--worst") || !is_given("--worst-count"),
           "--worst-count is about the picture of --worst; add --worst FILE.svg");
  for (const char* option : {"--top", "--logits", "--overwrite"})
    validate(is_given("--predictions") || !is_given(option),
             "{} is about the file of --predictions; add --predictions FILE.h5", option);
  validate_distinct_outputs({{"--confusion", options.confusion},
                             {"--predictions", options.predictions},
                             {"--worst", options.worst}});
  validate(!is_given("--worst") || options.worst.ends_with(".svg"),
           "--worst {}: the picture is SVG, so its name ends in .svg, as in --worst worst.svg",
           options.worst);
  if (is_given("--worst")) validate_output("--worst", options.worst, OutputForm::svg);
  if (is_given("--confusion")) validate_confusion_file(options.confusion);
  if (!is_given("--predictions")) return;
  validate_predictions_file("--predictions", options.predictions, options.overwrites);
  validate_no_data(deck, "--predictions", options.predictions, options.predictions);
}

/// Keeps the results of this rank's samples, and writes the file of --predictions. Functions with
/// other arguments than rows are collective.
class RankResults {
 public:
  RankResults(const comm::Communicator& world, const EvaluateOptions& options,
              const deck::Deck& deck)
      : world_(world),
        options_(options),
        deck_(deck),
        is_one_class_(deck::answer_of(deck).is_one_class()),
        writes_(!options.predictions.empty()) {}
  RankResults(const RankResults&) = delete;

  const std::vector<train::SampleResult>& images() const { return images_; }
  bool is_needed() const { return is_one_class_ || writes_; }

  void begin(const train::EvaluatedCheckpoint& found) {
    info_ = {.samples = found.samples,
             .context = train::context_length(deck_),
             .answer = &deck::answer_of(deck_),
             .outputs = found.outputs,
             .classes = found.classes,
             .checkpoint = options_.checkpoint,
             .split = options_.split,
             .deck = deck::write(deck_),
             .flips = options_.flips,
             .checkpoint_digest = found.checkpoint_digest,
             .files = {}};
  }

  void add(const train::EvaluatedRows& rows) {
    if (writes_) train::append(predictions_, rows, options_.kept, deck_.target);
    if (!is_one_class_) return;
    const auto classes = static_cast<std::size_t>(rows.classes);
    for (std::size_t i = 0; i < rows.samples.size(); ++i)
      images_.push_back(train::result_of(rows.samples[i], rows.labels[i],
                                         rows.logits.subspan(i * classes, classes)));
  }

  /// Writes what is kept if it is large on one rank. Small files are written at the end: an error
  /// then costs no results.
  void write_if_large() {
    const std::int64_t kept = train::bytes_of(predictions_);
    if (world_.all_reduce(kept, comm::Reduction::max) > max_kept_answers) write();
  }

  /// Writes the rest, and puts the file in its place.
  void publish() {
    if (!writes_) return;
    write();
    file_->publish();
  }

 private:
  void write() {
    if (!file_) file_.emplace(world_, options_.predictions, info_, options_.kept);
    file_->write(predictions_);
    predictions_ = {};
  }

  const comm::Communicator& world_;
  const EvaluateOptions& options_;
  const deck::Deck& deck_;
  bool is_one_class_, writes_;
  PredictionsInfo info_;
  std::vector<train::SampleResult> images_;
  train::PredictionRows predictions_;
  std::optional<PredictionsFile> file_;
};

ImageScores image_scores(const std::vector<train::SampleResult>& all, std::int64_t classes,
                         std::int64_t worst) {
  ImageScores scores{.confusion = train::confusion_of(all),
                     .classes = {},
                     .calibration_error = train::calibration_error(all),
                     .worst = train::largest_losses(all, static_cast<std::size_t>(worst))};
  scores.classes = train::class_scores(scores.confusion, classes);
  return scores;
}

/// Draws the samples with the largest losses. Called by rank 0.
void write_worst(const EvaluateOptions& options, const deck::Deck& deck, const ImageScores& scores,
                 const std::vector<std::string>& names) {
  const data::Dataset set(deck.data.*deck::folder_of_split(options.split),
                          train::evaluation_form(deck));
  write_output(options.worst, draw_worst(fmt::format("Largest losses of {} on {}",
                                                     options.checkpoint, options.split),
                                         set, scores.worst, names));
}

/// Prints the results. Called by rank 0.
void print_results(const EvaluateOptions& options, const train::CheckpointEvaluation& found,
                   const std::optional<ImageScores>& scores, const deck::Deck& deck) {
  if (options.json) {
    fmt::print("{}\n", to_json(options, found, scores, deck));
  } else {
    if (scores)
      fmt::print("{}calibration error {:.3f} % ({} bins)\n",
                 class_table(scores->classes, found.classes), 100 * scores->calibration_error,
                 train::calibration_bins);
    if (found.metrics.scores)
      fmt::print("{}", score_table(*found.metrics.scores, deck.data.hdf5.target));
    fmt::print("{}: loss {}, {}\n", options.split,
               std::isnan(found.metrics.loss) ? "-" : fmt::format("{:.6f}", found.metrics.loss),
               train::describe(found.metrics, deck::answer_of(deck)));
  }
  std::fflush(stdout);
}

/// Writes the files of --confusion and --worst. Called by rank 0.
void write_pictures(const EvaluateOptions& options, const train::CheckpointEvaluation& found,
                    const ImageScores& scores, const deck::Deck& deck) {
  if (!options.confusion.empty())
    write_confusion(options.confusion,
                    fmt::format("Confusion of {} on {}", options.checkpoint, options.split),
                    scores.confusion, found.classes);
  if (!options.worst.empty()) write_worst(options, deck, scores, found.classes);
}

ExitCode evaluate_command(const EvaluateOptions& options, const std::vector<std::string>& given) {
  comm::Environment environment;
  const comm::Communicator& world = environment.world();
  Log log(world.rank() == 0);
  run_and_exit(environment, log, [&] {
    // 1. Deck, options, device.
    const deck::Deck deck = read_deck(options.deck, world, deck::DeckPurpose::evaluation);
    const bool classes = deck::answer_of(deck).is_one_class();
    comm::together(world, [&] {
      if (world.rank() == 0) validate_options(options, given, deck);
    });
    std::optional<KokkosScope> kokkos;
    comm::together(
        world, [&] { kokkos.emplace(0, train::choose_device(deck, environment.local_rank())); });
    // 2. Evaluate, and keep the results of this rank's samples.
    RankResults mine(world, options, deck);
    train::EvaluateRequest request{
        deck,
        options.checkpoint,
        options.split,
        options.weights,
        {},
        options.flips ? train::ImageViews::with_mirror_image : train::ImageViews::plain};
    request.begin = [&](const train::EvaluatedCheckpoint& begun) { mine.begin(begun); };
    if (mine.is_needed()) request.sink = [&](const train::EvaluatedRows& rows) { mine.add(rows); };
    if (!options.predictions.empty()) request.between_groups = [&] { mine.write_if_large(); };
    train::CheckpointEvaluation found = with_deck_locations(
        deck, [&] { return train::evaluate_checkpoint(request, environment, log); });
    // 3. Scores and files. The results are printed first: a file may fail.
    std::vector<train::SampleResult> all;
    if (classes) all = train::gather_results(world, mine.images());
    std::optional<ImageScores> scores;
    comm::together(world, [&] {
      if (world.rank() != 0) return;
      if (classes) scores = image_scores(all, std::ssize(found.classes), options.worst_count);
      if (classes && options.flips) found.metrics = train::metrics_of(all);
      print_results(options, found, scores, deck);
    });
    mine.publish();
    comm::together(world, [&] {
      if (scores) write_pictures(options, found, *scores, deck);
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
  command.flag("--flip", options->flips,
               "One class: average the logits of each image and its mirror image");
  command
      .option("--confusion", options->confusion,
              "Write how often each class was predicted as each other one: as CSV, or as an SVG "
              "picture")
      .type_name("FILE.csv|FILE.svg");
  command
      .option("--worst", options->worst,
              "Draw the images with the largest losses, with their true and predicted class, as an "
              "SVG picture")
      .type_name("FILE.svg");
  command.option("--worst-count", options->worst_count, "With --worst: the number of images")
      .range(1, 1000)
      .default_shown();
  command
      .option("--predictions", options->predictions,
              "Write the results of each sample into an HDF5 file: label, predicted class, loss, "
              "most probable classes; values and maps; of a language model the loss of each token")
      .type_name("FILE.h5");
  command
      .option("--top", options->kept.top,
              "With --predictions: the number of most probable classes that are kept")
      .range(1, std::int64_t{1} << 24)
      .default_shown();
  command.flag("--logits", options->kept.logits, "With --predictions: keep all logits, too");
  command.flag("--overwrite", options->overwrites, "With --predictions: replace the file");
  command.flag("--json", options->json, "As one JSON object");
  command.footer(
      "Example:\n  trireme evaluate runs/fashion/deck.toml --checkpoint "
      "runs/fashion/checkpoints/best.h5 --split test");
  command.set_action(
      [options, command] { return evaluate_command(*options, command.given_options()); });
}

}  // namespace trireme::app
