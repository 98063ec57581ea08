// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trireme/comm/engine/engine.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/model/block.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/ops/update/step_status.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/train/step/replica_resources.hpp"
#include "trireme/train/step/transfer_clock.hpp"
#include "trireme/train/step/weight_update.hpp"

namespace trireme::train {

class BatchUploader;
class ModelChunk;

/// Loss and accuracy sums over samples (tokens), in the layout of ops::cross_entropy. Added in tree
/// order.
using Sums = ops::SampleSums;

/// Returns the groups and pipeline lanes of a rank that exchange device memory, for
/// comm::Engine::connect().
comm::Engine::Connections engine_connections(const ReplicaOptions& options,
                                             const parallel::Mesh& mesh);

/// Forward and backward through the blocks of a rank, and the messages to neighboring stages.
///
/// Without a pipeline it is one chunk, the whole model. All device work is enqueued on the compute
/// stream of the context; calls return before the device has finished.
class PipelineStage {
 public:
  /// Makes the chunks of the stage and the buffers of micro-batches and messages. All arguments
  /// outlive the stage.
  PipelineStage(const ReplicaResources& resources,
                const std::vector<parallel::PipelineAction>& schedule, WeightUpdate& update);
  ~PipelineStage();
  // Kernels that CUDA graphs replay hold addresses of members' memory.
  PipelineStage(const PipelineStage&) = delete;
  PipelineStage& operator=(const PipelineStage&) = delete;

  /// Returns the actions of this rank in a step, in order.
  const std::vector<parallel::PipelineAction>& schedule() const { return schedule_; }
  bool is_last() const {
    return resources_.mesh.coordinates.stage + 1 == resources_.mesh.shape.pipeline;
  }
  /// Starts a step: micro-batches count from 0 again.
  void begin_step();
  /// Returns whether an action needs the next micro-batch of the loader.
  static bool takes_batch(const parallel::PipelineAction& action) {
    return action.forward && action.chunk == 0;
  }
  /// Enqueues forward through a chunk. Its input is `batch` for the first chunk (takes_batch; else
  /// null), or is received from the previous chunk. `clock` measures the copies of the batch to the
  /// device; null: no measurement.
  void forward(const parallel::PipelineAction& action, const data::MicroBatch* batch,
               TransferClock* clock = nullptr);
  /// Returns a clock for the micro-batches of one step.
  TransferClock make_transfer_clock() const;
  /// Enqueues backward through a chunk. The last chunk starts with the head and the loss; others
  /// receive their gradient. Starts the reduction of each gradient bucket as soon as it is
  /// complete.
  void backward(const parallel::PipelineAction& action);
  /// Returns the sums of all micro-batches of the step, float64 [micro-batches, 4] on the device;
  /// undefined except on the last stage.
  Tensor step_sums() const;
  /// Multiplies the loss gradient of following backward passes by `factor`: 1, or NaN to inject a
  /// fault.
  void scale_gradients(float factor) { gradient_factor_ = factor; }

  /// Maximum number of micro-batches that may be evaluated before read_sums().
  static constexpr int max_unread_micro_batches = 64;
  /// Enqueues forward in evaluation mode; the loss is the plain cross-entropy, without label
  /// smoothing. The last stage stores the sums over valid rows as entry
  /// `number` (< max_unread_micro_batches). `keeps_rows`: read_rows() will be called; needs
  /// ReplicaOptions::kept_rows. All stages call it.
  void evaluate(const data::MicroBatch& batch, int number, bool keeps_rows);
  /// Waits for the device and reads the sums of the first micro-batches of the step or evaluation.
  /// Writes nothing on ranks outside the last stage.
  void read_sums(std::span<Sums> sums) const;
  /// Waits for the device and reads what ReplicaOptions::kept_rows names of the latest evaluation
  /// with `keeps_rows`:
  /// logits [micro, classes], or statistics [labels, 4] (ops::softmax_statistics). Writes nothing
  /// on ranks outside the last stage.
  void read_rows(std::span<float> rows) const;
  /// Returns the number of values that read_rows() reads.
  std::int64_t row_values() const { return kept_rows_.defined() ? kept_rows_.elements() : 0; }
  /// Returns the logits, float32 [classes] in device memory, of row `row` of tokens [1, n], which
  /// are the positions first .. first + n - 1 of a sequence. Collective over the tensor group.
  ///
  /// Needs ReplicaOptions::generation, and a replica without pipeline. With first > 0, earlier
  /// calls have computed all positions before, and cached_rows >= first + n.
  Tensor logits(const Tensor& tokens, std::int64_t row, std::int64_t first = 0);

 private:
  ModelChunk& chunk(const parallel::PipelineAction& action) {
    return *chunks_[static_cast<std::size_t>(action.chunk)];
  }
  Tensor sums_of(int micro_batch) const { return sums_.rows(micro_batch, micro_batch + 1); }
  Tensor prepare_input(model::MicroBatchPass& pass);
  Tensor receive(const Tensor& into, int chunk, bool forward, int micro_batch);
  comm::Engine::Request send(const Tensor& tensor, int chunk, bool forward, int micro_batch);
  comm::Engine::Request send_copy(const Tensor& tensor, int chunk, bool forward, int micro_batch);

  const ReplicaResources& resources_;
  const std::vector<parallel::PipelineAction>& schedule_;
  parallel::ParameterStore& store_;
  parallel::GradientReducer& reducer_;
  model::PingPongArena ping_pong_;
  std::vector<std::unique_ptr<ModelChunk>> chunks_;
  /// Keys and values of each layer: [cached_rows, 2 kv_heads * head_width].
  std::vector<Tensor> keys_values_;
  /// On the device: float64 [max(micro-batches of a step, max_unread_micro_batches), 4], in the
  /// layout of ops::cross_entropy.
  Tensor sums_;
  Tensor kept_rows_;  ///< As read_rows(); undefined without ReplicaOptions::kept_rows.
  std::unique_ptr<BatchUploader> uploader_;
  ops::ImagePreparation preparation_;
  Tensor class_weights_;
  /// Buffers for messages between stages; outgoing gradients use the two buffers in turn.
  Tensor incoming_, outgoing_[2];
  comm::Engine::Request outgoing_requests_[2] = {0, 0};
  int outgoing_index_ = 0;
  std::int64_t samples_per_step_;  ///< Samples whose mean loss a step minimizes.
  float statistic_scale_;          ///< Weight of a micro-batch in the running statistics.
  float gradient_factor_ = 1;      ///< As scale_gradients().
};

}  // namespace trireme::train
