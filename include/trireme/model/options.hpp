// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <any>
#include <cstdint>
#include <utility>
#include <vector>

#include "trireme/base/answer.hpp"
#include "trireme/base/expect.hpp"

namespace trireme::model {

struct Family;

/// Table [model] of the deck: a family of models and the values of its keys. A value like any
/// other: a copy is independent.
class ModelOptions {
 public:
  /// Selects the first family, with the defaults of its keys.
  ModelOptions();
  explicit ModelOptions(const Family& family);

  /// Returns the values of the chosen family, which must have this type. For src/model and tests;
  /// other code asks the family.
  template <class Options>
  const Options& as() const {
    const auto* values = std::any_cast<Options>(&values_);
    TRIREME_EXPECT(values != nullptr);
    return *values;
  }
  template <class Options>
  Options& as() {
    return const_cast<Options&>(std::as_const(*this).as<Options>());
  }

 private:
  friend const Family& family_of(const ModelOptions& options);
  const Family* family_;
  std::any values_;
};

/// Returns the chosen family.
inline const Family& family_of(const ModelOptions& options) { return *options.family_; }

/// Returns the probability of stochastic depth at one of `blocks` residual blocks: linear from 0 at
/// the first to `last` at the last (Huang et al. 2016, section 3).
constexpr double drop_path_at(double last, std::int64_t block, std::int64_t blocks) {
  return blocks > 1 ? last * static_cast<double>(block) / static_cast<double>(blocks - 1) : 0;
}

struct LossKind;

/// Table [loss] of the deck.
struct LossOptions {
  const LossKind* kind = nullptr;  ///< null: default_loss() of the targets (loss.hpp)
  double label_smoothing = 0;
  double delta = 1;                        ///< of Huber's loss
  std::vector<double> class_weights = {};  ///< one for each class; empty: 1
};

}  // namespace trireme::model
