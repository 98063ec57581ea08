#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "commands.hpp"
#include "deck_source.hpp"
#include "trireme/model/model.hpp"
#include "trireme/optim/schedule.hpp"
#include "trireme/train/layout.hpp"

namespace trireme::app {

namespace {

struct CheckArguments {
  DeckSource source;
  int ranks = 1;
};

struct Datasets {
  data::DatasetInfo train;
  std::optional<data::DatasetInfo> validation, test;
};

Datasets look_at_datasets(const deck::Deck& deck) {
  const auto look = [&](const std::string& key, const std::string& folder) {
    data::DatasetInfo info = train::open_dataset(key, folder).info();
    train::validate_dataset(deck.model, deck.data, info, key, folder);
    return info;
  };
  Datasets sets{look("data.train", deck.data.train), std::nullopt, std::nullopt};
  for (const auto& [key, folder, info] : {std::tuple("data.validation", &deck.data.validation, &sets.validation), std::tuple("data.test", &deck.data.test, &sets.test)}) {
    if (folder->empty()) continue;
    *info = look(key, *folder);
    train::validate_same_form(sets.train, **info, key, *folder);
  }
  return sets;
}

std::string describe_model(const model::ModelOptions& options, const model::Model& model) {
  const std::string kind = options.kind == model::ModelKind::resnet ? fmt::format("resnet, depth {}, width {}", options.depth, options.width) : "mlp";
  return fmt::format("{}: {} weights in {} blocks", kind, model.weights(), model.blocks().size());
}

std::string describe_data(const Datasets& sets) {
  std::string text = fmt::format("{} training", sets.train.samples);
  if (sets.validation) text += fmt::format(", {} validation", sets.validation->samples);
  if (sets.test) text += fmt::format(", {} test", sets.test->samples);
  return text + fmt::format(" images of {} x {} x {}, {} classes", sets.train.height, sets.train.width, sets.train.channels, sets.train.class_count);
}

std::string describe_epoch(const train::ResolvedLayout& layout, const data::DatasetInfo& info) {
  std::string text = fmt::format("{} samples, {} steps", layout.samples_per_epoch, layout.steps_per_epoch);
  if (const std::int64_t rest = info.samples - layout.samples_per_epoch; rest > 0) text += fmt::format(" ({} samples left out)", rest);
  return text;
}

std::string describe_rate(const deck::Deck& deck, const train::ResolvedLayout& layout) {
  const optim::Schedule schedule(deck.schedule, deck.batch.global, layout.schedule_steps, layout.scale);
  std::string text = fmt::format("peak {:.6g}", schedule.peak());
  if (deck.schedule.warmup) text += fmt::format(", warm-up over {} steps", steps_of(*deck.schedule.warmup, layout.scale));
  return text + fmt::format(", last step {:.3g}", schedule.rate(layout.schedule_steps));
}

ExitCode check(const CheckArguments& arguments) {
  const deck::Deck deck = deck::parse(deck::read_file(arguments.source.path), arguments.source.path, overrides_of(arguments.source));
  const Datasets sets = at_places_of(deck, [&] { return look_at_datasets(deck); });
  const train::ResolvedLayout layout = at_places_of(
      deck, [&] { return train::resolve_layout({deck.run, deck.batch, deck.parallel, deck.data, deck.schedule}, sets.train, arguments.ranks); });
  const model::Model model(deck.model, {deck.batch.micro, sets.train.height, sets.train.width, sets.train.channels}, sets.train.class_count);

  const std::string stop = to_string(deck.run.stop);
  const std::vector<std::pair<const char*, std::string>> lines = {
      {"run", fmt::format("{} in {}", deck.run.name, deck.run.folder)},
      {"model", describe_model(deck.model, model)},
      {"data", describe_data(sets)},
      {"layout", fmt::format("{} ranks = {} data x {} tensor x {} pipeline", layout.ranks(), layout.data, layout.tensor, layout.pipeline)},
      {"step", fmt::format("{} samples = {} data ranks x {} micro-batch x {} accumulated", deck.batch.global, layout.data, deck.batch.micro, layout.accumulation)},
      {"epoch", describe_epoch(layout, sets.train)},
      {"stop", layout.total_steps > 0 && deck.run.stop.unit != Duration::Unit::steps ? fmt::format("{} = {} steps", stop, layout.total_steps) : stop},
      {"rate", describe_rate(deck, layout)},
  };
  for (const auto& [name, text] : lines) fmt::print("{:<8}{}\n", name, text);
  fmt::print("{}: nothing is wrong\n", arguments.source.path);
  return ExitCode::done;
}

}  // namespace

void add_check(CLI::App& root, Run& run) {
  CLI::App* command = root.add_subcommand("check", "Validate a deck and the data it names, and print the resolved layout; starts nothing");
  const auto arguments = std::make_shared<CheckArguments>();
  add_deck_options(*command, arguments->source);
  command->add_option("--ranks", arguments->ranks, "Ranks the run will have")->check(CLI::PositiveNumber)->capture_default_str()->type_name("N");
  command->footer("Example:\n  trireme check inputs/examples/fashion_resnet.toml --ranks 2 --set batch.global=256");
  command->callback([arguments, &run] { run = [arguments] { return check(*arguments); }; });
}

}  // namespace trireme::app
