// `trireme plan`: predicts memory, traffic, time and cost of a run before it is queued.
//
// Order: resolve the deck as `check` does, read the machine file, record and simulate a step
// (src/plan), print (plan_report.cpp). With --prove the communication of a run is matched instead
// (proof_report.cpp). Runs on one process and allocates no training state.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "commands.hpp"
#include "plan_report.hpp"
#include "proof_report.hpp"
#include "resolved_run.hpp"
#include "trireme/io/file.hpp"
#include "trireme/plan/machine.hpp"
#include "trireme/plan/prediction.hpp"
#include "trireme/train/advice.hpp"
#include "trireme/train/run.hpp"

namespace trireme::app {

namespace {

struct PlanArguments : ResolveArguments {
  std::string machine;  // name or file
  std::string json;     // file, "-": standard output; empty: lines for people
  bool ops = false, prove = false;
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

ExitCode plan_command(const PlanArguments& arguments) {
  if (arguments.prove) return prove_command(arguments);
  validate(!arguments.machine.empty(),
           "--machine is missing: times are predicted for a machine; name one, such as --machine "
           "h100, or prove that the run is free of deadlock with --prove, which needs none");
  const plan::Machine machine = plan::read_machine(arguments.machine);
  const DeviceKind device = device_of(machine);
  const ResolvedRun run = resolve_run(arguments, device);
  PlanReport report{.path = arguments.source.path,
                    .run = run,
                    .machine = machine,
                    .prediction = {},
                    .warnings = train::schedule_warnings(run.deck)};
  if (run.deck.parallel.offload.any())
    report.warnings.push_back(
        "parallel.offload: the copies between host and device are not in the predicted time");
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
      .type_name("NAME|FILE");
  command
      .option("--json", arguments->json,
              "Write one JSON object to FILE instead of printing lines (\"-\": print it)")
      .type_name("FILE");
  command.flag("--ops", arguments->ops, "Also print every op with its work and shape");
  command.flag("--prove", arguments->prove,
               "Instead of times: match the messages and collectives of all ranks and prove that "
               "the run is free of deadlock; needs no --machine");
  command.footer(
      "Examples:\n  trireme plan inputs/recipes/llama_7b.toml --machine h100 --ranks 512 --assume "
      "tokens:1000000000000,32000\n  trireme plan deck.toml --prove --ranks 16384\n");
  command.set_single_rank_action([arguments] { return plan_command(*arguments); });
}

}  // namespace trireme::app
