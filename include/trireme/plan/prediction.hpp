// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/plan/machine/machine.hpp"
#include "trireme/plan/timeline.hpp"
#include "trireme/train/layout.hpp"

namespace trireme::plan {

/// Requests of a step that one rank makes with the same purpose in the same group.
struct Traffic {
  std::string group, purpose, kind;  ///< kind: "all_reduce", "send" ...
  int ranks = 0;                     ///< of the group
  std::int64_t requests = 0, bytes = 0;
  double sent_bytes = 0;  ///< by this rank; library calls count as ring algorithms
};

/// Returns the traffic of a recorded step, in the order of first requests.
std::vector<Traffic> traffic_of(const StepRecord& record);

/// The memory and the step of one rank, which stands for all ranks of its place in the layout.
struct Place {
  int rank = 0, stage = 0;
  train::MemoryPlan memory;
  /// One rank of each stage has it: the others differ by uneven rows only, or have less work on
  /// whole matrices.
  std::optional<StepRecord> step;
  std::vector<Traffic> traffic;
};

/// The prediction of a run on a machine. Times and rates come from a model; bytes, requests and
/// FLOPs are those of the program.
struct Prediction {
  int ranks = 1, nodes = 1;
  std::vector<Place> places;
  Timeline timeline;
  /// Operations of a step of all ranks: of the model (train::model_flops_of_a_sample()), and those
  /// that the program executes.
  double model_flops = 0, executed_flops = 0;
  /// Those of the update rule on whole matrices: of all ranks, and of the rank that has most.
  double matrix_flops = 0, busiest_matrix_flops = 0;
  bool repeats_matrices = false;  ///< every replica does all of that work
  /// peak_flops() of the machine.
  double peak = 0;
  double step_seconds = 0;
  double samples_per_s = 0, tokens_per_s = 0;  ///< tokens: 0 for images
  double read_bytes_per_s = 0;  ///< of training data, by all ranks, as they are stored
  std::int64_t checkpoint_bytes = 0;
  /// Unknown (none) where the machine file lacks a figure or the run has no last step.
  std::optional<double> checkpoint_seconds, run_seconds, failures, checkpoint_interval_seconds,
      energy_joules, cost_usd;

  /// Returns the recorded steps, one of each stage.
  std::vector<const StepRecord*> steps() const;
  /// Returns model FLOPs a second and device, and their part of the peak; none if it is unknown.
  double flops_per_device() const { return model_flops / step_seconds / ranks; }
  std::optional<double> mfu() const {
    return peak > 0 ? std::optional(flops_per_device() / peak) : std::nullopt;
  }
};

/// Returns the dense peak of the compute type in FLOP/s a device; 0 if the machine file lacks it.
double peak_flops(const Machine& machine, const train::ReplicaOptions& options);

/// Returns the bytes that a rank takes from the memory of the machine's devices, with those of
/// context and libraries. The memory of a CPU is also that of the host.
std::int64_t bytes_of_rank(const Machine& machine, const train::MemoryPlan& plan);
/// Returns whether ranks that take as many bytes fit: each into a GPU, or all together into the
/// node of CPU ranks.
bool fits(const Machine& machine, std::int64_t bytes_of_a_rank, int ranks);

/// The work of a model, which does not depend on its layout.
struct ModelWork {
  double flops_of_a_sample = 0;  ///< train::model_flops_of_a_sample()
  std::int64_t checkpoint_bytes = 0;
};

/// Returns the work of a model by rehearsing it on one rank.
ModelWork work_of_model(const train::ReplicaOptions& options);

/// Predicts a run. `device`: the device that the run will use. `work`: that of the model, if it is
/// known. Throws Failure if the stages of the layout would wait for each other without end.
Prediction predict(const train::ReplicaOptions& options, const train::ResolvedLayout& layout,
                   DeviceKind device, const Machine& machine,
                   const std::optional<ModelWork>& work = std::nullopt);

/// Returns Prediction::step_seconds alone, without measuring memory.
double predict_step_seconds(train::ReplicaOptions options, const train::ResolvedLayout& layout,
                            DeviceKind device, const Machine& machine);

/// Returns the interval between checkpoints that loses the least time, in seconds (Daly 2006,
/// equation 37; Young 1974 for short checkpoints). `mtbf`: mean time between failures of all nodes
/// together.
double best_checkpoint_interval(double checkpoint_seconds, double mtbf);

/// The expected time of a run with failures, in seconds. The account of a finished run
/// (monitor::Account) has these parts too.
struct ExpectedAccount {
  double train = 0;       ///< steps that are made once
  double start = 0;       ///< the first start
  double checkpoint = 0;  ///< waits of the steps for checkpoints
  double failures = 0;    ///< their number
  double repeated = 0;    ///< steps done again
  double restart = 0;     ///< starts after failures

  double wall() const { return train + start + checkpoint + repeated + restart; }
  /// Returns the part of the time with nodes in which steps are made for the first time.
  double runtime_goodput() const { return train / wall(); }
};

/// How a run saves, in seconds.
struct SavingTimes {
  double interval = 0;  ///< of computation between checkpoints, above 0
  double wait = 0;      ///< of the steps for each of them
};

/// Returns the account that a run is expected to have; none if its end, or the time between
/// failures of a node, is not known. Source: Daly 2006, equation 13. Its numbers are huge or
/// infinite if failures are much closer together than checkpoints.
std::optional<ExpectedAccount> expect_account(const Prediction& run, const Machine& machine,
                                              const SavingTimes& saving);

}  // namespace trireme::plan
