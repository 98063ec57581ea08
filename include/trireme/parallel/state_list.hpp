// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/parallel/parameter.hpp"

namespace trireme::parallel {

/// Training state beside the weights, with a number for each element of some tensors, as
/// checkpoints hold it.
struct StateEntry {
  enum class Tensors : std::uint8_t { all, trained, trained_weights };
  /// Path of the group in a checkpoint (docs/reference/files.md), as in "optimizer/momentum".
  std::string group;
  /// float32 [elements that this rank owns], in the layout of ParameterStore::owned(), on the
  /// device or in host memory.
  Tensor flat;
  Tensors tensors = Tensors::trained_weights;
  /// Returns whether a tensor among them has this state. Empty: all have.
  std::function<bool(const ParameterSpec&)> has = {};
  /// It counts updates from its own start, which a restart may move.
  bool counts_updates = false;

  /// Returns whether a checkpoint holds this state of a tensor. `frozen`: the tensor is frozen.
  bool covers(const ParameterSpec& spec, bool frozen) const {
    const bool among = tensors == Tensors::all ||
                       (!frozen && (tensors == Tensors::trained || spec.role == Role::weight));
    return among && (!has || has(spec));
  }
};
using StateList = std::vector<StateEntry>;

}  // namespace trireme::parallel
