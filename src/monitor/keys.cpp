// SPDX-License-Identifier: Apache-2.0
//
// Declares the keys of the table [monitor].
#include "trireme/monitor/keys.hpp"

#include <string_view>

#include <fmt/format.h>

namespace trireme::monitor {

using namespace keys;

namespace {

/// "none" or "first..last".
Field step_range(std::optional<StepRange>& value) {
  const auto read = [&value](const Value& given) -> std::string {
    const auto string = given.text();
    if (!string)
      return given.wrong_type("a range of steps in quotes, as in \"10..12\", or \"none\"");
    value.reset();
    if (*string == "none") return "";
    const std::size_t dots = string->find("..");
    const int first = parse_count(std::string_view(*string).substr(0, dots)),
              last = dots == std::string::npos
                         ? 0
                         : parse_count(std::string_view(*string).substr(dots + 2));
    if (first < 1 || last < 1)
      return fmt::format(
          "{}: must be a range of steps, counted from 1, as in \"10..12\", or \"none\"",
          quoted(*string));
    if (last < first)
      return fmt::format("{}: ends before it begins; must be as \"{}..{}\"", quoted(*string), last,
                         first);
    value = StepRange{first, last};
    return "";
  };
  return {read,
          [&value] {
            return quoted(value ? fmt::format("{}..{}", value->first, value->last) : "none");
          },
          "range of steps or word", "\"none\", or \"first..last\"; first at least 1"};
}

/// The name of a file that node_exporter reads.
Field prometheus_file(std::string& value) {
  Field field = optional_text(value);
  const auto read = [read_text = field.read, &value](const Value& given) -> std::string {
    const std::string mistake = read_text(given);
    if (!mistake.empty() || value.ends_with(".prom")) return mistake;
    return fmt::format("{}: must end in .prom, since node_exporter reads no other files",
                       keys::quoted(value));
  };
  return {read, field.write, field.type, "ends in .prom"};
}

}  // namespace

void visit_keys(Visitor& v, MonitorOptions& monitor) {
  v.table("monitor");
  v.field({"every",
           "Sets the interval between rows of metrics.jsonl and log lines, as in \"10 steps\"."},
          duration(monitor.every, DurationUnits::counts, true));
  v.field({"tensorboard", "Writes TensorBoard event files to the run folder."},
          flag(monitor.tensorboard));
  v.field({"noise_scale",
           "Sets the interval at which the gradient noise scale is measured, as in \"100 steps\"; "
           "\"none\" turns it off."},
          optional_duration(monitor.noise_scale, DurationUnits::counts, true));
  v.field(
      {"tensors",
       "Sets the interval at which norm, gradient and update of every tensor are written, as in "
       "\"100 steps\"; \"none\" turns it off."},
      optional_duration(monitor.tensors, DurationUnits::counts, true));
  v.field(
      {"trace",
       "Records the steps first..last, as in \"10..12\", in trace.json; \"none\" turns it off."},
      step_range(monitor.trace));
  v.field({"machine",
           "Names the machine of the run, as in \"h100\" or \"./node.toml\": rows have mfu, and "
           "the run is compared with its prediction."},
          optional_text(monitor.machine));
  v.field({"prometheus",
           "Names a file, as in \"/var/lib/node_exporter/run.prom\", in which the latest figures "
           "are kept for Prometheus."},
          prometheus_file(monitor.prometheus));
}

}  // namespace trireme::monitor
