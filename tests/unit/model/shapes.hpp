// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "trireme/model/model.hpp"

namespace trireme::model {

/// Returns the shape of each tensor of a model by its name.
inline std::map<std::string, Shape> shapes(const Model& model) {
  std::map<std::string, Shape> result;
  for (const auto& entry : model.parameters().entries()) result[entry.spec.name] = entry.spec.shape;
  return result;
}

}  // namespace trireme::model
