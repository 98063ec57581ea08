// SPDX-License-Identifier: Apache-2.0
//
// The output of `trireme plan DECK`: one line for each subject and a table of the traffic, or one
// JSON object.
#include "plan_report.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/report_line.hpp"
#include "trireme/base/text.hpp"
#include "trireme/train/advice.hpp"
#include "trireme/train/records/describe.hpp"
#include "trireme/train/run/run.hpp"

namespace trireme::app {
namespace {

using Json = nlohmann::ordered_json;
using Line = ReportLine;
using plan::Place;
using plan::Prediction;

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Line machine_line(const PlanReport& report) {
  const plan::Machine& machine = report.machine;
  const Prediction& run = report.prediction;
  const char* tested = machine.tested ? "" : "; not compared with measured steps";
  return {"machine",
          fmt::format("{}: {}, {}{}", machine.name, machine.description,
                      counted(run.nodes, "node", "nodes"), tested),
          {{"name", machine.name}, {"nodes", run.nodes}, {"tested", machine.tested}}};
}

bool is_gpu(const PlanReport& report) {
  return report.machine.device.kind == plan::MachineKind::gpu;
}

const Place& largest_place(const PlanReport& report) {
  const std::vector<Place>& places = report.prediction.places;
  return *std::max_element(places.begin(), places.end(), [&](const Place& a, const Place& b) {
    return plan::bytes_of_rank(report.machine, a.memory) <
           plan::bytes_of_rank(report.machine, b.memory);
  });
}

Line memory_line(const PlanReport& report) {
  const Prediction& run = report.prediction;
  const plan::Machine& machine = report.machine;
  const Place& place = largest_place(report);
  std::string text =
      fmt::format("rank {} needs {}", place.rank, train::describe_memory(place.memory));
  if (machine.overhead.reserved_bytes > 0)
    text += fmt::format("; context, NCCL and libraries about {}",
                        format_bytes(machine.overhead.reserved_bytes));
  // The ranks of a CPU node share its memory.
  const bool on_gpu = is_gpu(report);
  const bool fits = plan::fits(machine, plan::bytes_of_rank(machine, place.memory), run.ranks);
  const char* verdict = fits ? "fits" : on_gpu ? "does NOT fit" : "with the others does NOT fit";
  text += fmt::format("; {} into {} of a {}", verdict, format_bytes(machine.memory.bytes),
                      on_gpu ? "GPU" : "node");
  return {"memory",
          text,
          {{"rank", place.rank},
           {"bytes", place.memory.total()},
           {"reserved_bytes", machine.overhead.reserved_bytes},
           {"device_bytes", machine.memory.bytes},
           {"fits", fits}}};
}

Line flops_line(const Prediction& run) {
  std::string text = fmt::format("{} a step in the model, {} with what is computed again",
                                 format_flops(run.model_flops), format_flops(run.executed_flops));
  Json numbers{{"model_flops", run.model_flops}, {"executed_flops", run.executed_flops}};
  if (run.matrix_flops > 0) {
    text += fmt::format("; the update of matrices takes {} of it, at most {} a rank",
                        format_flops(run.matrix_flops), format_flops(run.busiest_matrix_flops));
    if (run.repeats_matrices)
      text += "; every replica updates all of them, parallel.shard = \"optimizer\" divides them";
    numbers["matrix_flops"] = run.matrix_flops;
    numbers["busiest_matrix_flops"] = run.busiest_matrix_flops;
  }
  return {"compute", text, numbers};
}

/// The parts of the step of the stage that computes longest.
Line step_line(const Prediction& run) {
  const auto computing = [](const plan::StageTimes& stage) {
    return stage.forward + stage.backward + stage.update;
  };
  const auto slowest =
      std::max_element(run.timeline.stages.begin(), run.timeline.stages.end(),
                       [&](const auto& a, const auto& b) { return computing(a) < computing(b); });
  std::string text =
      fmt::format("{} predicted: forward {}, backward {}, update {}",
                  format_short_seconds(run.step_seconds), format_short_seconds(slowest->forward),
                  format_short_seconds(slowest->backward), format_short_seconds(slowest->update));
  Json numbers{{"seconds", run.step_seconds},   {"stage", slowest - run.timeline.stages.begin()},
               {"forward_s", slowest->forward}, {"backward_s", slowest->backward},
               {"update_s", slowest->update},   {"waits_s", Json::object()}};
  double rest = run.step_seconds - computing(*slowest);
  for (const auto& [group, seconds] : slowest->waiting) {
    text += fmt::format(", waits for {} {}", group, format_short_seconds(seconds));
    numbers["waits_s"][group] = seconds;
    rest -= seconds;
  }
  // The stage idles between its last event and the end of the slowest stage.
  if (rest > 1e-3 * run.step_seconds) text += fmt::format(", idle {}", format_short_seconds(rest));
  numbers["idle_s"] = std::max(rest, 0.0);
  return {"step", text, numbers};
}

Line rate_line(const PlanReport& report) {
  const Prediction& run = report.prediction;
  const char* device = is_gpu(report) ? "GPU" : "rank";
  std::string text = fmt::format("{:.4g} samples/s", run.samples_per_s);
  if (run.tokens_per_s > 0) text += fmt::format(", {:.4g} tokens/s", run.tokens_per_s);
  text += fmt::format(", {}/s a {}", format_flops(run.flops_per_device()), device);
  if (run.mfu())
    text += fmt::format(", MFU {:.1f} % of {}/s", 100 * *run.mfu(), format_flops(run.peak));
  return {"rate",
          text,
          {{"samples_per_s", run.samples_per_s},
           {"tokens_per_s", run.tokens_per_s > 0 ? Json(run.tokens_per_s) : Json()},
           {"flops_per_s_per_device", run.flops_per_device()},
           {"peak_flops_per_s", run.peak > 0 ? Json(run.peak) : Json()},
           {"mfu", or_null(run.mfu())}}};
}

Line data_line(const PlanReport& report) {
  const Prediction& run = report.prediction;
  const double of_a_node = run.read_bytes_per_s / run.nodes;
  std::string text = fmt::format("reads {}/s, {}/s a node", format_bytes(run.read_bytes_per_s),
                                 format_bytes(of_a_node));
  const double offered = report.machine.file_system.read_bytes_per_s;
  if (offered > 0) text += fmt::format(" of {}/s", format_bytes(offered));
  return {"data", text, {{"bytes_per_s", run.read_bytes_per_s}, {"bytes_per_s_node", of_a_node}}};
}

Line checkpoint_line(const Prediction& run) {
  std::string text = format_bytes(run.checkpoint_bytes);
  if (run.checkpoint_seconds)
    text += fmt::format(", {} to write", format_short_seconds(*run.checkpoint_seconds));
  if (run.checkpoint_interval_seconds)
    text +=
        fmt::format("; one every {} loses least", format_seconds(*run.checkpoint_interval_seconds));
  return {"checkpoint",
          text,
          {{"bytes", run.checkpoint_bytes},
           {"seconds", or_null(run.checkpoint_seconds)},
           {"best_interval_s", or_null(run.checkpoint_interval_seconds)}}};
}

Line run_line(const Prediction& run) {
  if (!run.run_seconds)
    return {"run",
            "no total: the run is limited by time, or batch.ramp changes its steps",
            {{"seconds", Json()}}};
  const double node_hours = *run.run_seconds / 3600 * run.nodes;
  std::string text = fmt::format("{} to the stop, {:.4g} node-hours",
                                 format_seconds(*run.run_seconds), node_hours);
  if (run.failures) text += fmt::format(", {:.2g} failures expected", *run.failures);
  if (run.energy_joules) text += fmt::format(", {:.4g} kWh", *run.energy_joules / 3.6e6);
  text += cost_text(run.cost_usd);
  return {"run",
          text,
          {{"seconds", *run.run_seconds},
           {"node_hours", node_hours},
           {"failures", or_null(run.failures)},
           {"energy_joules", or_null(run.energy_joules)},
           {"cost_usd", or_null(run.cost_usd)}}};
}

/// The time of the run with its failures; none without a time between failures, or an end.
std::optional<Line> account_line(const PlanReport& report) {
  const Prediction& run = report.prediction;
  const deck::Deck& deck = report.run.deck;
  const Duration& every = deck.checkpoint.every;
  const double interval =
      every.is_time()
          ? every.value
          : run.step_seconds * static_cast<double>(steps_of(every, report.run.rows.front().scale));
  const bool waits = !deck.checkpoint.asynchronous && run.checkpoint_seconds;
  const auto expected = plan::expect_account(
      run, report.machine, {.interval = interval, .wait = waits ? *run.checkpoint_seconds : 0});
  if (!expected) return std::nullopt;
  std::string text;
  constexpr double hopeless = 100;
  if (!(expected->repeated + expected->restart < hopeless * expected->train)) {
    const double mtbf = report.machine.reliability.node_mtbf_hours * 3600 / run.nodes;
    text = fmt::format(
        "more than {} times the training: nodes fail every {}, between checkpoints are {} and a "
        "start takes {}; shorten checkpoint.every",
        hopeless, format_short_seconds(mtbf),
        format_short_seconds(std::min(interval, expected->train)),
        format_short_seconds(expected->start));
  } else {
    text = fmt::format("{} with {:.3g} failures: training {}, done again {}, starts {}",
                       format_seconds(expected->wall()), expected->failures,
                       format_seconds(expected->train), format_seconds(expected->repeated),
                       format_seconds(expected->start + expected->restart));
    if (waits)
      text += fmt::format(", waits for checkpoints {}", format_seconds(expected->checkpoint));
    text += fmt::format("; runtime goodput {:.1f} %", 100 * expected->runtime_goodput());
  }
  const auto finite = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
  return Line{"account",
              text,
              {{"wall_s", finite(expected->wall())},
               {"train_s", expected->train},
               {"repeated_s", finite(expected->repeated)},
               {"start_s", finite(expected->start + expected->restart)},
               {"checkpoint_s", expected->checkpoint},
               {"failures", finite(expected->failures)},
               {"runtime_goodput", expected->runtime_goodput()}}};
}

std::vector<Line> describe(const PlanReport& report) {
  const deck::Deck& deck = report.run.deck;
  const train::ResolvedLayout& layout = report.run.rows.front();
  std::vector<Line> lines{machine_line(report),
                          {"layout",
                           train::describe_layout(deck.parallel, layout),
                           {{"ranks", layout.ranks()},
                            {"data", layout.data},
                            {"tensor", layout.tensor},
                            {"pipeline", layout.pipeline}}},
                          {"batch",
                           train::describe_step(deck.batch.micro, layout),
                           {{"samples", layout.global},
                            {"micro_batches", layout.accumulation},
                            {"micro", deck.batch.micro}}},
                          memory_line(report),
                          flops_line(report.prediction),
                          step_line(report.prediction),
                          rate_line(report),
                          data_line(report),
                          checkpoint_line(report.prediction),
                          run_line(report.prediction)};
  if (const auto line = account_line(report)) lines.push_back(*line);
  if (report.simgrid) lines.push_back(*report.simgrid);
  return lines;
}

/// Returns the words of a purpose: "trireme/parallel/reduce_bucket" is "reduce_bucket".
std::string short_purpose(const std::string& purpose) {
  return purpose.substr(purpose.rfind('/') + 1);
}

/// Prints the requests of rank 0, or of the first rank of each stage if stages differ.
void print_traffic(const Prediction& run) {
  for (const Place& place : run.places) {
    if (place.traffic.empty()) continue;
    fmt::print("\ntraffic of rank {} in a step:\n{:<13}{:>6}  {:<15}{:<24}{:>9}{:>12}{:>12}\n",
               place.rank, "group", "ranks", "request", "purpose", "requests", "payload", "sent");
    for (const plan::Traffic& traffic : place.traffic)
      fmt::print("{:<13}{:>6}  {:<15}{:<24}{:>9}{:>12}{:>12}\n", traffic.group, traffic.ranks,
                 traffic.kind, short_purpose(traffic.purpose), traffic.requests,
                 format_bytes(traffic.bytes), format_bytes(traffic.sent_bytes));
    if (run.timeline.stages.size() > 2) break;
  }
}

void print_ops(const Prediction& run) {
  for (const Place& place : run.places) {
    if (!place.step) continue;
    fmt::print("\nops of rank {} in a step:\n{:<32}{:>9}{:>14}{:>14}  {}\n", place.rank, "op",
               "calls", "FLOP a call", "bytes a call", "product (count x m x n x k)");
    for (std::size_t i = 0; i < place.step->ops.size(); ++i) {
      const ops::OpCall& op = place.step->ops[i];
      const std::string product =
          op.products == 0 ? "" : fmt::format("{} x {} x {} x {}", op.products, op.m, op.n, op.k);
      fmt::print("{:<32}{:>9}{:>14.4g}{:>14.4g}  {}\n", op.op.name, place.step->counts[i], op.flops,
                 op.bytes, product);
    }
    if (run.timeline.stages.size() > 2) break;
  }
}

Json arenas_json(const train::MemoryPlan& plan) {
  return {{"parameters", plan.parameters},
          {"gradients", plan.gradients},
          {"optimizer", plan.optimizer},
          {"activations", plan.activations},
          {"offload_windows", {plan.offload_windows[0], plan.offload_windows[1]}},
          {"recompute", plan.recompute},
          {"boundary", plan.boundary},
          {"ping_pong", {plan.ping_pong[0], plan.ping_pong[1]}},
          {"workspace", plan.workspace},
          {"prepared_weights", plan.prepared_weights},
          {"batches", plan.batches},
          {"host_parameters", plan.host_parameters},
          {"host_optimizer", plan.host_optimizer},
          {"host_activations", plan.host_activations},
          {"host_checkpoint", plan.host_checkpoint},
          {"total", plan.total()},
          {"host_total", plan.host_total()}};
}

Json place_json(const Place& place) {
  Json json{{"rank", place.rank}, {"stage", place.stage}, {"memory", arenas_json(place.memory)}};
  if (!place.step) return json;
  json["flops"] = place.step->flops();
  json["bytes"] = place.step->bytes();
  json["traffic"] = Json::array();
  for (const plan::Traffic& traffic : place.traffic)
    json["traffic"].push_back({{"group", traffic.group},
                               {"ranks", traffic.ranks},
                               {"request", traffic.kind},
                               {"purpose", traffic.purpose},
                               {"requests", traffic.requests},
                               {"bytes", traffic.bytes},
                               {"sent_bytes", traffic.sent_bytes}});
  json["ops"] = Json::array();
  for (std::size_t i = 0; i < place.step->ops.size(); ++i) {
    const ops::OpCall& op = place.step->ops[i];
    json["ops"].push_back({{"op", op.op.name},
                           {"calls", place.step->counts[i]},
                           {"flops", op.flops},
                           {"bytes", op.bytes},
                           {"product", {op.products, op.m, op.n, op.k}}});
  }
  return json;
}

Json stages_json(const plan::Timeline& timeline) {
  Json stages = Json::array();
  for (const plan::StageTimes& stage : timeline.stages)
    stages.push_back({{"forward_s", stage.forward},
                      {"backward_s", stage.backward},
                      {"update_s", stage.update},
                      {"waits_s", stage.waiting}});
  return stages;
}

}  // namespace

std::string cost_text(std::optional<double> usd) {
  if (!usd) return ", cost unknown: give --price USD (for a device and hour)";
  return fmt::format(", {:.4g} USD", *usd);
}

plan::StepCosts planned_costs(const PlanReport& report) {
  return plan::costs_on(report.machine, report.run.rows.front().mesh_shape(),
                        report.options.tfloat32);
}

std::vector<std::string> plan_warnings(const deck::Deck& deck) {
  std::vector<std::string> warnings = train::schedule_warnings(deck);
  if (deck.parallel.offload.any())
    warnings.emplace_back(
        "parallel.offload: the copies between host and device are not in the predicted time");
  return warnings;
}

void print_as_text(const PlanReport& report, bool ops) {
  for (const Line& line : describe(report))
    fmt::print("{:<11}{}\n", line.name, printable_lines(line.text));
  for (const std::string& warning : report.warnings) fmt::print("warning    {}\n", warning);
  print_traffic(report.prediction);
  if (ops) print_ops(report.prediction);
}

std::string plan_json(const PlanReport& report) {
  Json json{{"deck", report.path}, {"assumed", Json::object()}};
  for (const auto& [split, form] : report.run.assumed) json["assumed"][split] = form;
  json["warnings"] = report.warnings;
  for (Line& line : describe(report)) {
    json[line.name] = {{"text", line.text}};
    json[line.name].update(line.numbers);
  }
  json["stages"] = stages_json(report.prediction.timeline);
  json["places"] = Json::array();
  for (const Place& place : report.prediction.places) json["places"].push_back(place_json(place));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace trireme::app
