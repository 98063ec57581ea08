// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trireme/base/log.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::train {

/// Returns whether a tensor of a checkpoint is a weight or a running statistic.
bool is_of_model(const checkpoint::Contents::Entry& entry);

/// Prepares a start with --weights-only. `pieces`: the weights and running statistics of the whole
/// model, as slices_of() returns them.
///
/// Removes the pieces whose names match a pattern of --skip: they are not read. Lets a tensor that
/// the file has on another grid be interpolated (TensorSlice::stored_grid). The file's grid is that
/// of the images that it names, or a square one. `image`: [height, width, channels] of the run.
/// `unlike`: names of tensors that mean something else in the file, whatever their shape.
///
/// Throws InputError if a pattern matches no tensor of file and model, or if another tensor is
/// missing, has another shape or meaning, or is not in the model. The message names the patterns of
/// --skip that would help.
void choose_weights(std::vector<checkpoint::TensorSlice>& pieces,
                    const checkpoint::Contents& contents, std::span<const std::string> skip,
                    const Shape& image, const std::vector<std::string>& unlike,
                    const std::string& path, Log& log);

}  // namespace trireme::train
