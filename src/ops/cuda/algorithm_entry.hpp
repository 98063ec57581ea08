#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "trireme/ops/algorithm_table.hpp"

namespace trireme::ops::cuda {

/// The algorithm of one problem among those that are known. A choice of no problem knows none and
/// keeps none.
class AlgorithmEntry {
 public:
  AlgorithmEntry() = default;
  AlgorithmEntry(AlgorithmTable& known, std::string problem)
      : table_(&known), problem_(std::move(problem)) {}
  /// Null where none is known.
  const std::string* algorithm() const {
    return table_ == nullptr ? nullptr : table_->find(problem_);
  }
  void set(const std::string& algorithm) const {
    if (table_ != nullptr) table_->set(problem_, algorithm);
  }

 private:
  AlgorithmTable* table_ = nullptr;
  std::string problem_;
};

// An algorithm of cuBLASLt is a few words, which the library lets be kept and given back to the
// same version of it: 16 digits a word.
std::string name_of(std::span<const std::uint64_t> words);
/// False, with nothing written, where the name is not one of so many words.
bool parse_words(const std::string& name, std::span<std::uint64_t> words);

}  // namespace trireme::ops::cuda
