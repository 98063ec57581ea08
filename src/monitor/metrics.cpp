// SPDX-License-Identifier: Apache-2.0
#include "trireme/monitor/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "append_file.hpp"

namespace trireme::monitor {
namespace {

std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string number_json(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

}  // namespace

MetricsRow::MetricsRow(std::string kind)
    : kind_(std::move(kind)), text_("\"kind\": " + json_string(kind_)) {}

MetricsRow& MetricsRow::add_json(const std::string& key, const std::string& json) {
  text_ += ", " + json_string(key) + ": " + json;
  return *this;
}

MetricsRow& MetricsRow::add(const std::string& key, double value) {
  numbers_.emplace_back(key, value);
  return add_json(key, number_json(value));
}
MetricsRow& MetricsRow::add(const std::string& key, std::int64_t value) {
  numbers_.emplace_back(key, static_cast<double>(value));
  return add_json(key, std::to_string(value));
}
MetricsRow& MetricsRow::add(const std::string& key, bool value) {
  return add_json(key, value ? "true" : "false");
}
MetricsRow& MetricsRow::add(const std::string& key, const std::string& value) {
  texts_.emplace_back(key, value);
  return add_json(key, json_string(value));
}
MetricsRow& MetricsRow::add(const std::string& key, const char* value) {
  return add(key, std::string(value));
}

MetricsRow& MetricsRow::add(const std::string& key, const std::vector<double>& values) {
  std::string list;
  for (const double value : values) list += (list.empty() ? "" : ", ") + number_json(value);
  return add_json(key, "[" + list + "]");
}

std::optional<double> MetricsRow::number(std::string_view key) const {
  const auto found = std::find_if(numbers_.begin(), numbers_.end(),
                                  [&](const auto& number) { return number.first == key; });
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

std::string MetricsRow::text(std::string_view key) const {
  const auto found = std::find_if(texts_.begin(), texts_.end(),
                                  [&](const auto& text) { return text.first == key; });
  return found == texts_.end() ? "" : found->second;
}

std::string MetricsRow::line() const { return "{" + text_ + "}\n"; }

Metrics::Metrics() = default;
Metrics::Metrics(const std::string& path) : file_(AppendFile::open(path, PlainFileUse::append)) {
  file_->remove_incomplete_line();
}
Metrics::~Metrics() = default;
Metrics::Metrics(Metrics&&) noexcept = default;
Metrics& Metrics::operator=(Metrics&&) noexcept = default;

void Metrics::write(const MetricsRow& row) {
  if (file_) file_->append(row.line());
}

void Metrics::retry() {
  if (file_) file_->append("");
}

bool Metrics::reopen_if_removed() {
  if (!file_ || !file_->is_removed()) return false;
  file_->reopen();
  return true;
}

std::string Metrics::write_error() const { return file_ ? file_->write_error() : ""; }

}  // namespace trireme::monitor
