#include <algorithm>

#include "writer.hpp"

namespace trireme::deck {

namespace {

std::string path_of(const Entry& entry) { return entry.table + "." + entry.key; }

/// What decides the tensors, the numbers drawn and the order of samples may not change at a restart.
bool is_forbidden(const std::string& path) {
  return path.starts_with("model.") || path == "run.seed" || path.starts_with("data.shuffle") || path == "optimizer.kind";
}

}  // namespace

std::vector<Difference> differences(const Deck& before, const Deck& after) {
  std::vector<Entry> old_entries = entries(before);
  std::vector<Difference> result;
  for (const Entry& entry : entries(after)) {
    const std::string path = path_of(entry);
    const auto old = std::find_if(old_entries.begin(), old_entries.end(), [&](const Entry& e) { return path_of(e) == path; });
    const std::string value = old == old_entries.end() ? "" : old->value;
    if (old != old_entries.end()) old_entries.erase(old);
    if (value != entry.value) result.push_back({path, value, entry.value, is_forbidden(path)});
  }
  for (const Entry& entry : old_entries) result.push_back({path_of(entry), entry.value, "", is_forbidden(path_of(entry))});
  return result;
}

}  // namespace trireme::deck
