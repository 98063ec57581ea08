// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "trireme/model/model.hpp"
#include "trireme/parallel/flat_layout.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/parameter.hpp"
#include "trireme/train/step/replica_options.hpp"

namespace trireme::train {

/// Returns the bounds of the chunks into which the model is divided for so many stages: about equal
/// floating-point operations, counted on the meta device.
std::vector<int> chunk_bounds(const ReplicaOptions& options, int stages);

/// Returns a number for each block of the model, and for its head as block n. Blocks with equal
/// numbers declare equal tensors, except for their names, and have inputs and outputs of equal
/// shapes.
std::vector<int> block_kinds(const ReplicaOptions& options, const model::Model& model);

/// The blocks of a rank's pipeline stage, their parameters, and the layout of these in flat
/// buffers. It holds no weights.
struct StageParameters {
  /// The blocks [begin, end) of a chunk that this rank runs.
  struct BlockRange {
    int number = 0;  ///< In the whole model: 0 .. stages * chunks a stage - 1.
    int begin = 0, end = 0;
  };

  /// Assigns the blocks of `model` to chunks of about equal cost and declares the parameters of
  /// this rank's chunks, of which the deck may freeze some. The last chunk of the model includes
  /// the head. `target`: as in FlatLayout. Throws InputError if optimizer.groups does not fit the
  /// model.
  StageParameters(const ReplicaOptions& options, const model::Model& model,
                  const parallel::Mesh& mesh, DeviceKind target);
  // parallel::ParameterStore keeps pointers to `list` and `layout`.
  StageParameters(const StageParameters&) = delete;
  StageParameters& operator=(const StageParameters&) = delete;

  /// Returns whether this rank counts its rows of a tensor in norms and checkpoints. For duplicated
  /// rows exactly one rank does.
  bool is_counted(std::size_t tensor) const { return counted[tensor] != 0; }

  std::vector<BlockRange> chunks;  ///< In the order of their numbers.
  parallel::ParameterList list;
  parallel::FlatLayout layout;
  std::vector<char> counted;  ///< By tensor of `list`: 1 if is_counted().
};

/// The work of rules on whole matrices in a step (optim::UpdateRule::direction_of_matrix), and the
/// balance of sharded state where sharding keeps matrices whole.
struct MatrixWork {
  double flops = 0;          ///< of all data ranks of a stage, for one tensor rank
  double busiest_flops = 0;  ///< of the data rank that has most
  /// Every replica does the same, because state is not sharded.
  bool repeats = false;
  /// Data ranks: with the most of this work, with the largest matrix, with the most elements. 0 if
  /// nothing is sharded.
  int busiest_rank = 0, widest_rank = 0, fullest_rank = 0;
};

/// Computes the work on matrices in a stage without a replica.
MatrixWork matrix_work(const ReplicaOptions& options, const parallel::MeshShape& shape, int stage,
                       DeviceKind target);

}  // namespace trireme::train
