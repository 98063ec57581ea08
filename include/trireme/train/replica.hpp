#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "trireme/checkpoint/state_copy.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/data/options.hpp"
#include "trireme/device/launch.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/model/model.hpp"
#include "trireme/model/options.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/ops/step_status.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/gradient_reducer.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/options.hpp"
#include "trireme/parallel/periodic_average.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::train {

class OffloadWindows;
class StatusExchange;
class BatchUploader;

/// Sums over samples (tokens), added in the order of the tree. Layout as ops::cross_entropy writes
/// it.
using Sums = ops::SampleSums;

/// What a replica is made from.
struct ReplicaOptions {
  model::ModelOptions model;
  model::LossOptions loss;
  optim::OptimizerOptions optimizer;
  data::AugmentOptions augment;  ///< normalisation
  Shape image;                   ///< images: [H, W, C]; undefined for tokens
  std::int64_t classes = 0;      ///< gpt: the vocabulary
  std::int64_t global = 1, micro = 1, accumulation = 1;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  parallel::PipelineKind pipeline_schedule = parallel::PipelineKind::one_forward_one_backward;
  int pipeline_chunks = 1;
  parallel::ShardKind shard = parallel::ShardKind::none;
  bool sequence = false;
  parallel::RowChunkLimits
      row_cut;        ///< of rows in layers that the tensor group splits: tests have small ones
  int recompute = 0;  ///< every n-th block; 0: none
  parallel::Offload offload;
  parallel::SyncKind sync = parallel::SyncKind::step;
  double outer_momentum = 0;  ///< of sync periodic
  DType compute = DType::float32;
  DType reduce =
      DType::float32;  ///< of what data ranks send each other of gradients; float32 or bfloat16
  std::optional<optim::LossScaleOptions> loss_scale;
  bool tfloat32 = false;       ///< of ops::ContextOptions
  bool float8 = false;         ///< the same; compute is bfloat16
  std::uint64_t seed = 1;      ///< dropout
  bool deterministic = false;  ///< small models at a power of two of replicas are added up in the
                               ///< same order in any case
  double block_delay_seconds = 0;  ///< forward of a block takes this much longer, backward twice
                                   ///< that: tests see schedules without blur
  bool async_checkpoints = false;  ///< checkpoint.async: room for a copy of what is saved
  bool graphs = true;              ///< a device's launches go as graphs where steps repeat them
  bool trains = true;  ///< false: forward only (evaluate): no gradients, slots or kept activations

  bool tokens() const { return model.kind == model::ModelKind::gpt; }
  /// What a sample's labels are counted in: 1 for images, the positions of a sequence.
  std::int64_t labels_per_sample() const { return tokens() ? model.gpt.context : 1; }
  /// Of one micro-batch: images [B, H, W, C], tokens [B, T].
  Shape input_shape() const;
};

/// Bytes of every arena of a rank: found by running the same code on the meta device.
struct MemoryPlan {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0;
  std::vector<std::int64_t> activations;     ///< of each micro-batch in flight through each chunk
  std::int64_t offload_windows[2] = {0, 0};  ///< offloaded activations: of the blocks at work
  std::int64_t recompute = 0, boundary = 0, ping_pong[2] = {0, 0}, workspace = 0,
               prepared_weights = 0, batches = 0;
  std::int64_t host_parameters = 0, host_optimizer = 0,
               host_activations = 0;  ///< parallel.offload: in host memory
  std::int64_t host_checkpoint =
      0;  ///< checkpoint.async: the copy that a thread writes, and what it writes through
  std::int64_t all_activations() const;
  std::int64_t total() const;       ///< on the device
  std::int64_t host_total() const;  ///< in host memory
  bool operator==(const MemoryPlan&) const = default;
};

/// One rank's part of the model with all its memory, and what it does in a step: the chunks of
/// blocks of its pipeline stage (without pipeline: one, the whole model), split over its tensor
/// group, replicated or sharded over its data group.
class Replica {
 public:
  /// Runs a step and an evaluation on meta, as the rank of this place would, and returns what each
  /// arena needed.
  static MemoryPlan measure(const ReplicaOptions& options, const parallel::MeshShape& shape,
                            int world_rank, DeviceKind target);

  /// Takes the arenas of `plan` from the device. Meta: counts only, what `target` would need.
  Replica(const ReplicaOptions& options, Device device, DeviceKind target, const MemoryPlan& plan,
          const parallel::Mesh& mesh, comm::Engine& engine);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Initial weights, with which the average of the weights begins. No communication.
  void initialize(std::uint64_t seed);
  /// Weights and running statistics change places with their averages, bit for bit, and so does
  /// what ops read: between two calls it is the average that is evaluated. Collective. Does nothing
  /// without `optimizer.ema`.
  void swap_ema();

  /// What this rank does in a step, in order.
  const std::vector<parallel::PipelineAction>& schedule() const { return schedule_; }
  /// Its gradients are seeded with the loss scale as it is known now.
  void begin_step();
  /// Whether an action takes the next micro-batch from the loader.
  static bool takes_batch(const parallel::PipelineAction& action) {
    return action.forward && action.chunk == 0;
  }
  /// Forward through a chunk; what enters it comes from the batch (where takes_batch; else null) or
  /// from the stage before.
  void forward(const parallel::PipelineAction& action, const data::MicroBatch* batch);
  /// Backward through a chunk, at the end of the model beginning with the head and the loss;
  /// buckets are reduced as they become ready.
  void backward(const parallel::PipelineAction& action);
  /// After a step's last backward: the sums of its micro-batches and what this rank wishes for go
  /// to all ranks, on the device. Collective over the world.
  void post_status(std::uint64_t wishes, double busy_seconds);
  StatusExchange& status_exchange() { return *status_exchange_; }
  /// Micro-batches that may be evaluated before their sums are read.
  static constexpr int max_unread_micro_batches = 64;
  /// Forward only, in evaluation mode: the last stage keeps the sums of the valid rows as those of
  /// micro-batch `number`. All stages take part.
  void evaluate(const data::MicroBatch& batch, int number);
  /// Sums of the first micro-batches of the step, or of those evaluated, for which the host waits;
  /// nothing is read but at the last stage.
  void read_sums(std::span<Sums> sums) const;
  /// Logits float32 [classes] of position `row` of one sequence of `context` tokens (without
  /// pipeline, micro = 1), in device memory. Collective over the tensor group.
  Tensor logits(const Tensor& tokens, std::int64_t row);

  /// From here on backward begins with the loss's gradient times this: 1, or for tests what must
  /// not reach the weights.
  void scale_gradients(float factor) { gradient_factor_ = factor; }

  parallel::GradientReducer& reducer() { return *reducer_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  /// Null unless sync is periodic: then replicas go their own ways, each by the gradient of its own
  /// samples, until they are averaged.
  parallel::PeriodicAverage* average() { return average_.get(); }
  parallel::ParameterStore& store() { return *store_; }
  const model::Model& model() const { return model_; }
  const parallel::Mesh& mesh() const { return mesh_; }
  ops::Context& context() { return context_; }
  comm::Engine& engine() { return engine_; }
  const LaunchGraphs& graphs() const { return graphs_; }
  /// Between whom its device memory travels: for comm::Engine::connect.
  comm::Engine::Connections connections() const;
  const ReplicaOptions& options() const { return options_; }
  bool last_stage() const { return mesh_.coordinates.stage + 1 == mesh_.shape.pipeline; }
  /// Whether this rank's rows of a tensor of its list count (norms, checkpoints): another holds the
  /// same ones otherwise.
  bool is_counted(std::size_t tensor) const { return counted_[tensor] != 0; }
  /// For checkpoint::BackgroundWrite: how its values come from here. What changes any of
  /// pieces_of() is given to the device behind its may_change().
  checkpoint::StateCopy& state_copy() { return state_copy_; }
  /// What the arenas have really needed so far.
  MemoryPlan peaks() const;

 private:
  class Chunk;
  Chunk& chunk(const parallel::PipelineAction& action) {
    return *chunks_[static_cast<std::size_t>(action.chunk)];
  }
  Tensor prepare_input(model::MicroBatchPass& pass);
  Tensor receive(const Tensor& into, int chunk, bool forward);
  comm::Engine::Request send(const Tensor& tensor, int chunk, bool forward);
  comm::Engine::Request send_copy(const Tensor& tensor, int chunk, bool forward);
  Tensor sums_of(int micro_batch) const { return sums_.rows(micro_batch, micro_batch + 1); }

  ReplicaOptions options_;
  parallel::Mesh mesh_;
  comm::Communicator gradient_group_;  ///< the ranks of the data group whose gradients and
                                       ///< statistics are summed in a step
  comm::Engine& engine_;
  Arena parameters_, gradients_, optimizer_state_, recompute_, boundary_, ping_pong_arenas_[2],
      workspace_, prepared_weights_, batches_;
  Arena host_parameters_, host_optimizer_state_, host_checkpoint_;
  LaunchGraphs graphs_;
  OwnedStream compute_;
  checkpoint::StateCopy state_copy_;
  ops::Context context_;
  model::Model model_;
  std::vector<parallel::PipelineAction> schedule_;
  parallel::TensorGroup tensor_group_;
  parallel::ParameterList parameter_list_;  ///< of the blocks of this stage
  parallel::FlatLayout layout_;
  std::vector<char> counted_;
  std::unique_ptr<parallel::ParameterStore> store_;
  std::unique_ptr<parallel::GradientReducer> reducer_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<parallel::PeriodicAverage> average_;
  model::PingPongArena ping_pong_;
  std::unique_ptr<OffloadWindows> offload_windows_;  ///< parallel.offload: "activations"
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::unique_ptr<BatchUploader> uploader_;
  std::unique_ptr<StatusExchange> status_exchange_;
  ops::ImagePreparation preparation_;
  Tensor sums_;  ///< float64 [micro-batches of a step, or evaluated at once, 4], as
                 ///< ops::cross_entropy writes it, on the device
  Tensor incoming_, outgoing_[2];
  comm::Engine::Request outgoing_requests_[2] = {0, 0};
  int outgoing_index_ = 0;
  float statistic_scale_, gradient_factor_ = 1;
};

}  // namespace trireme::train
