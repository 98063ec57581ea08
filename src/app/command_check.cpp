// `trireme check`: validates a deck and its data without training, and prints the resolved layout.
//
// Order: parse the deck, open the datasets, resolve the layout for --ranks, build the model for its
// counts, plan the memory, print. Runs on one process and allocates no training state. All rules
// are those that `train` uses; they are in src/train and src/deck.
// With --keys it prints the description of every key instead, and needs no deck.
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "deck_source.hpp"
#include "trireme/model/model.hpp"
#include "trireme/optim/schedule.hpp"
#include "trireme/train/advice.hpp"
#include "trireme/train/describe.hpp"
#include "trireme/train/layout.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/sum_order.hpp"

namespace trireme::app {

namespace {

struct CheckArguments {
  DeckSource source;
  int ranks = 0;  // 0: the fewest that the deck allows
  bool keys = false, json = false;
};

/// The datasets of a deck; validation and test are optional.
struct Datasets {
  data::DatasetInfo train;
  std::optional<data::DatasetInfo> validation, test;
};

/// Opens the datasets and checks them against the model. Throws InputError.
Datasets open_datasets(const deck::Deck& deck) {
  const auto open = [&](const std::string& key, const std::string& folder) {
    train::probe_dataset(comm::Communicator(), folder);
    data::DatasetInfo info = train::open_dataset(key, folder, train::context_length(deck)).info();
    train::validate_dataset(deck.model, deck.data, info, key, folder);
    return info;
  };
  Datasets sets{open("data.train", deck.data.train), std::nullopt, std::nullopt};
  for (const auto& [key, folder, info] :
       {std::tuple("data.validation", &deck.data.validation, &sets.validation),
        std::tuple("data.test", &deck.data.test, &sets.test)}) {
    if (folder->empty()) continue;
    *info = open(key, *folder);
    train::validate_same_form(sets.train, **info, key, *folder);
  }
  return sets;
}

std::string describe_gpt(const model::TransformerOptions& gpt) {
  std::string text = fmt::format("gpt, {} layers of width {} (mlp {}), {} heads", gpt.layers,
                                 gpt.width, gpt.mlp_width, gpt.heads);
  if (gpt.kv_heads != gpt.heads) text += fmt::format(" ({} of keys and values)", gpt.kv_heads);
  return text + fmt::format(", context {}, vocabulary {}", gpt.context, gpt.vocabulary);
}

std::string describe_model(const model::ModelOptions& options, const model::Model& model) {
  const std::string kind =
      options.kind == model::ModelKind::gpt ? describe_gpt(options.gpt)
      : options.kind == model::ModelKind::resnet
          ? fmt::format("resnet, depth {}, width {}", options.depth, options.width)
          : "mlp";
  return fmt::format("{}: {} weights in {} blocks", kind, model.weight_count(),
                     model.block_count());
}

std::string describe_data(const Datasets& sets) {
  std::string text = fmt::format("{} training", sets.train.samples);
  if (sets.validation) text += fmt::format(", {} validation", sets.validation->samples);
  if (sets.test) text += fmt::format(", {} test", sets.test->samples);
  if (sets.train.kind == data::DatasetKind::tokens)
    return text + fmt::format(" sequences of {} tokens, vocabulary {}", sets.train.context,
                              sets.train.vocabulary);
  return text + fmt::format(" images of {} x {} x {}, {} classes", sets.train.height,
                            sets.train.width, sets.train.channels, sets.train.class_count);
}

std::string describe_epoch(const train::ResolvedLayout& layout, const data::DatasetInfo& info) {
  std::string text =
      fmt::format("{} samples, {} steps", layout.samples_per_epoch, layout.steps_per_epoch);
  if (const std::int64_t rest = info.samples - layout.samples_per_epoch; rest > 0)
    text += fmt::format(" ({} samples left out)", rest);
  return text;
}

std::string describe_rate(const deck::Deck& deck, const train::ResolvedLayout& layout) {
  const optim::Schedule schedule(deck.schedule, deck.batch.global, layout.schedule_steps,
                                 layout.scale);
  std::string text = fmt::format("peak {:.6g}", schedule.peak());
  if (deck.schedule.warmup)
    text += fmt::format(", warm-up over {} steps", steps_of(*deck.schedule.warmup, layout.scale));
  return text + fmt::format(", last step {:.3g}", schedule.rate(layout.schedule_steps));
}

/// Returns the largest memory plan: device memory of the rank that needs most of it, host memory of
/// the rank that needs most of that. Ranks of one pipeline stage differ only by uneven rows, so the
/// first and the last rank represent the stage.
train::MemoryPlan largest_plan(const train::ReplicaOptions& options,
                               const train::ResolvedLayout& layout, DeviceKind device) {
  const parallel::MeshShape shape{
      .data = layout.data, .tensor = layout.tensor, .pipeline = layout.pipeline};
  train::MemoryPlan largest, host;
  for (int stage = 0; stage < layout.pipeline; ++stage) {
    for (const auto& [data, tensor] :
         std::set<std::pair<int, int>>{{0, 0}, {layout.data - 1, layout.tensor - 1}}) {
      const train::MemoryPlan plan = train::Replica::measure(
          options, shape, parallel::rank_of(shape, {stage, data, tensor}), device);
      if (plan.total() > largest.total()) largest = plan;
      if (plan.host_total() > host.host_total()) host = plan;
    }
  }
  largest.host_parameters = host.host_parameters;
  largest.host_optimizer = host.host_optimizer;
  largest.host_activations = host.host_activations;
  largest.host_checkpoint = host.host_checkpoint;
  return largest;
}

ExitCode check(const CheckArguments& arguments) {
  // 1. Parse the deck and open its data.
  const deck::Deck deck = deck::parse(deck::read_file(arguments.source.path), arguments.source.path,
                                      overrides_of(arguments.source));
  const Datasets sets = with_deck_locations(deck, [&] { return open_datasets(deck); });
  // 2. Resolve the layout. An error names the place of the key in the deck.
  const train::ResolvedLayout layout = with_deck_locations(deck, [&] {
    const std::int64_t ranks =
        arguments.ranks > 0 ? arguments.ranks : train::min_ranks(deck.parallel);
    validate(ranks <= std::numeric_limits<int>::max(),
             "parallel.data = {}: makes {} ranks with tensor and pipeline; no machine has as many",
             deck.parallel.data, ranks);
    return train::resolve_layout(
        {deck.run, deck.batch, deck.parallel, deck.data, deck.schedule, deck.model}, sets.train,
        static_cast<int>(ranks));
  });
  with_deck_locations(deck, [&] { train::validate_precision(deck, train::planned_device(deck)); });
  // 3. Build the model for its shapes and counts.
  const train::ReplicaOptions replica = train::make_replica_options(deck, sets.train, layout);
  const Shape input = replica.tokens() ? Shape{deck.batch.micro, deck.model.gpt.context}
                                       : Shape{deck.batch.micro, sets.train.height,
                                               sets.train.width, sets.train.channels};
  const model::Model model(replica.model, input, replica.classes,
                           {.tensor_rank = 0,
                            .tensor_size = layout.tensor,
                            .sequence_parallel = deck.parallel.sequence});

  // 4. Describe everything and print it.
  const std::string stop = to_string(deck.run.stop);
  std::vector<std::pair<const char*, std::string>> lines = {
      {"run", fmt::format("{} in {}", deck.run.name, deck.run.folder)},
      {"model", describe_model(replica.model, model)},
      {"data", describe_data(sets)},
      {"layout", train::describe_layout(deck.parallel, layout)},
      {"step", train::describe_step(deck.batch, layout)},
      {"epoch", describe_epoch(layout, sets.train)},
      {"stop", layout.total_steps > 0 && deck.run.stop.unit != Duration::Unit::steps
                   ? fmt::format("{} = {} steps", stop, layout.total_steps)
                   : stop},
      {"rate", describe_rate(deck, layout)},
  };
  if (layout.pipeline > 1)
    lines.emplace_back("stages", train::describe_pipeline(deck.parallel, layout));
  lines.emplace_back("sums",
                     train::describe_sum_order(train::choose_sum_order(
                         replica, train::planned_device(deck), model.weight_count(), layout.data)));
  lines.emplace_back("memory", fmt::format("{}{}", layout.ranks() > 1 ? "a rank needs about " : "",
                                           train::describe_memory(largest_plan(
                                               replica, layout, train::planned_device(deck)))));
  for (const auto& [name, text] : lines) fmt::print("{:<8}{}\n", name, text);
  for (const std::string& warning : train::schedule_warnings(deck))
    fmt::print("warning {}\n", warning);
  fmt::print("{}: nothing is wrong\n", arguments.source.path);
  return ExitCode::done;
}

const char* restart_policy(const deck::KeyInfo& key) {
  return key.fixed_at_restart ? "fixed" : "may change";
}

/// Prints all keys as text: three lines each, so that `grep -A 2` finds the whole description.
void print_keys_as_text() {
  for (const deck::KeyInfo& key : deck::keys()) {
    const std::string value = key.type.empty()    ? key.range
                              : key.range.empty() ? key.type
                                                  : fmt::format("{} ({})", key.type, key.range);
    fmt::print("{}.{}: {}\n", key.table, key.key, value);
    std::vector<std::string> facts;
    if (key.required) facts.emplace_back("required");
    if (!key.default_value.empty()) facts.push_back("default " + key.default_value);
    if (!key.owner.empty()) facts.push_back("belongs to " + key.owner);
    facts.push_back(fmt::format("restart: {}", restart_policy(key)));
    fmt::print("  {}\n  {}\n", fmt::join(facts, "; "), key.meaning);
  }
}

void print_keys_as_json() {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const deck::KeyInfo& key : deck::keys())
    list.push_back({{"table", key.table},
                    {"key", key.key},
                    {"type", text_or_null(key.type)},
                    {"range", text_or_null(key.range)},
                    {"required", key.required},
                    {"default", text_or_null(key.default_value)},
                    {"owner", text_or_null(key.owner)},
                    {"restart", restart_policy(key)},
                    {"meaning", key.meaning}});
  fmt::print("{}\n", list.dump(2));
}

/// Runs `check`. `given`: the options and positionals on the command line.
ExitCode check_command(const CheckArguments& arguments, const std::vector<std::string>& given) {
  if (!arguments.keys) {
    validate(!arguments.json, "--json goes with --keys");
    validate(!arguments.source.path.empty(),
             "DECK is required; give a deck, or --keys to print all keys of decks "
             "(trireme check --help)");
    return check(arguments);
  }
  for (const std::string& option : given)
    validate(option == "--keys" || option == "--json",
             "--keys prints the keys that every deck can have; leave {} out", option);
  if (arguments.json)
    print_keys_as_json();
  else
    print_keys_as_text();
  return ExitCode::done;
}

}  // namespace

void add_check(CommandLine& line) {
  Command command = line.add(
      "check",
      "Validate a deck and the data it names, and print the resolved layout; starts nothing");
  const auto arguments = std::make_shared<CheckArguments>();
  add_deck_options(command, arguments->source, DeckUse::optional);
  command
      .option("--ranks", arguments->ranks,
              "Ranks the run will have (default: the fewest that the deck allows)")
      .range(1, std::int64_t{1} << 30)
      .type_name("N");
  command.flag(
      "--keys", arguments->keys,
      "Print every key with type, range, default, owner, restart policy and meaning; needs "
      "no DECK");
  command.flag("--json", arguments->json, "With --keys: print them as a JSON array");
  command.footer(
      "Examples:\n  trireme check inputs/examples/fashion_resnet.toml --ranks 2 --set "
      "batch.global=256\n"
      "  trireme check inputs/examples/bible_gpt.toml --ranks 4 --set parallel.tensor=2 --set "
      "parallel.pipeline=2\n  trireme check --keys");
  command.set_single_rank_action(
      [arguments, command] { return check_command(*arguments, command.given_options()); });
}

}  // namespace trireme::app
