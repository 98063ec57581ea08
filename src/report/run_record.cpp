// SPDX-License-Identifier: Apache-2.0
//
// Reads all files of a run folder that a report shows. Each is read by itself, so that a damaged
// one costs its own part of the report alone.
//
// Everybody who may write in the folder can change its files. Readers are bounded, links are
// refused, and texts are made printable here, or escaped where they are written.
#include "trireme/report/run_record.hpp"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "trireme/base/check.hpp"
#include "trireme/base/plain_file.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/json.hpp"
#include "trireme/monitor/run_folder.hpp"
#include "trireme/train/supervision/bottleneck.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Returns a member of an object, null if it is missing.
const Json& member(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

std::string text_of(const Json& object, const char* key, std::size_t max_bytes = 200) {
  const Json& found = member(object, key);
  return found.is_string() ? printable(found.get_ref<const std::string&>(), max_bytes) : "";
}

std::vector<std::string> texts_of(const Json& object, const char* key) {
  std::vector<std::string> texts;
  const Json& found = member(object, key);
  if (found.is_array())
    for (const Json& each : found)
      texts.push_back(each.is_string() ? printable(each.get_ref<const std::string&>()) : "");
  return texts;
}

/// Returns a number that is at least 0 and not beyond all measure.
std::optional<double> number_of(const Json& object, const char* key) {
  constexpr double largest = 1e15;
  const Json& found = member(object, key);
  if (!found.is_number()) return std::nullopt;
  const auto number = found.get<double>();
  return number >= 0 && number <= largest ? std::optional(number) : std::nullopt;
}

std::size_t count_hosts(const Json& start) {
  const Json& hosts = member(start, "hosts");
  std::set<std::string_view> different;
  if (hosts.is_array())
    for (const Json& host : hosts)
      if (host.is_string()) different.insert(host.get_ref<const std::string&>());
  return different.size();
}

StartEntry entry_of(const Json& start) {
  constexpr std::size_t max_command_bytes = 2000;
  return {.time = text_of(start, "time"),
          .command = text_of(start, "command", max_command_bytes),
          .deck = text_of(start, "deck"),
          .restart = text_of(start, "restart"),
          .checkpoint = text_of(start, "checkpoint"),
          .version = text_of(start, "version"),
          .revision = text_of(start, "source_revision"),
          .job = text_of(start, "job"),
          .device = text_of(start, "device"),
          .layout = text_of(start, "layout"),
          .hosts = count_hosts(start)};
}

/// Reads the shape of a layout, as in "data 4 x tensor 1 x pipeline 1".
std::optional<parallel::MeshShape> mesh_of(const std::string& text, std::size_t num_ranks) {
  parallel::MeshShape shape;
  const auto degree = [&](const char* name, int& value) {
    const std::string word = std::string(name) + ' ';
    const std::size_t at = text.find(word);
    if (at == std::string::npos) return false;
    const std::size_t begin = at + word.size(), end = text.find(' ', begin);
    const auto number = parse_integer(std::string_view(text).substr(begin, end - begin));
    constexpr std::int64_t max_ranks = 1 << 20;
    if (!number || *number < 1 || *number > max_ranks) return false;
    value = static_cast<int>(*number);
    return true;
  };
  if (!degree("data", shape.data) || !degree("tensor", shape.tensor) ||
      !degree("pipeline", shape.pipeline))
    return std::nullopt;
  const auto ranks = static_cast<std::int64_t>(num_ranks),
             replica_ranks = std::int64_t{shape.data} * shape.tensor;
  if (replica_ranks > ranks || replica_ranks * shape.pipeline != ranks) return std::nullopt;
  return shape;
}

PredictedRun prediction_of(const Json& plan) {
  const Json& step = member(plan, "step");
  return {.machine = text_of(member(plan, "machine"), "name"),
          .step = number_of(step, "seconds"),
          .forward = number_of(step, "forward_s"),
          .backward = number_of(step, "backward_s"),
          .update = number_of(step, "update_s"),
          .memory_bytes = number_of(member(plan, "memory"), "bytes"),
          .seconds = number_of(member(plan, "run"), "seconds"),
          .joules = number_of(member(plan, "run"), "energy_joules")};
}

/// Reads one run folder.
class Reader {
 public:
  Reader(const std::string& path, std::size_t max_buckets)
      : folder_(path),
        history_(max_buckets),
        record_{.path = path,
                .name = {},
                .life = {},
                .deck = {},
                .deck_text = {},
                .starts = {},
                .hosts = {},
                .devices = {},
                .mesh = {},
                .history = history_.result(),
                .account = {},
                .predicted = {},
                .confusions = {},
                .compared = {},
                .troubles = {}} {}

  RunRecord read() {
    // The end is looked for first: rows that come later are those of a run that goes on.
    record_.life = train::read_life(folder_);
    record_.name = record_.life.name;
    if (!record_.life.trouble.empty()) record_.troubles.push_back(record_.life.trouble);
    attempt([&] { read_deck(); });
    attempt([&] { read_starts(); });
    attempt([&] { read_rows(); });
    attempt([&] { read_prediction(); });
    read_confusions();
    read_predictions();
    return std::move(record_);
  }

 private:
  /// Reads a file; if it cannot be read, the report says so and goes on.
  void attempt(const std::function<void()>& read) {
    try {
      read();
    } catch (const InputError& error) {
      add_trouble(error.what());
    }
  }

  void add_trouble(std::string text) {
    // A deck may have several mistakes, one in each line.
    for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos;)
      text.replace(at, 1, "; ");
    record_.troubles.push_back(printable(text, 500));
  }

  void read_deck() {
    const std::string path = folder_ / io::run_names::deck;
    if (!is_there(path)) return;
    constexpr std::int64_t max_bytes = std::int64_t{1} << 20;
    record_.deck_text = io::read_own_text_file(path, max_bytes);
    record_.deck = deck::parse_stored(record_.deck_text, path).deck;
  }

  void read_starts() {
    constexpr std::size_t max_first = 10, max_last = 40;
    const Json starts = folder_.read_environment();
    record_.start_count = starts.size();
    for (std::size_t i = 0; i < starts.size(); ++i)
      if (i < max_first || i + max_last >= starts.size())
        record_.starts.push_back(entry_of(starts[i]));
    if (record_.starts.empty()) return;
    record_.hosts = texts_of(starts.back(), "hosts");
    record_.devices = texts_of(starts.back(), "devices");
    record_.mesh = mesh_of(record_.starts.back().layout, record_.hosts.size());
  }

  void read_rows() {
    std::vector<std::string> keys = HistoryReader::keys();
    const std::set<std::string> known(keys.begin(), keys.end());
    for (std::string& key : monitor::AccountReader::keys())
      if (!known.contains(key)) keys.push_back(std::move(key));
    monitor::MetricsReader row = folder_.read_metrics(std::move(keys));
    monitor::AccountReader account;
    while (row.next()) {
      account.add(row);
      history_.add(row);
    }
    record_.history = history_.result();
    record_.account = account.result(record_.life.times);
    if (const std::string skipped = row.skipped(); !skipped.empty())
      add_trouble(folder_.metrics() + ": " + skipped);
  }

  void read_prediction() {
    const std::string path = folder_ / io::run_names::prediction;
    if (!is_there(path)) return;
    // It has an entry for each operation of the model.
    const auto plan = io::read_json_file<Json>(
        path, {.bytes = std::int64_t{64} << 20, .depth = 16, .values = 4'000'000, .members = 256});
    record_.predicted = prediction_of(plan);
  }

  /// Reads the confusion matrices that `evaluate` has written into the folder.
  void read_confusions() {
    constexpr std::size_t max_shown = 4;
    for (const std::string& path :
         files_of(".csv", "confusion matrices", max_shown,
                  [](const auto& each) { return io::begins_with(each, confusion_csv_start); }))
      attempt([&] {
        constexpr std::int64_t max_bytes = std::int64_t{64} << 20;
        record_.confusions.push_back(
            parse_confusion(io::read_own_text_file(path, max_bytes), path));
      });
  }

  /// Reads the predictions of numbers that `evaluate` has written into the folder. Other HDF5 files
  /// are passed over.
  void read_predictions() {
    constexpr std::size_t max_shown = 4, max_looked_at = 100;
    constexpr std::int64_t max_pairs = 1000;
    for (const std::string& path : files_of(".h5", "HDF5 files", max_looked_at))
      attempt([&] {
        if (record_.compared.size() == max_shown) return;
        if (auto found = read_compared(path, max_pairs))
          record_.compared.push_back(*std::move(found));
      });
  }

  /// Returns the first files of the folder, by name, that have an ending and a property. Links and
  /// pipes are left out. `what`: these files in words.
  std::vector<std::string> files_of(const char* ending, const char* what, std::size_t max_files,
                                    const std::function<bool(const std::string&)>& is_one = {}) {
    constexpr std::size_t max_entries = 10'000;
    std::vector<std::string> paths;
    std::error_code error;
    std::size_t entries = 0;
    for (fs::directory_iterator entry(folder_.path(), error), end;
         !error && entry != end && ++entries <= max_entries; entry.increment(error)) {
      const std::string path = entry->path().string();
      if (entry->path().extension() == ending && other_kind_of_file(path).empty() &&
          (!is_one || is_one(path)))
        paths.push_back(path);
    }
    std::sort(paths.begin(), paths.end());
    if (error)
      add_trouble(fmt::format("{}: cannot be listed ({}), so {} are not shown", folder_.path(),
                              error.message(), what));
    if (paths.size() > max_files) {
      add_trouble(fmt::format("{} more {} are not shown", paths.size() - max_files, what));
      paths.resize(max_files);
    }
    return paths;
  }

  monitor::RunFolder folder_;
  HistoryReader history_;
  RunRecord record_;
};

}  // namespace

std::string RunRecord::diagnosis() const {
  if (history.steps.count == 0) return "";
  train::Diagnosis found = train::diagnose(history.steps.times);
  // Rows have one time for crops, scaling and colors.
  if (deck && deck->data.augment.changes_colors()) {
    if (found.largest == train::Bottleneck::scaling)
      found.largest = train::Bottleneck::augmentation;
    if (found.wait == train::Bottleneck::scaling) found.wait = train::Bottleneck::augmentation;
  }
  return train::describe(found, deck ? deck->data.decode : data::Decoding::exact);
}

RunRecord read_run(const std::string& path, std::size_t max_buckets) {
  monitor::RunFolder(path).check_is_run();
  return Reader(path, max_buckets).read();
}

}  // namespace trireme::report
