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

/// Loss and accuracy sums over samples (tokens), in the layout of ops::cross_entropy. Added in tree
/// order.
using Sums = ops::SampleSums;

/// Constructor options of a Replica.
struct ReplicaOptions {
  model::ModelOptions model;
  model::LossOptions loss;
  optim::OptimizerOptions optimizer;
  data::AugmentOptions augment;  ///< Mean and standard deviation of images.
  Shape image;                   ///< [H, W, C] for images; undefined for tokens.
  std::int64_t classes = 0;      ///< Number of classes; for language models the vocabulary size.
  std::int64_t global = 1, micro = 1, accumulation = 1;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  parallel::PipelineKind pipeline_schedule = parallel::PipelineKind::one_forward_one_backward;
  int pipeline_chunks = 1;
  parallel::ShardKind shard = parallel::ShardKind::none;
  bool sequence = false;
  /// Cuts rows in layers that the tensor group splits; tests use small cuts.
  parallel::RowChunkLimits row_cut;
  int recompute = 0;  ///< Every n-th block is recomputed in backward; 0: none.
  parallel::Offload offload;
  parallel::SyncKind sync = parallel::SyncKind::step;
  double outer_momentum = 0;  ///< Outer momentum of sync periodic.
  DType compute = DType::float32;
  DType reduce =
      DType::float32;  ///< Type in which data ranks exchange gradients: float32 or bfloat16.
  std::optional<optim::LossScaleOptions> loss_scale;
  bool tfloat32 = false;   ///< As in ops::ContextOptions.
  bool float8 = false;     ///< As in ops::ContextOptions; needs compute = bfloat16.
  std::uint64_t seed = 1;  ///< Seed of dropout.
  /// Sums in a fixed order. Small models on a power-of-two number of replicas always do so.
  bool deterministic = false;
  /// Test only: forward of each block takes this much longer and backward twice as much, so that
  /// schedules are visible in traces.
  double block_delay_seconds = 0;
  /// checkpoint.async: host memory for a copy of the saved state is reserved.
  bool async_checkpoints = false;
  /// Kernel launches that repeat from step to step are replayed as CUDA graphs.
  bool graphs = true;
  /// False: forward only (evaluate): no gradients, optimizer state or saved activations.
  bool trains = true;

  bool tokens() const { return model.kind == model::ModelKind::gpt; }
  /// Returns the labels per sample: 1 for images, the sequence length for tokens.
  std::int64_t labels_per_sample() const { return tokens() ? model.gpt.context : 1; }
  /// Returns the input shape of one micro-batch: images [B, H, W, C], tokens [B, T].
  Shape input_shape() const;
};

/// Bytes of every arena of a rank, measured by running the same code on the meta device.
struct MemoryPlan {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0;
  std::vector<std::int64_t> activations;  ///< One entry per chunk and micro-batch in flight.
  /// Offloaded activations: device windows of the blocks that run now.
  std::int64_t offload_windows[2] = {0, 0};
  std::int64_t recompute = 0, boundary = 0, ping_pong[2] = {0, 0}, workspace = 0,
               prepared_weights = 0, batches = 0;
  std::int64_t host_parameters = 0, host_optimizer = 0,
               host_activations = 0;  ///< parallel.offload: bytes in host memory.
  std::int64_t host_checkpoint =
      0;  ///< checkpoint.async: the copy of the state and the staging buffer of the writer thread.
  std::int64_t all_activations() const;
  std::int64_t total() const;       ///< Returns the bytes on the device.
  std::int64_t host_total() const;  ///< Returns the bytes in host memory.
  bool operator==(const MemoryPlan&) const = default;
};

/// One rank's part of the model, with all its memory.
///
/// It holds the chunks of blocks of the rank's pipeline stage (without a pipeline: one chunk, the
/// whole model). They are split over the tensor group, and replicated or sharded over the data
/// group. StepPipeline calls it once per step, in this order:
///
///   begin_step()  [forward() | backward()] per action of schedule()  post_status()
///   reducer().finish()  optimizer().begin_update()  store().start_gather()
///
/// All device work is enqueued on one compute stream; calls return before the device has finished.
class Replica {
 public:
  /// Runs a step and an evaluation on the meta device as `world_rank` would, and returns the bytes
  /// that each arena needs. `target` is the device that the run will use. Touches no device memory.
  static MemoryPlan measure(const ReplicaOptions& options, const parallel::MeshShape& shape,
                            int world_rank, DeviceKind target);

  /// Allocates the arenas of `plan` on `device` and builds the model, schedule and optimizer.
  ///
  /// On the meta device it only counts the bytes that `target` would need. `engine` outlives the
  /// replica. Throws Failure if memory cannot be allocated.
  Replica(const ReplicaOptions& options, Device device, DeviceKind target, const MemoryPlan& plan,
          const parallel::Mesh& mesh, comm::Engine& engine);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Fills the weights with their initial values and starts the weight average from them.
  /// Collective over data ranks if weights are sharded.
  void initialize(std::uint64_t seed);
  /// Swaps weights and running statistics with their averages, bit for bit; the working weights
  /// follow. Between two calls the average is evaluated.
  ///
  /// Waits for all communication. Collective over data ranks. Does nothing without `optimizer.ema`.
  void swap_ema();

  /// Returns the actions of this rank in a step, in order.
  const std::vector<parallel::PipelineAction>& schedule() const { return schedule_; }
  /// Starts a step: its gradients use the loss scale that the host knows now.
  void begin_step();
  /// Returns whether an action needs the next micro-batch of the loader.
  static bool takes_batch(const parallel::PipelineAction& action) {
    return action.forward && action.chunk == 0;
  }
  /// Enqueues forward through a chunk. Its input is `batch` for the first chunk (takes_batch; else
  /// null), or is received from the previous chunk.
  void forward(const parallel::PipelineAction& action, const data::MicroBatch* batch);
  /// Enqueues backward through a chunk. The last chunk starts with the head and the loss; others
  /// receive their gradient. Starts the reduction of each gradient bucket as soon as it is
  /// complete.
  void backward(const parallel::PipelineAction& action);
  /// Enqueues the status exchange of the step: loss sums, stop requests, busy seconds. Called after
  /// the last backward. Collective over the world.
  void post_status(std::uint64_t wishes, double busy_seconds);
  StatusExchange& status_exchange() { return *status_exchange_; }
  /// Maximum number of micro-batches that may be evaluated before read_sums().
  static constexpr int max_unread_micro_batches = 64;
  /// Enqueues forward in evaluation mode. The last stage stores the sums over valid rows as entry
  /// `number` (< max_unread_micro_batches). All stages call it.
  void evaluate(const data::MicroBatch& batch, int number);
  /// Waits for the device and reads the sums of the first micro-batches of the step or evaluation.
  /// Writes nothing on ranks outside the last stage.
  void read_sums(std::span<Sums> sums) const;
  /// Returns the logits, float32 [classes] in device memory, of position `row` of a sequence of
  /// `context` tokens. Needs a replica without pipeline and with micro = 1. Collective over the
  /// tensor group.
  Tensor logits(const Tensor& tokens, std::int64_t row);

  /// Multiplies the loss gradient of following backward passes by `factor`: 1, or NaN to inject a
  /// fault.
  void scale_gradients(float factor) { gradient_factor_ = factor; }

  parallel::GradientReducer& reducer() { return *reducer_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  /// Returns null unless sync is periodic. Then each replica applies the gradient of its own
  /// samples until the replicas are averaged.
  parallel::PeriodicAverage* average() { return average_.get(); }
  parallel::ParameterStore& store() { return *store_; }
  const model::Model& model() const { return model_; }
  const parallel::Mesh& mesh() const { return mesh_; }
  ops::Context& context() { return context_; }
  comm::Engine& engine() { return engine_; }
  const LaunchGraphs& graphs() const { return graphs_; }
  /// Returns the groups and pipeline lanes that exchange device memory, for
  /// comm::Engine::connect().
  comm::Engine::Connections connections() const;
  const ReplicaOptions& options() const { return options_; }
  bool last_stage() const { return mesh_.coordinates.stage + 1 == mesh_.shape.pipeline; }
  /// Returns whether this rank counts its rows of a tensor in norms and checkpoints. For duplicated
  /// rows exactly one rank does.
  bool is_counted(std::size_t tensor) const { return counted_[tensor] != 0; }
  /// Returns the copier of checkpoint::BackgroundWrite. Changes to any tensor of slices_of() must
  /// be enqueued after its wait_before_update().
  checkpoint::StateCopy& state_copy() { return state_copy_; }
  /// Returns the largest number of bytes used so far in each arena.
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
  comm::Communicator
      gradient_group_;  ///< Data ranks whose gradients and statistics are summed in each step.
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
  parallel::ParameterList parameter_list_;  ///< Parameters of the blocks of this stage.
  parallel::FlatLayout layout_;
  std::vector<char> counted_;
  std::unique_ptr<parallel::ParameterStore> store_;
  std::unique_ptr<parallel::GradientReducer> reducer_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<parallel::PeriodicAverage> average_;
  model::PingPongArena ping_pong_;
  /// Null unless parallel.offload names "activations".
  std::unique_ptr<OffloadWindows> offload_windows_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::unique_ptr<BatchUploader> uploader_;
  std::unique_ptr<StatusExchange> status_exchange_;
  ops::ImagePreparation preparation_;
  /// On the device: float64 [max(micro-batches of a step, max_unread_micro_batches), 4], in the
  /// layout of ops::cross_entropy.
  Tensor sums_;
  /// Buffers for messages between stages; outgoing gradients use the two buffers in turn.
  Tensor incoming_, outgoing_[2];
  comm::Engine::Request outgoing_requests_[2] = {0, 0};
  int outgoing_index_ = 0;
  float statistic_scale_, gradient_factor_ = 1;
};

}  // namespace trireme::train
