// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "app/resolved_run.hpp"
#include "trireme/plan/search/search.hpp"

namespace trireme::app {

/// The result of `plan --search`.
struct SearchReport {
  std::string path;  ///< of the deck
  const ResolvedRun& run;
  const plan::Machine& machine;
  int ranks = 1;
  const plan::SearchResult& result;
};

/// Returns the tables [parallel] and [batch] of a found layout as TOML, to be pasted into the deck.
std::string tables_of(const plan::FoundLayout& found);

/// Returns one line for a layout: "512 data x 1 tensor x 1 pipeline, optimizer sharded; 2
/// micro-batches of 2".
std::string describe_found(const plan::FoundLayout& found);

/// Prints the layouts, fastest first, why others were rejected, and the tables of the best one.
void print_search(const SearchReport& report);
/// Returns the same as one JSON object.
std::string search_json(const SearchReport& report);

/// Throws InputError if no layout fits: with the reasons, and the layout that needs least memory.
void require_a_layout(const SearchReport& report);

}  // namespace trireme::app
