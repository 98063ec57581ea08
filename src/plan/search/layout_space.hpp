// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "trireme/plan/search/search.hpp"
#include "trireme/train/step/replica_options.hpp"

namespace trireme::plan {

/// Layouts that differ only by sharding, recomputation and offload, which concern no other key.
struct LayoutGroup {
  LayoutChoice choice;  ///< With the shard kind, recomputation and offload of none.
  train::ResolvedLayout layout;
};

/// All layouts of a search that the deck permits.
struct LayoutSpace {
  std::vector<LayoutGroup> groups;
  /// The kinds of a group with several data ranks. With one data rank there is nothing to share.
  std::vector<parallel::ShardKind> shards;
  std::vector<int> recomputes;
  /// The offload of the deck if --set fixes it; then no other one is tried.
  bool offload_is_fixed = false;
  /// The machine file has the speed of copies. Without it offload is not tried.
  bool tries_offload = false;
  std::vector<RejectedLayouts> refused;  ///< Most layouts first.

  std::vector<parallel::ShardKind> shards_of(const LayoutGroup& group) const;
};

/// Returns all choices that pass the checks of the deck and of resolve_rows().
LayoutSpace make_layout_space(const SearchRequest& request);

/// Returns the deck of a request with a choice, parsed and checked, and the data that the deck of
/// the request has. Throws InputError.
deck::Deck deck_of(const SearchRequest& request, const LayoutChoice& choice);

/// Returns the layout of such a deck on the ranks of the request. Throws InputError.
train::ResolvedLayout layout_of(const SearchRequest& request, const deck::Deck& deck);

/// Returns the replica options of a choice whose layout is resolved, without checks.
train::ReplicaOptions options_of(const SearchRequest& request, const LayoutChoice& choice,
                                 const train::ResolvedLayout& layout);

/// Returns the offloads to try if `choice` needs too much memory: each has one kind of state more.
std::vector<LayoutChoice> with_more_offload(const LayoutSpace& space, const LayoutChoice& choice);

}  // namespace trireme::plan
