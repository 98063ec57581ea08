// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "trireme/ops/algorithm_table.hpp"

namespace trireme::ops::cuda {

/// The entry of one problem in the table of known algorithms. An entry without a table
/// (deterministic runs) knows nothing and stores nothing.
class AlgorithmEntry {
 public:
  AlgorithmEntry() = default;
  AlgorithmEntry(AlgorithmTable& known, std::string problem)
      : table_(&known), problem_(std::move(problem)) {}
  /// Returns the known algorithm, or null.
  const std::string* algorithm() const {
    return table_ == nullptr ? nullptr : table_->find(problem_);
  }
  /// Stores the algorithm that was found fastest.
  void set(const std::string& algorithm) const {
    if (table_ != nullptr) table_->set(problem_, algorithm);
  }

 private:
  AlgorithmTable* table_ = nullptr;
  std::string problem_;
};

/// Returns the name of a cuBLASLt algorithm: its descriptor's words, 16 hexadecimal digits each.
/// The same version of the library accepts the words again.
std::string name_of(std::span<const std::uint64_t> words);
/// Parses such a name. Returns false, with nothing written, if it is not a name of exactly that
/// many words.
bool parse_words(const std::string& name, std::span<std::uint64_t> words);

}  // namespace trireme::ops::cuda
