// SPDX-License-Identifier: Apache-2.0
//
// Compares the times of a start with its prediction, by part. The recorder collects them on rank 0
// and logs the lines at the end.
#include "trireme/train/records/prediction_comparison.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::train {
namespace {

/// Returns "prediction: forward: predicted 1.2 ms, measured 1.3 ms, ratio 1.08".
std::string line_of(const std::string& part, std::optional<double> predicted, double measured) {
  const std::string measured_text = format_short_seconds(measured);
  if (!predicted)
    return fmt::format("prediction: {}: not predicted, measured {}", part, measured_text);
  std::string line = fmt::format("prediction: {}: predicted {}, measured {}", part,
                                 format_short_seconds(*predicted), measured_text);
  if (*predicted > 0) line += fmt::format(", ratio {:.2f}", measured / *predicted);
  return line;
}

std::string mean_of(const char* what, std::int64_t count) {
  return count == 1 ? std::string(what) : fmt::format("{}, mean of {}", what, count);
}

StepTimes divided(const StepTimes& sums, std::int64_t count) {
  const auto n = static_cast<double>(count);
  StepTimes means;
  means.data = sums.data / n;
  means.forward = sums.forward / n;
  means.backward = sums.backward / n;
  means.comm_exposed = sums.comm_exposed / n;
  means.optimizer = sums.optimizer / n;
  means.total = sums.total / n;
  return means;
}

}  // namespace

void PredictionComparison::add_step(const StepTimes& times) {
  if (first_steps_.size() < max_first_steps) {
    first_steps_.push_back(times);
    return;
  }
  later_steps_ += times;
  ++num_later_steps_;
}

void PredictionComparison::add_evaluation(double seconds) {
  ++evaluations_.count;
  evaluations_.seconds += seconds;
}

void PredictionComparison::add_checkpoint(double seconds) {
  ++checkpoints_.count;
  checkpoints_.seconds += seconds;
}

std::vector<std::string> PredictionComparison::lines_of_step(const StepTimes& means) const {
  const StepPrediction& predicted = *options_.prediction.step;
  std::vector<std::string> lines{line_of("step", predicted.step, means.total)};
  if (options_.host_computes) {
    lines.push_back(line_of("forward", predicted.forward, means.forward));
    lines.push_back(line_of("backward", predicted.backward, means.backward));
    lines.push_back(line_of("update", predicted.update, means.optimizer));
    lines.push_back(line_of("waiting for other ranks", predicted.waiting, means.comm_exposed));
  } else {
    lines.push_back(line_of("computation and communication", predicted.step,
                            means.forward + means.backward + means.optimizer + means.comm_exposed));
  }
  lines.push_back(line_of("waiting for data", std::nullopt, means.data));
  return lines;
}

std::vector<std::string> PredictionComparison::lines() const {
  const MachinePrediction& machine = options_.prediction;
  if (!machine.step || first_steps_.empty()) return {};
  // 1. The steps to compare.
  const std::int64_t num_steps = std::ssize(first_steps_) + num_later_steps_,
                     left_out = std::min(std::ssize(first_steps_), num_steps / 2),
                     count = num_steps - left_out;
  StepTimes sums = later_steps_;
  for (auto i = static_cast<std::size_t>(left_out); i < first_steps_.size(); ++i)
    sums += first_steps_[i];
  const StepTimes means = divided(sums, count);
  // 2. The parts of a step.
  std::vector<std::string> lines{
      fmt::format("prediction for {}: means of rank 0 over {}{}; ratio = measured / predicted",
                  printable(machine.machine), counted(count, "step", "steps"),
                  left_out > 0 ? fmt::format(", without the first {}", left_out) : "")};
  for (std::string& line : lines_of_step(means)) lines.push_back(std::move(line));
  if (machine.peak_flops > 0) {
    const auto mfu = [&](double seconds) {
      return 100 * options_.flops_per_rank / seconds / machine.peak_flops;
    };
    lines.push_back(fmt::format("prediction: MFU: predicted {:.1f} %, measured {:.1f} %",
                                mfu(machine.step->step), mfu(means.total)));
  }
  // 3. The work between steps.
  if (evaluations_.count > 0)
    lines.push_back(line_of(mean_of("evaluation", evaluations_.count), std::nullopt,
                            evaluations_.seconds / static_cast<double>(evaluations_.count)));
  if (checkpoints_.count > 0)
    lines.push_back(line_of(mean_of("checkpoint", checkpoints_.count), machine.step->checkpoint,
                            checkpoints_.seconds / static_cast<double>(checkpoints_.count)));
  return lines;
}

}  // namespace trireme::train
