// SPDX-License-Identifier: Apache-2.0
//
// The figures of a report as JSON: for `report --json`, and the curves for the script of a page.
#include "report_json.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "page_parts.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"
#include "trireme/train/records/run_life.hpp"

namespace trireme::report {
namespace {

using Json = nlohmann::ordered_json;

/// Returns a number with few digits, and a whole one without a point; null if it is not finite.
Json short_json(double value, int digits = 6) {
  constexpr double max_exact = 1e15;
  if (!std::isfinite(value)) return nullptr;
  if (value == std::round(value) && std::abs(value) <= max_exact)
    return static_cast<std::int64_t>(value);
  const std::string text = fmt::format("{:.{}g}", value, digits);
  double rounded = value;
  std::from_chars(text.data(), text.data() + text.size(), rounded);
  return rounded;
}

/// Returns the digits with which values of this range differ by less than a pixel.
int digits_of(const Track::Range& range) {
  constexpr int min_digits = 6, max_digits = 15;
  const double largest = std::max(std::abs(range.low), std::abs(range.high)),
               width = range.high - range.low;
  if (!(width > 0) || !std::isfinite(largest / width)) return min_digits;
  return std::clamp(4 + static_cast<int>(std::ceil(std::log10(largest / width))), min_digits,
                    max_digits);
}

Json optional_json(const std::optional<double>& value) {
  return value ? short_json(*value) : Json();
}

Json numbers_json(const std::map<std::string, double>& numbers) {
  Json json = Json::object();
  for (const auto& [name, value] : numbers) json[name] = short_json(value);
  return json;
}

Json life_json(const train::RunLife& life) {
  Json json{{"text", train::describe(life)}, {"is_running", life.is_running()}};
  json["exit_code"] = life.exit_code ? Json(*life.exit_code) : Json();
  json["exit_reason"] = life.exit_reason;
  return json;
}

Json starts_json(const RunRecord& run) {
  Json list = Json::array();
  for (const StartEntry& start : run.starts)
    list.push_back({{"time", start.time},
                    {"command", start.command},
                    {"deck", start.deck},
                    {"restart", start.restart},
                    {"checkpoint", start.checkpoint},
                    {"version", start.version},
                    {"source_revision", start.revision},
                    {"job", start.job},
                    {"device", start.device},
                    {"layout", start.layout},
                    {"hosts", start.hosts}});
  return {{"count", run.start_count}, {"shown", std::move(list)}};
}

Json steps_json(const RunRecord& run) {
  const StepSums& steps = run.history.steps;
  Json json{{"count", short_json(steps.count)}};
  if (steps.count == 0) return json;
  const auto mean = [&](double seconds) { return short_json(seconds / steps.count); };
  json["step_s"] = mean(steps.times.total);
  json["data_s"] = mean(steps.times.data);
  json["forward_s"] = mean(steps.times.forward);
  json["backward_s"] = mean(steps.times.backward);
  json["comm_exposed_s"] = mean(steps.times.comm_exposed);
  json["optimizer_s"] = mean(steps.times.optimizer);
  json["diagnosis"] = run.diagnosis();
  return json;
}

Json predicted_json(const PredictedRun& predicted) {
  return {{"machine", predicted.machine},
          {"step_s", optional_json(predicted.step)},
          {"forward_s", optional_json(predicted.forward)},
          {"backward_s", optional_json(predicted.backward)},
          {"optimizer_s", optional_json(predicted.update)},
          {"memory_bytes", optional_json(predicted.memory_bytes)},
          {"seconds", optional_json(predicted.seconds)},
          {"joules", optional_json(predicted.joules)}};
}

Json events_json(const History& history) {
  Json json{{"count", history.events}, {"counts", history.event_counts}, {"shown", Json::array()}};
  const auto add = [&](const Event& event) {
    json["shown"].push_back({{"step", event.step},
                             {"elapsed_s", short_json(event.seconds)},
                             {"event", event.kind},
                             {"detail", event.detail}});
  };
  for (const Event& event : history.first_events) add(event);
  for (const Event& event : history.last_events) add(event);
  return json;
}

Json tensors_json(const TensorCourse& course) {
  Json json{{"tensors", course.tensors()}, {"step", Json::array()}};
  for (const double step : course.steps()) json["step"].push_back(short_json(step));
  for (std::size_t quantity = 0; quantity < TensorCourse::quantities.size(); ++quantity) {
    Json& rows = json[TensorCourse::quantities[quantity]] = Json::array();
    for (std::size_t tensor = 0; tensor < course.tensors().size(); ++tensor) {
      Json row = Json::array();
      for (std::size_t column = 0; column < course.steps().size(); ++column)
        row.push_back(short_json(course.value(quantity, tensor, column), 4));
      rows.push_back(std::move(row));
    }
  }
  return json;
}

Json confusion_json(const ConfusionMatrix& matrix) {
  Json scores = Json::array(), pairs = Json::array();
  for (const train::ClassScore& score : matrix.scores)
    scores.push_back(
        {{"samples", score.samples}, {"predicted", score.predicted}, {"correct", score.correct}});
  for (const train::ConfusedPair& pair : matrix.pairs)
    pairs.push_back({pair.label, pair.predicted, pair.samples});
  return {{"file", matrix.file},
          {"classes", matrix.classes},
          {"scores", std::move(scores)},
          {"most_confused", std::move(pairs)}};
}

Json compared_json(const ComparedValues& found) {
  Json parts = Json::array();
  for (const auto& pairs : found.pairs) {
    Json target = Json::array(), value = Json::array();
    for (const ComparedValues::Pair& pair : pairs) {
      target.push_back(pair.target);
      value.push_back(pair.value);
    }
    parts.push_back({{"target", std::move(target)}, {"value", std::move(value)}});
  }
  return {{"file", printable(found.file)},
          {"split", found.split},
          {"parts", found.parts},
          {"numbers", found.numbers},
          {"shown", std::move(parts)}};
}

Json curves_json(const History& history) {
  Json json{{"train", to_json(history.train)}};
  if (history.noise.buckets() > 0) json["noise"] = to_json(history.noise);
  json["evaluate"] = Json::object();
  for (const auto& [set, track] : history.evaluations) json["evaluate"][set] = to_json(track);
  return json;
}

Json run_json(const RunRecord& run) {
  Json json{{"name", run.name},
            {"path", run.path},
            {"state", life_json(run.life)},
            {"deck", run.deck_text},
            {"starts", starts_json(run)},
            {"hosts", run.hosts},
            {"devices", run.devices},
            {"latest", numbers_json(run.history.latest)}};
  json["evaluations"] = Json::object();
  for (const auto& [set, numbers] : run.history.latest_evaluations)
    json["evaluations"][set] = numbers_json(numbers);
  json["steps"] = steps_json(run);
  json["predicted"] = run.predicted ? predicted_json(*run.predicted) : Json();
  const CheckpointTotals& checkpoints = run.history.checkpoints;
  json["checkpoints"] = {{"count", checkpoints.count},
                         {"bytes", short_json(checkpoints.bytes)},
                         {"stall_s", short_json(checkpoints.stall_seconds)},
                         {"write_s", short_json(checkpoints.write_seconds)}};
  json["account"] = run.account ? monitor::to_json(*run.account) : Json();
  json["events"] = events_json(run.history);
  if (!run.history.tensors.tensors().empty()) json["tensors"] = tensors_json(run.history.tensors);
  json["confusions"] = Json::array();
  for (const ConfusionMatrix& matrix : run.confusions)
    json["confusions"].push_back(confusion_json(matrix));
  json["compared"] = Json::array();
  for (const ComparedValues& found : run.compared) json["compared"].push_back(compared_json(found));
  json["troubles"] = run.troubles;
  json["curves"] = curves_json(run.history);
  return json;
}

/// Returns the numbers that have a chart, with their smoothed curves.
Json drawn_json(const std::string& label, const Track& track) {
  Json json = to_json(track);
  json["label"] = label;
  Json& values = json["values"];
  for (std::size_t i = 0; i < track.names().size(); ++i) {
    const std::string& name = track.names()[i];
    if (!has_chart(name)) values.erase(name);
    if (!values.contains(name)) continue;
    const int digits = digits_of(track.whole_range(i));
    Json smooth = Json::array();
    for (const double each : track.smoothed(i)) smooth.push_back(short_json(each, digits));
    values[name]["smooth"] = std::move(smooth);
  }
  return json;
}

}  // namespace

Json to_json(const Track& track) {
  constexpr int place_digits = 9;
  Json json = Json::object();
  for (std::size_t axis = 0; axis < axis_names.size(); ++axis) {
    Json& list = json[axis_names[axis]] = Json::array();
    for (std::size_t bucket = 0; bucket < track.buckets(); ++bucket)
      list.push_back(short_json(track.place(bucket)[axis], place_digits));
  }
  Json& parts = json["parts"] = Json::array();
  for (std::size_t bucket = 0; bucket < track.buckets(); ++bucket)
    if (track.begins_part(bucket)) parts.push_back(bucket);
  Json& values = json["values"] = Json::object();
  for (std::size_t name = 0; name < track.names().size(); ++name) {
    if (!track.whole_range(name).has_values()) continue;
    const int digits = digits_of(track.whole_range(name));
    Json mean = Json::array(), low = Json::array(), high = Json::array();
    bool is_range = false;
    for (std::size_t bucket = 0; bucket < track.buckets(); ++bucket) {
      const Track::Range& range = track.range(bucket, name);
      const bool has = range.has_values();
      is_range = is_range || (has && range.low != range.high);
      mean.push_back(has ? short_json(range.mean(), digits) : Json());
      low.push_back(has ? short_json(range.low, digits) : Json());
      high.push_back(has ? short_json(range.high, digits) : Json());
    }
    Json& value = values[track.names()[name]] = {{"mean", std::move(mean)}};
    if (is_range) {
      value["low"] = std::move(low);
      value["high"] = std::move(high);
    }
  }
  return json;
}

Json to_json(const Report& report) {
  Json runs = Json::array();
  for (const RunRecord& run : report.runs) runs.push_back(run_json(run));
  Json json{{"kind", "report"}, {"written", report.written}, {"program", report.program}};
  json["runs"] = std::move(runs);
  return json;
}

std::string curve_data(const Report& report) {
  Json runs = Json::array();
  for (const RunRecord& run : report.runs) {
    // In the order of curves_of() in page_curves.cpp.
    Json tracks{drawn_json("", run.history.train), drawn_json("", run.history.noise)};
    for (const auto& [set, track] : run.history.evaluations)
      tracks.push_back(drawn_json(set, track));
    Json marks = Json::array();
    for (const Mark& mark : run.history.marks) {
      Json place = Json::array();
      for (const double value : mark.place) place.push_back(short_json(value, 9));
      marks.push_back(std::move(place));
    }
    runs.push_back(
        {{"name", run.name}, {"tracks", std::move(tracks)}, {"marks", std::move(marks)}});
  }
  std::string text = Json{{"axes", axis_names}, {"runs", std::move(runs)}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
  // A text of a run could end the element of the script.
  std::string result;
  for (const char c : text) {
    if (c == '<')
      result += "\\u003c";
    else
      result += c;
  }
  return result;
}

}  // namespace trireme::report
