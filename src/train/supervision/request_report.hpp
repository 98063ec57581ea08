// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::train {

/// The outstanding requests of one rank in a report of a hang, as far as they are known. Messages
/// with them may be lost, or arrive twice and in any order.
class RequestReport {
 public:
  /// Nothing is known so far.
  RequestReport() = default;
  /// All requests are known, oldest first.
  explicit RequestReport(const std::vector<std::string>& requests);

  /// Adds one of `count` requests; `index` counts from the oldest one. Without effect on the
  /// requests if there are none (`count` 0).
  void add(std::int64_t count, std::int64_t index, const std::string& request);
  /// Returns whether all requests are known that a report lists: the oldest 32.
  bool is_complete() const;
  /// Returns the number of outstanding requests; -1: unknown.
  std::int64_t count() const { return count_; }
  /// Returns the known requests among the oldest 32, by index.
  const std::map<std::int64_t, std::string>& oldest() const { return oldest_; }
  /// Returns one line for each known request, and a line if some are missing.
  std::vector<std::string> lines(int rank, std::string_view host) const;

 private:
  std::int64_t count_ = -1;
  std::map<std::int64_t, std::string> oldest_;
};

}  // namespace trireme::train
