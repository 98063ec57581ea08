// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <any>
#include <cstdint>
#include <utility>
#include <vector>

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

/// The outputs of a model for a sample.
struct ModelOutputs {
  // A number is meant in most places, so this converts.
  ModelOutputs(std::int64_t the_count)  // NOLINT(google-explicit-constructor)
      : count(the_count) {}
  ModelOutputs(std::int64_t the_count, std::int64_t the_height, std::int64_t the_width)
      : count(the_count), height(the_height), width(the_width) {}
  std::int64_t count;  ///< classes or numbers: of the sample, or of each pixel of a map
  std::int64_t height = 0, width = 0;  ///< of a map; 0: there is one answer
  bool is_map() const { return height > 0; }
  std::int64_t places() const { return is_map() ? height * width : 1; }
};

/// Table [loss] of the deck.
struct LossOptions {
  const LossKind* kind = nullptr;  ///< null: default_loss() of the targets (loss.hpp)
  double label_smoothing = 0;
  double delta = 1;                        ///< of Huber's loss
  std::vector<double> class_weights = {};  ///< one for each class; empty: 1
};

}  // namespace trireme::model
