// `trireme plan`: predicts memory, traffic, time and cost of a run before it is queued.
//
// Order: resolve the deck as `check` does, read the machine file, record and simulate a step
// (src/plan), print (plan_report.cpp). With --prove the communication of a run is matched instead
// (proof_report.cpp). Without a deck plan_laws.cpp answers. Runs on one process and allocates no
// training state.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "commands.hpp"
#include "plan_laws.hpp"
#include "plan_report.hpp"
#include "proof_report.hpp"
#include "resolved_run.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/file.hpp"
#include "trireme/plan/machine.hpp"
#include "trireme/plan/prediction.hpp"
#include "trireme/train/run.hpp"

namespace trireme::app {

namespace {

struct PlanArguments : ResolveArguments {
  std::string machine;  // name or file
  std::string json;     // file, "-": standard output; empty: lines for people
  bool ops = false, prove = false;
  LawArguments laws;
};

/// A GPU node computes on its GPUs, whatever this machine has.
DeviceKind device_of(const plan::Machine& machine) {
  return machine.device.kind == plan::MachineKind::gpu ? DeviceKind::cuda : DeviceKind::cpu;
}

ExitCode prove_command(const PlanArguments& arguments) {
  validate(
      !arguments.ops,
      "--prove and --ops: a proof is of communication and lists no ops; leave one of them out");
  std::optional<DeviceKind> device;
  if (!arguments.machine.empty()) device = device_of(plan::read_machine(arguments.machine));
  const ResolvedRun run = resolve_run(arguments, device);
  return with_deck_locations(run.deck,
                             [&] { return prove_run(arguments.source.path, run, arguments.json); });
}

/// Answers without a deck. Throws InputError if options of both forms are given, or none.
ExitCode plan_without_deck(const PlanArguments& arguments) {
  validate(arguments.laws.any(),
           "plan needs DECK, or without a deck --model-size N or --budget FLOP (trireme plan "
           "--help)");
  validate(
      arguments.source.sets.empty() && arguments.assumptions.empty() && !arguments.ops &&
          !arguments.prove,
      "--set, --assume, --ops and --prove belong to a deck: name it, as in trireme plan deck.toml");
  plan_by_laws(arguments.laws, arguments.machine, arguments.ranks, arguments.json);
  return ExitCode::done;
}

ExitCode plan_command(const PlanArguments& arguments) {
  if (arguments.source.path.empty()) return plan_without_deck(arguments);
  validate(!arguments.laws.any(),
           "--model-size, --tokens, --budget, --gpu-hours, --rate and --mfu are for a plan without "
           "a deck: leave them or {} out",
           arguments.source.path);
  if (arguments.prove) return prove_command(arguments);
  validate(!arguments.machine.empty(),
           "plan {}: --machine is missing: times are predicted for a machine; name one, such as "
           "--machine h100. --prove needs none",
           arguments.source.path);
  const plan::Machine machine = plan::read_machine(arguments.machine);
  const DeviceKind device = device_of(machine);
  const ResolvedRun run = resolve_run(arguments, device);
  PlanReport report{.path = arguments.source.path,
                    .run = run,
                    .machine = machine,
                    .prediction = {},
                    .warnings = plan_warnings(run.deck)};
  with_deck_locations(run.deck, [&] {
    const train::ReplicaOptions options =
        train::make_replica_options(run.deck, run.sets.train, run.rows.front());
    report.prediction = plan::predict(options, run.rows.front(), device, machine);
  });
  if (arguments.json.empty()) {
    print_as_text(report, arguments.ops);
  } else if (arguments.json == "-") {
    fmt::print("{}", plan_json(report));
  } else {
    io::replace_file(arguments.json, plan_json(report));
  }
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
      .option("--json", arguments->json,
              "Write one JSON object to FILE instead of printing lines (\"-\": print it)")
      .type_name("FILE");
  command.flag("--ops", arguments->ops, "Also print every op with its work and shape");
  command.flag("--prove", arguments->prove,
               "Instead of times: match the messages and collectives of all ranks and prove that "
               "the run is free of deadlock; needs no --machine");
  add_law_options(command, arguments->laws);
  command.footer(
      "Examples:\n  trireme plan inputs/recipes/llama_7b.toml --machine h100 --ranks 512 --assume "
      "tokens:1000000000000,32000\n  trireme plan deck.toml --prove --ranks 16384\n  trireme plan "
      "--model-size 7B --tokens 1T --gpu h100\n  trireme plan --budget 1e21\n");
  command.set_single_rank_action([arguments] { return plan_command(*arguments); });
}

}  // namespace trireme::app
