// SPDX-License-Identifier: Apache-2.0
//
// Assigns the blocks of the model to the chunks of a pipeline stage and declares their parameters.
//
// Chunks have about equal floating-point operations, counted on the meta device (block_costs).
// Replica calls it once, before it allocates weights.
#include "trireme/train/step/stage_parameters.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "block_costs.hpp"
#include "trireme/base/expect.hpp"
#include "trireme/optim/groups.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::train {
namespace {

/// Returns the chunks of this rank. Chunk c of stage s is chunk c * stages + s of the model.
std::vector<StageParameters::BlockRange> assign_blocks(const ReplicaOptions& options,
                                                       const model::Model& model,
                                                       const parallel::Mesh& mesh) {
  const int stages = mesh.shape.pipeline, count = stages * options.pipeline_chunks;
  if (count == 1) return {{0, 0, model.block_count()}};
  const std::vector<int> bounds =
      options.chunk_bounds.empty() ? chunk_bounds(options, stages) : options.chunk_bounds;
  TRIREME_EXPECT(std::ssize(bounds) == count + 1);
  std::vector<StageParameters::BlockRange> chunks;
  for (int number = mesh.coordinates.stage; number < count; number += stages) {
    const auto at = static_cast<std::size_t>(number);
    chunks.push_back({number, bounds[at], bounds[at + 1]});
  }
  return chunks;
}

/// Returns the parameters of the chunks; the head belongs to the last block. Without training all
/// weights are frozen. Throws InputError if optimizer.groups does not fit the model.
parallel::ParameterList declare_parameters(const ReplicaOptions& options,
                                           const std::vector<StageParameters::BlockRange>& chunks,
                                           const model::Model& model, const parallel::Mesh& mesh) {
  optim::validate_groups(options.optimizer, model.parameters());
  parallel::ParameterList list(mesh.coordinates.tensor_rank, mesh.shape.tensor);
  for (const auto& [number, begin, end] : chunks)
    model.declare(list, begin, end == model.block_count() ? end + 1 : end);
  // Frozen weights have neither gradients nor optimizer state.
  optim::OptimizerOptions all_frozen;
  all_frozen.groups = {{.match = "*", .frozen = true}};
  optim::prepare(options.trains ? options.optimizer : all_frozen, list);
  return list;
}

parallel::FlatLayout layout_of(const ReplicaOptions& options,
                               const std::vector<StageParameters::BlockRange>& chunks,
                               const parallel::ParameterList& list, DeviceKind target) {
  std::vector<int> begins;
  for (const StageParameters::BlockRange& chunk : chunks) begins.push_back(chunk.begin);
  const bool one_bucket_a_block = options.shard == parallel::ShardKind::parameters;
  return {list, one_bucket_a_block ? 0 : options.bucket_bytes, options.compute, begins, target};
}

/// Returns which tensors this rank counts in norms and checkpoints. Duplicated tensors are counted
/// once: by tensor rank 0 if replicated over the tensor group, by the owner's stage if tied.
std::vector<char> counted_tensors(const parallel::ParameterList& list,
                                  const parallel::ParameterList& whole, int tensor_rank) {
  std::vector<char> counted;
  for (const parallel::ParameterList::Entry& entry : list.entries()) {
    const auto& owner = whole.entries()[static_cast<std::size_t>(whole.find(entry.spec.name))];
    counted.push_back(
        entry.block == owner.block && (tensor_rank == 0 || !entry.partition.replicated()) ? 1 : 0);
  }
  return counted;
}

}  // namespace

std::vector<int> chunk_bounds(const ReplicaOptions& options, int stages) {
  const int count = stages * options.pipeline_chunks;
  return count == 1 ? std::vector<int>{} : parallel::balance_chunks(block_costs(options), count);
}

std::vector<int> block_kinds(const ReplicaOptions& options, const model::Model& model) {
  struct Kind {
    std::vector<parallel::ParameterSpec> specs;
    Shape input, output;
    bool operator==(const Kind&) const = default;
  };
  const auto count = static_cast<std::size_t>(model.block_count()) + 1;
  std::vector<Kind> blocks(count);
  for (std::size_t i = 0; i < count; ++i) {
    blocks[i].input = model.block_input_shape(static_cast<int>(i));
    if (i + 1 < count) blocks[i].output = model.block_input_shape(static_cast<int>(i) + 1);
  }
  for (const parallel::ParameterList::Entry& entry : model.parameters().entries()) {
    parallel::ParameterSpec spec = entry.spec;
    spec.frozen = optim::is_frozen(options.optimizer.groups, spec);
    spec.name.clear();
    blocks[static_cast<std::size_t>(entry.block)].specs.push_back(std::move(spec));
  }
  std::vector<int> kinds;
  for (auto block = blocks.begin(); block != blocks.end(); ++block)
    kinds.push_back(static_cast<int>(std::find(blocks.begin(), block, *block) - blocks.begin()));
  return kinds;
}

MatrixWork matrix_work(const ReplicaOptions& options, const parallel::MeshShape& shape, int stage,
                       DeviceKind target) {
  const parallel::Mesh mesh = parallel::Mesh::meta(shape, parallel::rank_of(shape, {stage, 0, 0}));
  const model::Model model(options.model, options.input_shape(), options.outputs,
                           {0, shape.tensor, options.sequence});
  const StageParameters parameters(options, model, mesh, target);
  const parallel::FlatLayout& layout = parameters.layout;
  const bool is_sharded = options.shard != parallel::ShardKind::none;
  const int owners = is_sharded ? shape.data : 1;
  std::vector<std::int64_t> elements(static_cast<std::size_t>(owners)), widest(elements.size());
  std::vector<double> flops(elements.size());
  const std::vector<std::vector<std::int64_t>> bounds = layout.shard_bounds(owners);
  for (std::size_t index = 0; index < layout.trained_buckets(); ++index)
    for (std::size_t owner = 0; owner < elements.size(); ++owner)
      elements[owner] += bounds[index][owner + 1] - bounds[index][owner];
  for (const parallel::RowRun& run : layout.runs()) {
    if (!run.whole) continue;
    const parallel::ParameterSpec& spec = parameters.list[{run.tensor}];
    const auto bucket = static_cast<std::size_t>(layout.tensor({run.tensor}).bucket);
    const std::size_t owner = parallel::FlatLayout::owner_of(bounds[bucket], run.offset);
    flops[owner] +=
        optim::rule_of(options.optimizer, spec).flops_of_matrix(spec.rows(), spec.row_elements());
    widest[owner] = std::max(widest[owner], spec.shape.elements());
  }
  const auto index_of_most = [](const auto& values) {
    return static_cast<int>(std::ranges::max_element(values) - values.begin());
  };
  // Replicas that are only averaged from time to time have work of their own.
  const bool repeats =
      !is_sharded && shape.data > 1 && options.sync != parallel::SyncKind::periodic;
  return {.flops = std::accumulate(flops.begin(), flops.end(), 0.0) * (shape.data / owners),
          .busiest_flops = std::ranges::max(flops),
          .repeats = repeats,
          .busiest_rank = index_of_most(flops),
          .widest_rank = index_of_most(widest),
          .fullest_rank = index_of_most(elements)};
}

StageParameters::StageParameters(const ReplicaOptions& options, const model::Model& model,
                                 const parallel::Mesh& mesh, DeviceKind target)
    : chunks(assign_blocks(options, model, mesh)),
      list(declare_parameters(options, chunks, model, mesh)),
      layout(layout_of(options, chunks, list, target)),
      counted(counted_tensors(list, model.parameters(), mesh.coordinates.tensor_rank)) {}

}  // namespace trireme::train
