// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace trireme::checkpoint {

/// Returns whether a key of `config.json` does not change what a model computes: names, dtypes, ids
/// of tokens, dropout, initial values, heads of classifiers, and defaults of text generation.
bool is_ignored_transformers_key(std::string_view key);

/// A key that changes the function of a model, unless it is null or has one of these values.
struct NeutralKey {
  const char* key;
  std::vector<nlohmann::json> values;
  const char* computed;  ///< what Trireme computes, for messages
};

/// Returns the keys of all families, and those of other models that come from these families.
const std::vector<NeutralKey>& neutral_transformers_keys();

}  // namespace trireme::checkpoint
