// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "trireme/tensor/transformers_config.hpp"

namespace trireme::checkpoint {

/// Returns the member of `config.json` that decides about a key of [model], as in "model.width".
const char* deciding_member(TransformersConfig::Family family, std::string_view key);

/// Reads a `config.json` of at most 1 MiB. A key that is missing has the default of transformers.
/// Returns none if the file has neither `model_type` nor `architectures` of one of the families.
///
/// Throws InputError with path, key and value for other text, for wrong values, for models that
/// Trireme does not compute (docs/reference/files.md lists them), and for keys that are not known:
/// they may change what a model computes.
std::optional<TransformersConfig> read_transformers_config(const std::string& path);

/// Returns the text of a `config.json`, with which transformers 4 and 5 load the model.
std::string to_json(const TransformersConfig& config);

}  // namespace trireme::checkpoint
