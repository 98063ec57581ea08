// SPDX-License-Identifier: Apache-2.0
//
// `trireme plan`: predicts memory, traffic, time and cost of a run before it is queued.
//
// Order: resolve the deck as `check` does, read the machine file, record and simulate a step
// (src/plan), print (plan_report.cpp). With --prove the communication of a run is matched instead
// (proof_report.cpp). With --search layouts are ranked (plan_search_report.cpp); --sbatch writes a
// job file (job_file.cpp), --simgrid traces of a step (simgrid_replay.cpp). Without a deck
// plan_laws.cpp answers. Runs on one process and allocates no training state.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "app/commands.hpp"
#include "app/output_file.hpp"
#include "app/resolved_run.hpp"
#include "app/train/job_file.hpp"
#include "plan_laws.hpp"
#include "plan_pictures.hpp"
#include "plan_report.hpp"
#include "plan_search_report.hpp"
#include "proof_report.hpp"
#include "simgrid_replay.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/plan/machine/machine.hpp"
#include "trireme/plan/prediction.hpp"
#include "trireme/plan/search/search.hpp"
#include "trireme/train/records/describe.hpp"
#include "trireme/train/run/run.hpp"

namespace trireme::app {

namespace {

struct PlanArguments : ResolveArguments {
  std::string machine;  // name or file
  std::string json;     // file, "-": standard output; empty: lines for people
  std::string sbatch;   // job file; empty: none
  double price = 0;     // US dollars for a device and hour; 0: the price of the machine file
  PlanPictures pictures;
  bool ops = false, prove = false, search = false;
  LawArguments laws;
  SimgridArguments simgrid;
};

/// A GPU node computes on its GPUs, whatever this machine has.
DeviceKind device_of(const plan::Machine& machine) {
  return machine.device.kind == plan::MachineKind::gpu ? DeviceKind::cuda : DeviceKind::cpu;
}

/// Reads the machine of the command line; --price takes the place of the price of its file.
plan::Machine read_machine(const PlanArguments& arguments) {
  plan::Machine machine = plan::read_machine(arguments.machine);
  if (arguments.price > 0) machine.price.gpu_hour_usd = arguments.price;
  return machine;
}

ExitCode prove_command(const PlanArguments& arguments) {
  validate(
      !arguments.ops,
      "--prove and --ops: a proof is of communication and lists no ops; leave one of them out");
  validate(arguments.sbatch.empty(),
           "--prove and --sbatch: a proof has no times, which a job file needs; write the job file "
           "without --prove");
  validate(!arguments.pictures.any(),
           "--prove and --timeline or --memory-plot: a proof has neither times nor bytes; draw the "
           "picture without --prove");
  std::optional<DeviceKind> device;
  if (!arguments.machine.empty()) device = device_of(plan::read_machine(arguments.machine));
  const ResolvedRun run = resolve_run(arguments, device);
  return with_deck_locations(run.deck,
                             [&] { return prove_run(arguments.source.path, run, arguments.json); });
}

std::string predicted_text(double seconds, std::optional<double> run_seconds,
                           std::int64_t bytes_of_a_rank) {
  return fmt::format("Predicted: {} a step, {}; {} of device memory for the largest rank.",
                     format_short_seconds(seconds),
                     run_seconds ? format_seconds(*run_seconds) + " to the stop" : "no end",
                     format_bytes(bytes_of_a_rank));
}

/// Writes the job file of --sbatch and says so, unless JSON is printed.
void write_job(const PlanArguments& arguments, const JobFile& job) {
  write_output(arguments.sbatch, job_file(job));
  if (arguments.json == "-") return;
  const JobTime time = job_time_for(job.run_seconds);
  fmt::print("{:<11}{}: {} of {} at most\n", "job", arguments.sbatch,
             counted(time.jobs, "job", "jobs"), format_seconds(time.seconds));
}

/// Ranks layouts, and writes the job file of the best one.
ExitCode search_command(const PlanArguments& arguments, const plan::Machine& machine) {
  validate(!arguments.ops,
           "--search and --ops: a search lists layouts, not the ops of one; run plan with the "
           "tables of a layout and --ops");
  validate(arguments.pictures.timeline.empty(),
           "--search and --timeline: a timeline is of one layout; run plan with the tables of a "
           "layout and --timeline");
  const ResolvedRun run = resolve_data(arguments, device_of(machine));
  const int ranks = ranks_of(arguments, run.deck);
  const std::string text = keys::read_file(arguments.source.path);
  const std::vector<keys::Override> overrides = overrides_of(arguments.source);
  const plan::SearchResult result = plan::search_layouts({.deck = run.deck,
                                                          .text = text,
                                                          .file = arguments.source.path,
                                                          .overrides = overrides,
                                                          .train = run.sets.train,
                                                          .machine = machine,
                                                          .device = run.device,
                                                          .ranks = ranks});
  const SearchReport report{.path = arguments.source.path,
                            .run = run,
                            .machine = machine,
                            .ranks = ranks,
                            .result = result};
  if (arguments.json.empty())
    print_search(report);
  else
    write_output(arguments.json, search_json(report));
  require_a_layout(report);
  write_pictures(arguments.pictures, report, arguments.json == "-");
  if (arguments.sbatch.empty()) return ExitCode::done;
  const plan::FoundLayout& best = result.best.front();
  JobFile job{.path = arguments.sbatch,
              .deck_path = arguments.source.path,
              .run_name = run.deck.run.name,
              .layout = describe_found(best),
              .prediction = predicted_text(best.seconds(), best.run_seconds, best.bytes),
              .machine = machine,
              .ranks = ranks,
              .run_seconds = best.run_seconds,
              .settings = overrides};
  plan::LayoutChoice choice = best.choice;
  choice.data = 0;  // It follows from the ranks of the job.
  for (keys::Override& setting : plan::overrides_of(choice)) job.settings.push_back(setting);
  write_job(arguments, job);
  return ExitCode::done;
}

/// Answers without a deck. Throws InputError if options of both forms are given, or none.
ExitCode plan_without_deck(const PlanArguments& arguments) {
  validate(arguments.laws.any(),
           "plan needs DECK, or without a deck --model-size N or --budget FLOP (trireme plan "
           "--help)");
  validate(arguments.source.sets.empty() && arguments.assumptions.empty() && !arguments.ops &&
               !arguments.prove && !arguments.search && arguments.sbatch.empty() &&
               !arguments.pictures.any() && !arguments.simgrid.any(),
           "--set, --assume, --ops, --prove, --search, --sbatch, --timeline, --memory-plot and "
           "--simgrid belong to a deck: name it, as in trireme plan deck.toml");
  std::optional<plan::Machine> machine;
  if (!arguments.machine.empty()) machine = read_machine(arguments);
  plan_by_laws(arguments.laws, machine, arguments.price, arguments.ranks, arguments.json);
  return ExitCode::done;
}

ExitCode plan_command(const PlanArguments& arguments) {
  // A search takes a while, so its files are checked first.
  if (!arguments.json.empty()) validate_output("--json", arguments.json, OutputForm::json);
  if (!arguments.sbatch.empty()) validate_output("--sbatch", arguments.sbatch, OutputForm::job);
  validate_pictures(arguments.pictures);
  validate_distinct_outputs({{"--json", arguments.json},
                             {"--sbatch", arguments.sbatch},
                             {"--timeline", arguments.pictures.timeline},
                             {"--memory-plot", arguments.pictures.memory}});
  if (arguments.source.path.empty()) return plan_without_deck(arguments);
  validate(!arguments.laws.any(),
           "--model-size, --tokens, --budget, --gpu-hours, --rate and --mfu are for a plan without "
           "a deck: leave them or {} out",
           arguments.source.path);
  validate(!arguments.prove || !arguments.search,
           "--search and --prove: a search ranks many layouts, a proof is of one; search first, "
           "then prove the layout that you take");
  validate(!arguments.simgrid.any() || (!arguments.prove && !arguments.search),
           "--simgrid with --search or --prove: a replay is of one layout and has times; write it "
           "with the tables of the layout, without --search and --prove");
  validate(arguments.price == 0 || (!arguments.prove && !arguments.search),
           "--price with --search or --prove: neither has a cost; plan the layout that you take "
           "with --price");
  if (arguments.prove) return prove_command(arguments);
  validate(!arguments.machine.empty(),
           "plan {}: --machine is missing: times are predicted for a machine; name one, such as "
           "--machine h100. --prove needs none",
           arguments.source.path);
  const plan::Machine machine = read_machine(arguments);
  if (arguments.search) return search_command(arguments, machine);
  const DeviceKind device = device_of(machine);
  std::optional<ReplayFolder> replay_folder;
  if (arguments.simgrid.any()) replay_folder.emplace(arguments.simgrid);
  const ResolvedRun run = resolve_run(arguments, device);
  PlanReport report{.path = arguments.source.path,
                    .run = run,
                    .machine = machine,
                    .options = {},
                    .prediction = {},
                    .warnings = plan_warnings(run.deck),
                    .simgrid = std::nullopt};
  with_deck_locations(run.deck, [&] {
    if (replay_folder) validate_replayed(run.deck);
    report.options = train::make_replica_options(run.deck, run.sets.train, run.rows.front());
    report.prediction = plan::predict(report.options, run.rows.front(), device, machine);
    if (replay_folder) report.simgrid = write_simgrid(arguments.simgrid, *replay_folder, report);
  });
  if (arguments.json.empty())
    print_as_text(report, arguments.ops);
  else
    write_output(arguments.json, plan_json(report));
  write_pictures(arguments.pictures, report, arguments.json == "-");
  if (arguments.sbatch.empty()) return ExitCode::done;
  const plan::Prediction& prediction = report.prediction;
  std::int64_t bytes = 0;
  for (const plan::Place& place : prediction.places)
    bytes = std::max(bytes, plan::bytes_of_rank(machine, place.memory));
  write_job(arguments,
            {.path = arguments.sbatch,
             .deck_path = arguments.source.path,
             .run_name = run.deck.run.name,
             .layout = train::describe_layout(run.deck.parallel, run.rows.front()),
             .prediction = predicted_text(prediction.step_seconds, prediction.run_seconds, bytes),
             .machine = machine,
             .ranks = prediction.ranks,
             .run_seconds = prediction.run_seconds,
             .settings = overrides_of(arguments.source)});
  return ExitCode::done;
}

}  // namespace

void add_plan(CommandLine& line) {
  Command command = line.add(
      "plan", "Predict memory, traffic, time and cost of a run on a machine; starts nothing");
  const auto arguments = std::make_shared<PlanArguments>();
  add_resolve_options(command, *arguments, DeckUse::optional, "Plan");
  command
      .option("--machine,--gpu", arguments->machine,
              "The machine: a name that the program knows (a100, h100 ...), or a machine file; "
              "required with a deck but not with --prove")
      .type_name("NAME|FILE");
  command
      .option("--price", arguments->price,
              "US dollars for a device and hour, in place of the price of the machine")
      .type_name("USD")
      .positive();
  command
      .option("--json", arguments->json,
              "Write one JSON object to FILE instead of printing lines (\"-\": print it)")
      .type_name("FILE");
  command.flag("--ops", arguments->ops, "Also print every op with its work and shape");
  command.flag("--prove", arguments->prove,
               "Instead of times: match the messages and collectives of all ranks and prove that "
               "the run is free of deadlock; needs no --machine");
  command.flag("--search", arguments->search,
               "Rank the layouts of --ranks that fit into the memory of the machine, and print the "
               "tables [batch] and [parallel] of the fastest");
  command
      .option("--sbatch", arguments->sbatch,
              "Write a Slurm job file for the layout, or with --search for the fastest one")
      .type_name("FILE");
  add_simgrid_options(command, arguments->simgrid);
  add_picture_options(command, arguments->pictures);
  add_law_options(command, arguments->laws);
  command.footer(
      "Examples:\n  trireme plan inputs/examples/llama_7b_3d.toml --machine h100 --ranks 512 "
      "--assume tokens:1000000000000,32000\n  trireme plan deck.toml --prove --ranks 16384\n  "
      "trireme plan deck.toml --machine h100 --ranks 512 --search --sbatch job.sh\n  trireme plan "
      "--model-size 7B --tokens 1T --gpu h100\n  trireme plan --budget 1e21\n");
  command.set_single_rank_action([arguments] { return plan_command(*arguments); });
}

}  // namespace trireme::app
