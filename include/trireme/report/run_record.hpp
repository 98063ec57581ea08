// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/deck/deck.hpp"
#include "trireme/monitor/run_account.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/report/compared_values.hpp"
#include "trireme/report/confusion_matrix.hpp"
#include "trireme/report/history.hpp"
#include "trireme/train/records/run_life.hpp"

namespace trireme::report {

/// One start of a run, from environment.json. Texts are printable; one that is missing is empty.
struct StartEntry {
  std::string time, command, deck, restart, checkpoint, version, revision, job, device, layout;
  std::size_t hosts = 0;  ///< different ones
};

/// The figures of a run that were predicted for its machine, from prediction.json.
struct PredictedRun {
  std::string machine;
  std::optional<double> step, forward, backward, update;  ///< seconds
  std::optional<double> memory_bytes;                     ///< of the fullest rank
  std::optional<double> seconds;                          ///< of all steps of the run
  std::optional<double> joules;                           ///< of its nodes in this time
};

/// All that a report shows of a run.
struct RunRecord {
  std::string path, name;
  train::RunLife life;
  /// The resolved deck of the latest start. The text may be there without the deck, as that of
  /// another version.
  std::optional<deck::Deck> deck;
  std::string deck_text;
  /// The first starts and, if there are more, the latest ones.
  std::vector<StartEntry> starts;
  std::size_t start_count = 0;
  std::vector<std::string> hosts, devices;  ///< by world rank, of the latest start
  std::optional<parallel::MeshShape> mesh;  ///< of the latest start
  History history;
  std::optional<monitor::Account> account;
  std::optional<PredictedRun> predicted;
  std::vector<ConfusionMatrix> confusions;
  std::vector<ComparedValues> compared;
  /// Files that are left out, each with the reason.
  std::vector<std::string> troubles;

  /// Returns what limits the speed of the steps, with its remedy; empty without timed steps.
  std::string diagnosis() const;
};

/// Reads a run folder, of a run that goes on, has ended or was killed. Changes nothing in it. Files
/// that are missing or damaged are left out. `max_buckets`: of each curve. Throws InputError if the
/// path is no run folder, Failure if the disk fails.
RunRecord read_run(const std::string& path, std::size_t max_buckets);

}  // namespace trireme::report
