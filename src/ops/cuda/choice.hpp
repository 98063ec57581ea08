#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "trireme/ops/algorithms.hpp"

namespace trireme::ops::cuda {

/// The algorithm of one problem among those that are known. A choice of no problem knows none and
/// keeps none.
class Choice {
 public:
  Choice() = default;
  Choice(Algorithms& known, std::string problem) : known_(&known), problem_(std::move(problem)) {}
  /// Null where none is known.
  const std::string* algorithm() const {
    return known_ == nullptr ? nullptr : known_->find(problem_);
  }
  void keep(const std::string& algorithm) const {
    if (known_ != nullptr) known_->keep(problem_, algorithm);
  }

 private:
  Algorithms* known_ = nullptr;
  std::string problem_;
};

// An algorithm of cuBLASLt is a few words, which the library lets be kept and given back to the
// same version of it: 16 digits a word.
std::string name_of(std::span<const std::uint64_t> words);
/// False, with nothing written, where the name is not one of so many words.
bool words_of(const std::string& name, std::span<std::uint64_t> words);

}  // namespace trireme::ops::cuda
