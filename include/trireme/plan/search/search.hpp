// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/deck/deck.hpp"
#include "trireme/device/device.hpp"
#include "trireme/parallel/options.hpp"
#include "trireme/plan/machine/machine.hpp"
#include "trireme/train/layout.hpp"
#include "trireme/train/step/replica_memory.hpp"

namespace trireme::plan {

/// The keys of [parallel] and [batch] that a search varies.
struct LayoutChoice {
  int data = 1, tensor = 1, pipeline = 1;  ///< data = 0: "auto"
  int chunks = 1;  ///< Two or more: the interleaved schedule; otherwise 1f1b.
  std::int64_t micro = 1;
  bool sequence = false;
  parallel::ShardKind shard = parallel::ShardKind::none;
  int recompute = 0;  ///< Every n-th block; 0: none.
  parallel::Offload offload = {};
  bool operator==(const LayoutChoice&) const = default;
};

/// Returns the overrides that set all keys of a choice in a deck.
std::vector<keys::Override> overrides_of(const LayoutChoice& choice);

/// Arguments of search_layouts(), by reference for the duration of the call.
struct SearchRequest {
  const deck::Deck& deck;  ///< All keys but those of a choice are kept.
  /// The text of the deck, its name for messages, and the user's overrides. A key that they set is
  /// not varied.
  const std::string& text;
  const std::string& file;
  const std::vector<keys::Override>& overrides;
  const data::DatasetInfo& train;
  const Machine& machine;
  DeviceKind device = DeviceKind::cuda;
  int ranks = 1;
  int max_results = 10;
  /// False: every layout is measured and predicted; for tests.
  bool prune = true;
};

/// A layout that fits into the memory of the machine, as predict() and the memory plan describe it.
struct FoundLayout {
  LayoutChoice choice;
  deck::Deck deck = {};  ///< That of the request with the choice.
  train::ResolvedLayout layout = {};
  train::MemoryPlan memory = {};  ///< Of the rank that needs most.
  std::int64_t bytes = 0;         ///< bytes_of_rank() of it.
  double step_seconds = 0;        ///< Prediction::step_seconds
  /// The copies of parallel.offload, which a prediction leaves out, as if nothing ran beside them.
  double copy_seconds = 0;
  std::optional<double> mfu = {}, run_seconds = {};  ///< As predicted, for seconds().
  int nodes = 1;

  double seconds() const { return step_seconds + copy_seconds; }
};

/// Layouts that were rejected for one reason.
struct RejectedLayouts {
  std::string reason;  ///< The rule with the values of the first of them.
  std::int64_t layouts = 0;
};

struct SearchResult {
  std::vector<FoundLayout> best;         ///< The fastest one first; among equals the simplest.
  std::int64_t layouts = 0;              ///< All that were considered.
  std::vector<RejectedLayouts> refused;  ///< By the checks of the deck; most layouts first.
  /// Layouts that need more memory than there is, and the least that one of them needs: a lower
  /// bound, or the exact bytes if `best` is empty.
  std::int64_t too_large = 0, smallest_bytes = 0;
  std::optional<LayoutChoice> smallest;  ///< The layout that needs `smallest_bytes`.
  /// Layouts whose least possible step time is above that of the last one of `best`.
  std::int64_t slower = 0;
  std::int64_t measured = 0, predicted = 0;  ///< Layouts that were measured or predicted exactly.
};

/// Finds the layouts of a run on `ranks` ranks that fit into the memory of the machine and are
/// predicted to be the fastest.
///
/// The space:
/// - All divisions of the ranks into data, tensor and pipeline ranks.
/// - All micro-batches that divide the share of a replica. The global batch is the deck's.
/// - Chunks of a stage: 1, 2, 4, 8 and the deck's.
/// - All kinds of sharding; recompute none, every 4th, every 2nd, all and the deck's.
/// - Sequence parallelism where it is possible.
/// - Offload only where a layout does not fit without.
///
/// The checks of the deck and of resolve_rows() decide which choices are valid. The search is best
/// first: each layout has a lower bound of its step time, which is refined when it is the lowest
/// one, until the lowest are predictions. So the result is that of predicting all layouts. The
/// bounds are described in docs/design/planning.md.
///
/// Throws InputError if the deck itself is wrong.
SearchResult search_layouts(const SearchRequest& request);

}  // namespace trireme::plan
