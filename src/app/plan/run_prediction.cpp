// SPDX-License-Identifier: Apache-2.0
//
// The prediction of a run that starts, with the machine of monitor.machine: `trireme train` hands
// it to library train, which is below library plan.
#include "run_prediction.hpp"

#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "plan_report.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/device/device.hpp"
#include "trireme/io/file.hpp"
#include "trireme/plan/prediction.hpp"
#include "trireme/train/run/run.hpp"

namespace trireme::app {
namespace {

/// Predicts the run and writes the file. Throws Error.
train::StepPrediction predict(const train::Run& run, const plan::Machine& machine,
                              const std::string& deck_path) {
  ResolvedRun resolved;
  resolved.deck = run.deck;
  resolved.rows = {run.layout};
  const PlanReport report{
      .path = deck_path,
      .run = resolved,
      .machine = machine,
      .options = run.replica->options(),
      .prediction = plan::predict(run.replica->options(), run.layout, run.device.kind, machine),
      .warnings = plan_warnings(run.deck)};
  io::replace_file(run.folder() / io::run_names::prediction, plan_json(report));
  // Rank 0 is in the first stage, which may idle until the last one ends.
  const plan::StageTimes& stage = report.prediction.timeline.stages.front();
  const double seconds = report.prediction.step_seconds,
               rest = seconds - stage.forward - stage.backward - stage.update;
  constexpr double rounding = 1e-9;
  return {.step = seconds,
          .forward = stage.forward,
          .backward = stage.backward,
          .update = stage.update,
          .waiting = rest > rounding * seconds ? rest : 0,
          .checkpoint = report.prediction.checkpoint_seconds};
}

}  // namespace

std::optional<plan::Machine> read_machine_of(const deck::Deck& deck) {
  const std::string& name = deck.monitor.machine;
  if (name.empty()) return std::nullopt;
  try {
    return plan::read_machine(name);
  } catch (const InputError& error) {
    throw InputError(fmt::format("monitor.machine = \"{}\": {}", printable(name), error.what()));
  }
}

train::Predictor make_predictor(plan::Machine machine, std::string deck_path, Log& log) {
  return [machine = std::move(machine), deck_path = std::move(deck_path),
          &log](const train::Run& run) {
    train::MachinePrediction result{.machine = machine.name};
    // The prediction of an earlier start may be that of another deck or layout.
    std::error_code ignored;
    std::filesystem::remove(run.folder() / io::run_names::prediction, ignored);
    const bool is_gpu = machine.device.kind == plan::MachineKind::gpu;
    if (is_gpu != (run.device.kind == DeviceKind::cuda)) {
      log.warn(
          "monitor.machine = \"{}\": is a node with {}, but this run computes on {}; no mfu is "
          "recorded and nothing is predicted",
          printable(run.deck.monitor.machine), is_gpu ? "GPUs" : "CPUs only",
          is_gpu ? "the CPU" : "GPUs");
      return result;
    }
    if (!is_gpu && machine.device.threads != KokkosScope::threads())
      log.warn(
          "monitor.machine = \"{}\": was measured with {} a rank, but this run has {}; mfu and "
          "prediction are those of the machine file",
          printable(run.deck.monitor.machine), counted(machine.device.threads, "thread", "threads"),
          KokkosScope::threads());
    result.peak_flops = plan::peak_flops(machine, run.replica->options());
    if (result.peak_flops == 0)
      log.warn(
          "monitor.machine = \"{}\": its table [peak] has nothing for the deck's "
          "precision.compute; no mfu is recorded",
          printable(run.deck.monitor.machine));
    try {
      result.step = predict(run, machine, deck_path);
      log.info("prediction for {}: {} a step; {} has the parts", printable(machine.name),
               format_short_seconds(result.step->step), io::run_names::prediction);
    } catch (const std::exception& error) {
      log.warn("monitor.machine = \"{}\": the run cannot be predicted: {}",
               printable(run.deck.monitor.machine), error.what());
    }
    return result;
  };
}

}  // namespace trireme::app
