// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/model/family.hpp"
#include "trireme/model/model.hpp"

namespace trireme::train {

/// Returns the function that finds the shape of a tensor of the model by its possible names and its
/// dimensions. It throws InputError if the checkpoint has none. `contents` outlives it.
model::ShapeInFile shapes_in(const checkpoint::Contents& contents, const std::string& path);

/// Compares the tensors with the model before memory is allocated for it. Throws InputError.
void validate_shapes(const model::Model& model, const checkpoint::Contents& contents,
                     const std::string& path);

}  // namespace trireme::train
