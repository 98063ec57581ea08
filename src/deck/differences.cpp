// SPDX-License-Identifier: Apache-2.0
//
// Compares the deck of a checkpoint with the deck of its restart, key by key.
#include <algorithm>

#include "writer.hpp"

namespace trireme::deck {

namespace {

std::string path_of(const Entry& entry) { return entry.table + "." + entry.key; }

/// Returns whether two values of a key are equal. A missing vocabulary equals any other: the data
/// define it, and the data must not change either.
bool is_same(const std::string& path, const std::string& before, const std::string& after) {
  return before == after || (path == "model.vocabulary" && (before.empty() || after.empty()));
}

}  // namespace

bool is_fixed_at_restart(const std::string& path) {
  return (path.starts_with("model.") && path != "model.head_tile_mb") || path == "run.seed" ||
         path.starts_with("data.shuffle") || path.starts_with("data.hdf5.") ||
         path.starts_with("target.") || path == "loss.kind" || path == "loss.delta" ||
         path == "data.samples" || path == "optimizer.kind" || path == "parallel.sync";
}

std::vector<Difference> differences(const Deck& before, const Deck& after) {
  std::vector<Entry> old_entries = entries(before);
  std::vector<Difference> result;
  for (const Entry& entry : entries(after)) {
    const std::string path = path_of(entry);
    const auto old = std::find_if(old_entries.begin(), old_entries.end(),
                                  [&](const Entry& e) { return path_of(e) == path; });
    const std::string value = old == old_entries.end() ? "" : old->value;
    if (old != old_entries.end()) old_entries.erase(old);
    if (!is_same(path, value, entry.value))
      result.push_back({path, value, entry.value, is_fixed_at_restart(path)});
  }
  for (const Entry& entry : old_entries)
    if (const std::string path = path_of(entry); !is_same(path, entry.value, ""))
      result.push_back({path, entry.value, "", is_fixed_at_restart(path)});
  return result;
}

}  // namespace trireme::deck
