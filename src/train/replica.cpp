#include "trireme/train/replica.hpp"

#include <bit>

#include "trireme/ops/loss.hpp"

namespace trireme::train {
namespace {

/// Gradients up to this size are always added in the order of the tree: its buffers are small beside the activations, and between a power of
/// two of ranks it sends no more than a ring. Any other order changes last bits, one of which sooner or later turns a ReLU on or off: from
/// that step on, small networks with batch norm leave each other by a factor of about 3 a step, at any rate.
constexpr std::int64_t always_ordered_bytes = std::int64_t{128} << 20;

bool ordered(const ReplicaOptions& options, const parallel::FlatLayout& layout, int data_size) {
  const bool cheap = layout.elements() * size_of(DType::float32) <= always_ordered_bytes && std::has_single_bit(static_cast<unsigned>(data_size));
  return options.deterministic || (options.trains && cheap);
}

ops::ImagePreparation preparation_of(const data::AugmentOptions& augment) {
  ops::ImagePreparation preparation;
  for (std::size_t c = 0; c < augment.mean.size() && c < 4; ++c) {
    preparation.mean[c] = static_cast<float>(augment.mean[c]);
    preparation.inverse_std[c] = static_cast<float>(1.0 / augment.std[c]);
  }
  return preparation;
}

}  // namespace

Replica::Replica(const ReplicaOptions& options, Device device, DeviceKind target, const MemoryPlan& plan, const comm::Communicator& data_group,
                 comm::Engine& engine)
    : options_(options),
      parameters_(device, "parameters", plan.parameters),
      gradients_(device, "gradients", plan.gradients),
      slots_(device, "optimizer state", plan.optimizer),
      activations_(device, "activations", plan.activations),
      flow_{Arena(device, "flow 0", plan.flow[0]), Arena(device, "flow 1", plan.flow[1])},
      workspace_(device, "workspace", plan.workspace),
      library_(device, "prepared weights", plan.library),
      scalars_(device, "scalars", plan.scalars),
      context_(Stream{device, nullptr}, workspace_, library_, target),
      model_(options.model, {options.micro, options.image[0], options.image[1], options.image[2]}, options.classes),
      layout_(model_.parameters(), options.bucket_bytes),
      store_(model_.parameters(), layout_, options.compute, parameters_, gradients_),
      reducer_(store_, data_group, engine, {.micro_batches = options.accumulation, .deterministic = ordered(options, layout_, data_group.size())}, gradients_),
      optimizer_(options.optimizer, store_, slots_),
      pass_(context_, store_, {.kept = &activations_, .flow = {&flow_[0], &flow_[1]}}),
      preparation_(preparation_of(options.augment)),
      sums_on_device_(scalars_.allocate(DType::float64, {4})),
      sums_(static_cast<std::size_t>(options.accumulation)),
      statistic_scale_(static_cast<float>(1.0 / (static_cast<double>(options.accumulation) * data_group.size()))) {}

MemoryPlan Replica::measure(const ReplicaOptions& options, int data_rank, int data_size, DeviceKind target) {
  comm::Engine engine(comm::Engine::Drive::polled);
  const Device meta{DeviceKind::meta, 0};
  Replica replica(options, meta, target, {}, comm::Communicator::meta(data_rank, data_size), engine);
  data::MicroBatch batch;
  batch.images = {nullptr, DType::uint8, DeviceKind::meta, {options.micro, options.image[0], options.image[1], options.image[2]}};
  batch.labels = {nullptr, DType::int32, DeviceKind::meta, {options.micro}};
  batch.valid = options.micro;
  if (options.trains) {
    replica.reducer_.begin_step();
    for (std::int64_t j = 0; j < options.accumulation; ++j) {
      replica.forward(j, batch);
      replica.backward();
    }
    replica.reducer_.finish(replica.context_);
    replica.optimizer_.step(replica.context_, 0.1, true);
  }
  replica.evaluate(batch);
  return replica.peaks();
}

MemoryPlan Replica::peaks() const {
  MemoryPlan plan;
  plan.parameters = parameters_.peak_bytes();
  plan.gradients = gradients_.peak_bytes();
  plan.optimizer = slots_.peak_bytes();
  plan.activations = activations_.peak_bytes();
  plan.flow[0] = flow_[0].peak_bytes();
  plan.flow[1] = flow_[1].peak_bytes();
  plan.workspace = workspace_.peak_bytes();
  plan.library = library_.peak_bytes();
  plan.scalars = scalars_.peak_bytes();
  return plan;
}

Tensor Replica::input(const data::MicroBatch& batch) {
  const Tensor x = pass_.activation(options_.compute, batch.images.shape);
  ops::prepare_images(context_, preparation_, batch.images, batch.transforms, x);
  return x;
}

void Replica::forward(std::int64_t micro_batch, const data::MicroBatch& batch) {
  pass_.begin(true, reducer_.begin_micro_batch(micro_batch), statistic_scale_);
  const Tensor logits = model_.forward(pass_, input(batch));
  // Every sample weighs 1 / N, N the samples of the whole step: gradients of micro-batches and replicas only add.
  dlogits_ = pass_.gradient(logits.dtype, logits.shape);
  ops::cross_entropy(context_, logits, batch.labels, static_cast<float>(options_.loss.label_smoothing),
                     static_cast<float>(1.0 / static_cast<double>(options_.global)), sums_on_device_, dlogits_);
  if (context_.meta()) return;
  const double* sums = sums_on_device_.as<double>();
  sums_[static_cast<std::size_t>(micro_batch)] = {sums[0], sums[1], sums[2], sums[3]};
}

void Replica::backward() {
  model_.backward(pass_, dlogits_, [this](int block) { reducer_.block_done(context_, block); });
}

Sums Replica::evaluate(const data::MicroBatch& batch) {
  pass_.begin(false, ops::Write::assign, 0);
  const Tensor logits = model_.forward(pass_, input(batch));
  ops::cross_entropy(context_, logits, batch.labels, static_cast<float>(options_.loss.label_smoothing), 0, sums_on_device_, {});
  if (context_.meta()) return {};
  const double* sums = sums_on_device_.as<double>();
  return {sums[0], sums[1], sums[2], sums[3]};
}

}  // namespace trireme::train
