// SPDX-License-Identifier: Apache-2.0
//
// `trireme check`: validates a deck and its data without training, and prints the resolved layout.
//
// Order: parse the deck, open the datasets or take the assumed ones, resolve the layout for
// --ranks, build the model for its counts, plan the memory, print (check_report.cpp). Runs on one
// process and allocates no training state. All rules are those that `train` uses; they are in
// src/train and src/deck. With --keys it prints the description of every key instead, and needs no
// deck.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/commands.hpp"
#include "app/deck_source.hpp"
#include "app/output_file.hpp"
#include "app/plan/run_prediction.hpp"
#include "app/resolved_run.hpp"
#include "augmented_images.hpp"
#include "check_report.hpp"
#include "class_notes.hpp"
#include "schedule_plot.hpp"
#include "trireme/base/host.hpp"
#include "trireme/model/family.hpp"
#include "trireme/model/model.hpp"
#include "trireme/monitor/run_folder.hpp"
#include "trireme/train/advice.hpp"
#include "trireme/train/layout.hpp"
#include "trireme/train/records/describe.hpp"
#include "trireme/train/run/held_run_folder.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/step/sum_order.hpp"

namespace trireme::app {

namespace {

struct CheckArguments : ResolveArguments {
  std::string images, schedule;  // files of --images and --schedule; empty: no picture
  std::string noise_run;         // folder of --noise-scale; empty: none
  bool keys = false, json = false, statistics = false;
};

/// Returns the noise scale that a run measured.
train::NoiseReading read_noise_of(const std::string& folder) {
  std::vector<double> measurements;
  monitor::MetricsReader row = monitor::RunFolder(folder).read_metrics({"kind", "noise_scale"});
  while (row.next())
    if (row["kind"] == "noise" && row["noise_scale"].is_number())
      measurements.push_back(row["noise_scale"].get<double>());
  const auto reading = train::read_noise(measurements);
  validate(reading.has_value(),
           "--noise-scale {}: this folder has no run that measured a noise scale; give that of a "
           "run with monitor.noise_scale = \"100 steps\"",
           folder);
  return *reading;
}

/// The memory that the ranks of a run plan.
struct PlannedMemory {
  /// Device memory of the rank that needs most of it, host memory of the rank that needs most.
  train::MemoryPlan largest;
  /// The plan of the rank whose device and host memory together are largest, and its rank.
  train::MemoryPlan fullest;
  int fullest_rank = 0;
  std::int64_t needed() const { return largest.total() + largest.host_total(); }
};

/// Plans the memory of the ranks. Ranks of one pipeline stage differ only by uneven rows, so the
/// first and the last rank represent the stage. `observer` receives the ops of a step of rank 0.
PlannedMemory plan_memory(train::ReplicaOptions options, const train::ResolvedLayout& layout,
                          DeviceKind device, const ops::OpObserver& observer) {
  const parallel::MeshShape shape = layout.mesh_shape();
  options.chunk_bounds = train::chunk_bounds(options, shape.pipeline);
  PlannedMemory planned;
  train::MemoryPlan &largest = planned.largest, host;
  for (int stage = 0; stage < layout.pipeline; ++stage) {
    for (const auto& [data, tensor] :
         std::set<std::pair<int, int>>{{0, 0}, {layout.data - 1, layout.tensor - 1}}) {
      const int rank = parallel::rank_of(shape, {stage, data, tensor});
      const train::MemoryPlan plan = train::Replica::measure(
          options, shape, rank, device, {.op = rank == 0 ? observer : ops::OpObserver()});
      if (plan.total() > largest.total()) largest = plan;
      if (plan.host_total() > host.host_total()) host = plan;
      if (plan.total() + plan.host_total() <=
          planned.fullest.total() + planned.fullest.host_total())
        continue;
      planned.fullest = plan;
      planned.fullest_rank = rank;
    }
  }
  largest.host_parameters = host.host_parameters;
  largest.host_optimizer = host.host_optimizer;
  largest.host_activations = host.host_activations;
  largest.host_checkpoint = host.host_checkpoint;
  return planned;
}

/// Adds up the calls of ops with the same work.
class OpCounter {
 public:
  void add(const ops::OpCall& call) {
    const auto [number, is_new] =
        numbers_.try_emplace({std::string(call.op.name), call.flops, call.bytes}, ops_.size());
    if (is_new) ops_.push_back({std::string(call.op.name), call.flops, call.bytes});
    ++ops_[number->second].calls;
  }
  /// Returns the ops in the order of their first calls.
  const std::vector<OpCount>& ops() const { return ops_; }

 private:
  std::vector<OpCount> ops_;
  std::map<std::tuple<std::string, double, double>, std::size_t> numbers_;
};

ExitCode check(const CheckArguments& arguments) {
  validate(arguments.images.empty() || arguments.assumptions.empty(),
           "--images draws images of data.train, which --assume replaces; leave one of them out");
  validate(!arguments.statistics || arguments.assumptions.empty(),
           "--statistics reads data.train, which --assume replaces; leave one of them out");
  // 1. Parse the deck, describe its data, and resolve the layout.
  CheckReport report;
  report.path = arguments.source.path;
  const ResolvedRun run = resolve_run(arguments, std::nullopt, [&](const auto& deck) {
    validate(arguments.images.empty() || !takes_tokens(deck.model),
             "--images draws images, but the model of {} is for tokens; leave --images out",
             report.path);
    validate(!arguments.statistics || !takes_tokens(deck.model),
             "--statistics is about images, but the model of {} is for tokens; leave it out",
             report.path);
    with_deck_locations(deck, [&] {
      read_machine_of(deck);
      train::validate_run_folder_place(deck);
    });
  });
  report.deck = run.deck;
  report.assumed = run.assumed;
  report.not_checked = run.not_checked;
  report.notes = run.notes;
  if (!arguments.noise_run.empty()) report.noise = read_noise_of(arguments.noise_run);
  if (const auto remark = train::warmup_remark(run.deck, run.rows.front()))
    report.notes.push_back(*remark);
  report.sets = run.sets;
  report.rows = run.rows;
  report.layout = run.rows.front();
  const deck::Deck& deck = report.deck;
  const data::DatasetInfo& train_set = report.sets.train;
  const std::vector<train::ResolvedLayout>& rows = report.rows;
  const train::ResolvedLayout& layout = report.layout;
  const DeviceKind device = run.device;
  // 2. Build the model for its shapes and counts, and plan the memory.
  const train::ReplicaOptions replica = train::make_replica_options(deck, train_set, layout);
  const Shape input = replica.tokens() ? Shape{deck.batch.micro, replica.context()}
                                       : Shape{deck.batch.micro, train_set.height, train_set.width,
                                               train_set.channels};
  const model::Model model = with_deck_locations(deck, [&] {
    return model::Model(replica.model, input, replica.outputs,
                        {.tensor_rank = 0,
                         .tensor_size = layout.tensor,
                         .sequence_parallel = deck.parallel.sequence});
  });
  report.model = replica.model;
  report.weights = model.weight_count();
  report.blocks = model.block_count();
  if (family_of(replica.model).block_list)
    report.block_works =
        model::measure_blocks(replica.model, input, replica.outputs, replica.compute, device);
  OpCounter counter;
  ops::OpObserver observer;  // only JSON lists the ops
  if (arguments.json) observer = [&](const ops::OpCall& call) { counter.add(call); };
  std::optional<std::string> shortage;
  report.memory = with_deck_locations(deck, [&] {
    PlannedMemory most = plan_memory(replica, layout, device, observer);
    std::size_t most_row = 0;
    for (std::size_t row = 1; row < rows.size(); ++row) {
      const PlannedMemory other =
          plan_memory(train::make_replica_options(deck, train_set, rows[row]), rows[row], device,
                      ops::OpObserver());
      if (other.needed() <= most.needed()) continue;
      most = other;
      most_row = row;
    }
    if (device == DeviceKind::cpu)
      shortage = train::memory_shortage(
          most.fullest, train::make_replica_options(deck, train_set, rows[most_row]),
          rows[most_row].mesh_shape(), most.fullest_rank, device, host_memory_bytes());
    return most.largest;
  });
  report.ops = counter.ops();
  report.batch_norm_bytes =
      train::batch_norm_bytes(model.parameters(), replica, layout.batch_norm_ranks);
  report.sum_order = train::choose_sum_order(replica, device, model.weight_count(), layout.data);
  report.warnings = train::schedule_warnings(deck);
  // A warning only: the run may be on another machine than this check.
  if (shortage) report.warnings.push_back(*shortage);
  // 3. Draw the images and the schedule, then print everything.
  std::vector<std::string> pictures;
  with_deck_locations(deck, [&] {
    if (arguments.statistics) report.statistics = measure_statistics(deck, *run.train_set);
    // Pixels of 8 bits are always in 0..1.
    if (run.train_set &&
        (run.train_set->info().pixel_type != DType::uint8 || deck::answer_of(deck).has_units))
      for (std::string& note :
           notes_on_scale(deck, report.statistics ? *report.statistics
                                                  : estimate_statistics(deck, *run.train_set)))
        report.notes.push_back(std::move(note));
    if (run.train_set)
      for (std::string& note : notes_on_classes(deck, *run.train_set))
        report.notes.push_back(std::move(note));
    if (!arguments.images.empty())
      pictures.push_back(draw_augmented_images(deck, *run.train_set, arguments.images));
    if (!arguments.schedule.empty())
      pictures.push_back(draw_schedule(deck, layout, arguments.schedule));
  });
  arguments.json ? print_as_json(report) : print_as_text(report);
  for (const std::string& picture : pictures)
    if (!arguments.json) fmt::print("{}\n", picture);
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

/// Returns whether two paths name the same file, which need not exist.
bool is_same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  return fs::weakly_canonical(fs::absolute(a)) == fs::weakly_canonical(fs::absolute(b));
}

/// Runs `check`. `given`: the options and positionals on the command line.
ExitCode check_command(const CheckArguments& arguments, const std::vector<std::string>& given) {
  if (!arguments.keys) {
    validate(!arguments.source.path.empty(),
             "DECK is required; give a deck, or --keys to print all keys of decks "
             "(trireme check --help)");
    const auto is_given = [&](const char* option) {
      return std::find(given.begin(), given.end(), option) != given.end();
    };
    if (is_given("--images")) validate_output("--images", arguments.images, OutputForm::png);
    if (is_given("--schedule")) validate_output("--schedule", arguments.schedule, OutputForm::svg);
    validate(!is_given("--noise-scale") || !arguments.noise_run.empty(),
             "--noise-scale: must not be empty; give the folder of a run");
    validate(!is_given("--images") || !is_given("--schedule") ||
                 !is_same_file(arguments.images, arguments.schedule),
             "--images and --schedule name the same file, {}; name two files", arguments.schedule);
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
  add_resolve_options(command, *arguments, DeckUse::optional, "Check");
  command
      .option("--images", arguments->images,
              "Also draw training images with the augmentation of the deck, as a PNG file")
      .type_name("FILE");
  command.flag("--statistics", arguments->statistics,
               "Also print the mean and standard deviation of the data, as lines for the deck");
  command
      .option(
          "--schedule", arguments->schedule,
          "Also draw the learning rate over the run, and a momentum that changes, as an SVG file")
      .type_name("FILE");
  command
      .option("--noise-scale", arguments->noise_run,
              "Also say what the gradient noise scale of a run means for the batch of the deck")
      .type_name("RUN");
  command.flag(
      "--keys", arguments->keys,
      "Print every key with type, range, default, owner, restart policy and meaning; needs "
      "no DECK");
  command.flag("--json", arguments->json,
               "Print one JSON object instead of lines; with --keys a JSON array");
  command.footer(
      "Examples:\n  trireme check inputs/examples/fashion_resnet.toml --ranks 2 --set "
      "batch.global=256\n"
      "  trireme check inputs/examples/bible_gpt.toml --ranks 4 --set parallel.tensor=2 --set "
      "parallel.pipeline=2\n  trireme check inputs/examples/llama_7b_3d.toml --ranks 512 --assume "
      "tokens:1000000000000,32000\n  trireme check --keys");
  command.set_single_rank_action(
      [arguments, command] { return check_command(*arguments, command.given_options()); });
}

}  // namespace trireme::app
