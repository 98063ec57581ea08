// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace trireme::app {

/// A subject of a report: its name, its text, and the numbers in it. Text and JSON are made from
/// the same lines, so they cannot differ.
struct ReportLine {
  std::string name, text;
  nlohmann::ordered_json numbers;
};

}  // namespace trireme::app
