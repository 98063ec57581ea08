// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trireme/data/options.hpp"
#include "trireme/data/targets/target_options.hpp"
#include "trireme/model/family.hpp"
#include "trireme/optim/options.hpp"
#include "trireme/parallel/options.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/tensor_group.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::train {

/// The results of rows (samples, or tokens of a language model) that an evaluation keeps.
enum class KeptRows : std::uint8_t { none, logits, losses };

/// Constructor options of a Replica.
struct ReplicaOptions {
  model::ModelOptions model;
  model::LossOptions loss;
  optim::OptimizerOptions optimizer;
  data::AugmentOptions augment;     ///< What the device does with images.
  Shape image;                      ///< [H, W, C] for images; undefined for tokens.
  DType pixel_type = DType::uint8;  ///< Type of stored images: uint8, uint16, float16, float32.
  std::uint64_t preparation = 0;    ///< data::preparation_hash() of the training set.
  /// Outputs for a sample, pixel or token; of language models the vocabulary size.
  AnswerExtents outputs;
  data::TargetOptions target;  ///< Ignored for language models.
  std::int64_t global = 1, micro = 1, accumulation = 1;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  parallel::PipelineKind pipeline_schedule = parallel::PipelineKind::one_forward_one_backward;
  int pipeline_chunks = 1;
  /// Bounds of the chunks of the model (chunk_bounds()), for callers that make many replicas of one
  /// layout. Empty: each replica computes them.
  std::vector<int> chunk_bounds = {};
  parallel::ShardKind shard = parallel::ShardKind::none;
  bool sequence = false;
  /// Set by tests alone: cuts the rows of small layers that the tensor group splits.
  parallel::RowChunkLimits test_row_cut;
  int recompute = 0;  ///< Every n-th block is recomputed in backward; 0: none.
  parallel::Offload offload;
  parallel::SyncKind sync = parallel::SyncKind::step;
  double outer_momentum = 0;  ///< Outer momentum of sync periodic.
  DType compute = DType::float32;
  /// Type in which data ranks exchange gradients: float32 or bfloat16.
  DType reduce = DType::float32;
  std::optional<optim::LossScaleOptions> loss_scale;
  bool tfloat32 = false;       ///< As in ops::ContextOptions.
  bool float8 = false;         ///< As in ops::ContextOptions; needs compute = bfloat16.
  std::uint64_t seed = 1;      ///< Seed of dropout.
  bool fusions = true;         ///< As in ops::ContextOptions.
  bool fused_softmax = false;  ///< As in ops::ContextOptions.
  bool joined_norms = false;   ///< As in ops::ContextOptions.
  /// Sums in a fixed order. Small models on a power-of-two number of replicas always do so.
  bool deterministic = false;
  /// checkpoint.async: host memory for a copy of the saved state is reserved.
  bool async_checkpoints = false;
  /// monitor.noise_scale: steps can measure the gradients of their micro-batches.
  bool noise_scale = false;
  /// monitor.tensors: updates can measure the norms of every tensor.
  bool tensor_norms = false;
  /// Kernel launches that repeat from step to step are replayed as CUDA graphs.
  bool graphs = true;
  /// False: forward only (evaluate): no gradients, optimizer state or saved activations.
  bool trains = true;
  /// Results for which memory is planned, and which PipelineStage::read_rows() returns. Image
  /// models have logits, language models losses.
  KeptRows kept_rows = KeptRows::none;
  /// Calls of PipelineStage::logits(), for text generation with one sequence.
  struct Generation {
    std::int64_t prompt_rows = 0;  ///< positions of the first call
    /// Positions whose keys and values are kept; 0: later calls compute all positions again.
    std::int64_t cached_rows = 0;
    /// The text grows beyond model.context, so that later calls compute whole windows of it.
    bool slides = false;
  };
  std::optional<Generation> generation = std::nullopt;

  bool tokens() const { return takes_tokens(model); }
  const Answer& answer() const {
    return tokens() ? answer_of(AnswerKind::tokens) : target.answer();
  }
  /// Returns the length of a sample in tokens; 0 for images.
  std::int64_t context() const { return family_of(model).context(model); }
  /// Returns whether backward computes the activations of this block of the model again.
  bool is_recomputed(int block) const { return recompute > 0 && block % recompute == 0; }
  /// Returns the labels per sample: the sequence length, or for each place (pixel of a map, or
  /// sample) a class or the numbers of a vector.
  std::int64_t labels_per_sample() const {
    return tokens() ? context()
                    : outputs.places() * (answer().has_float_targets ? outputs.count : 1);
  }
  /// Returns the rows of outputs per sample.
  std::int64_t rows_per_sample() const { return tokens() ? context() : outputs.places(); }
  /// Returns the type of labels.
  DType label_type() const { return answer().has_float_targets ? DType::float32 : DType::int32; }
  /// Returns the type of the input of the model: that of tokens, or of stored images.
  DType input_type() const { return tokens() ? DType::int32 : pixel_type; }
  /// Returns the input shape of one micro-batch: images [B, H, W, C], tokens [B, T].
  Shape input_shape() const {
    if (tokens()) return {micro, context()};
    return {micro, image[0], image[1], image[2]};
  }
};

}  // namespace trireme::train
