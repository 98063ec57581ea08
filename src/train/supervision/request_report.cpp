// SPDX-License-Identifier: Apache-2.0
#include "request_report.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace trireme::train {
namespace {

// More are not listed: a report should fit on a screen for each rank.
constexpr std::int64_t max_listed_requests = 32;

}  // namespace

RequestReport::RequestReport(const std::vector<std::string>& requests) : count_(0) {
  for (std::size_t i = 0; i < requests.size(); ++i)
    add(std::ssize(requests), static_cast<std::int64_t>(i), requests[i]);
}

void RequestReport::add(std::int64_t count, std::int64_t index, const std::string& request) {
  count_ = count;
  if (0 <= index && index < std::min(count, max_listed_requests)) oldest_[index] = request;
}

bool RequestReport::is_complete() const {
  return count_ >= 0 && std::ssize(oldest_) >= std::min(count_, max_listed_requests);
}

std::vector<std::string> RequestReport::lines(int rank, std::string_view host) const {
  const std::string prefix = fmt::format("rank {} on {}: ", rank, host);
  if (count_ < 0) return {prefix + "outstanding requests unknown, no answer"};
  if (count_ == 0) return {prefix + "no outstanding requests"};
  std::vector<std::string> lines;
  for (const auto& [index, request] : oldest_)
    lines.push_back(fmt::format("{}request {} of {}: {}", prefix, index + 1, count_, request));
  if (const std::int64_t missing = count_ - std::ssize(oldest_); missing > 0)
    lines.push_back(fmt::format("{}not listed: {} of {} requests", prefix, missing, count_));
  return lines;
}

}  // namespace trireme::train
