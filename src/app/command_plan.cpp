// `trireme plan`: predicts memory, traffic, time and cost of a run before it is queued.
//
// Order: resolve the deck as `check` does, read the machine file, record and simulate a step
// (src/plan), print (plan_report.cpp). Runs on one process and allocates no training state.
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "commands.hpp"
#include "plan_report.hpp"
#include "resolved_run.hpp"
#include "trireme/io/file.hpp"
#include "trireme/plan/machine.hpp"
#include "trireme/plan/prediction.hpp"
#include "trireme/train/run.hpp"

namespace trireme::app {

namespace {

struct PlanArguments : ResolveArguments {
  std::string machine;  // name or file
  std::string json;     // file, "-": standard output; empty: lines for people
  bool ops = false;
};

ExitCode plan_command(const PlanArguments& arguments) {
  const plan::Machine machine = plan::read_machine(arguments.machine);
  // A GPU node computes on its GPUs, whatever this machine has.
  const DeviceKind device =
      machine.device.kind == plan::MachineKind::gpu ? DeviceKind::cuda : DeviceKind::cpu;
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
  add_resolve_options(command, *arguments, DeckUse::required, "Plan");
  command
      .option("--machine", arguments->machine,
              "The machine: a name that the program knows (a100, h100 ...), or a machine file")
      .type_name("NAME|FILE")
      .required();
  command
      .option("--json", arguments->json,
              "Write one JSON object to FILE instead of printing lines (\"-\": print it)")
      .type_name("FILE");
  command.flag("--ops", arguments->ops, "Also print every op with its work and shape");
  command.footer(
      "Examples:\n  trireme plan inputs/recipes/llama_7b.toml --machine h100 --ranks 512 --assume "
      "tokens:1000000000000,32000\n");
  command.set_single_rank_action([arguments] { return plan_command(*arguments); });
}

}  // namespace trireme::app
