// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "app/check/data_statistics.hpp"
#include "app/resolved_run.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/model/block_work.hpp"
#include "trireme/train/layout.hpp"
#include "trireme/train/noise_advice.hpp"
#include "trireme/train/step/replica_memory.hpp"
#include "trireme/train/step/sum_order.hpp"

namespace trireme::app {

/// Calls of an op with the same work in one step.
struct OpCount {
  std::string op;
  double flops = 0, bytes = 0;  ///< of one call; bytes: the least memory traffic
  std::int64_t calls = 0;
};

/// The result of `check` for a deck in which nothing is wrong.
struct CheckReport {
  std::string path;  ///< of the deck
  /// Forms of the datasets that were assumed, by split, and what was not checked because of them.
  std::vector<std::pair<std::string, std::string>> assumed;
  std::vector<std::string> not_checked;
  deck::Deck deck;
  Datasets sets;
  train::ResolvedLayout layout;             ///< with batch.ramp of its first row
  std::vector<train::ResolvedLayout> rows;  ///< of batch.ramp; without it only `layout`
  model::ModelOptions model;                ///< with the vocabulary of the data
  std::int64_t weights = 0, blocks = 0;
  double batch_norm_bytes = 0;  ///< that a replica sends in a step
  train::SumOrderChoice sum_order;
  train::MemoryPlan memory;
  std::vector<model::BlockWork> block_works;  ///< of a family whose blocks the deck lists
  std::vector<OpCount> ops;  ///< of one step of rank 0, in the order of their first calls
  std::optional<train::NoiseReading> noise;  ///< of the run of --noise-scale
  std::optional<DataStatistics> statistics;  ///< of --statistics
  std::vector<std::string> notes, warnings;
};

/// Prints the report as lines for people.
void print_as_text(const CheckReport& report);
/// Prints the report as one JSON object: a member for each line, with its text and its numbers.
void print_as_json(const CheckReport& report);

}  // namespace trireme::app
