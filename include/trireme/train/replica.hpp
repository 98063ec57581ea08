#pragma once

#include <cstdint>
#include <vector>

#include "trireme/data/loader.hpp"
#include "trireme/data/options.hpp"
#include "trireme/model/model.hpp"
#include "trireme/model/options.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/gradient_reducer.hpp"

namespace trireme::train {

/// Sums over samples: what losses and metrics are made of, added in the order of the tree. Layout as ops::cross_entropy writes it.
struct Sums {
  double loss = 0, count = 0, top1 = 0, top5 = 0;
  friend Sums operator+(const Sums& a, const Sums& b) { return {a.loss + b.loss, a.count + b.count, a.top1 + b.top1, a.top5 + b.top5}; }
};

/// What a replica is made from.
struct ReplicaOptions {
  model::ModelOptions model;
  model::LossOptions loss;
  optim::OptimizerOptions optimizer;
  data::AugmentOptions augment;       ///< normalisation
  Shape image;                        ///< [H, W, C]
  std::int64_t classes = 0;
  std::int64_t global = 1, micro = 1, accumulation = 1;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  DType compute = DType::float32;
  bool deterministic = false;         ///< small models at a power of two of replicas are added up in the same order in any case
  bool trains = true;                 ///< false: forward only (evaluate): no gradients, slots or kept activations
};

/// Bytes of every arena of a rank: found by running the same code on the meta device.
struct MemoryPlan {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0, activations = 0, flow[2] = {0, 0}, workspace = 0, library = 0, scalars = 0;
  std::int64_t total() const { return parameters + gradients + optimizer + activations + flow[0] + flow[1] + workspace + library + scalars; }
  bool operator==(const MemoryPlan&) const = default;
};

/// One rank's replica of the model with all its memory: weights, gradients, slots, activations, and what computes on them.
class Replica {
 public:
  /// Runs two micro-batches, an update and an evaluation on meta and returns what each arena needed.
  static MemoryPlan measure(const ReplicaOptions& options, int data_rank, int data_size, DeviceKind target);

  /// Takes the arenas of `plan` from the device. Meta: counts only.
  Replica(const ReplicaOptions& options, Device device, DeviceKind target, const MemoryPlan& plan, const comm::Communicator& data_group, comm::Engine& engine);
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Forward of one micro-batch of a step; its sums are kept (micro_batch_sums).
  void forward(std::int64_t micro_batch, const data::MicroBatch& batch);
  /// Backward of the same; buckets are reduced as they become ready.
  void backward();
  /// Forward only, in evaluation mode. Returns the sums of the valid rows.
  Sums evaluate(const data::MicroBatch& batch);

  parallel::GradientReducer& reducer() { return reducer_; }
  optim::Optimizer& optimizer() { return optimizer_; }
  parallel::ParameterStore& store() { return store_; }
  const model::Model& model() const { return model_; }
  ops::Context& context() { return context_; }
  const ReplicaOptions& options() const { return options_; }
  /// Sums of this rank's micro-batches of the current step.
  const std::vector<Sums>& micro_batch_sums() const { return sums_; }
  /// What the arenas have really needed so far.
  MemoryPlan peaks() const;

 private:
  Tensor input(const data::MicroBatch& batch);
  ReplicaOptions options_;
  Arena parameters_, gradients_, slots_, activations_, flow_[2], workspace_, library_, scalars_;
  ops::Context context_;
  model::Model model_;
  parallel::FlatLayout layout_;
  parallel::ParameterStore store_;
  parallel::GradientReducer reducer_;
  optim::Optimizer optimizer_;
  model::Pass pass_;
  ops::ImagePreparation preparation_;
  Tensor sums_on_device_, dlogits_;
  std::vector<Sums> sums_;
  float statistic_scale_;
};

}  // namespace trireme::train
