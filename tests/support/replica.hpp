// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/train/step/replica.hpp"

namespace trireme::test {

/// A replica with generated samples, for tests of whole steps without files. Each sample depends
/// only on its index. Samples are images or tokens, as the model requires. The default is a mesh of
/// one rank on the CPU.
struct ReplicaFixture {
  explicit ReplicaFixture(const train::ReplicaOptions& options, std::uint64_t seed = 1,
                          const parallel::Mesh& mesh = parallel::Mesh({}, comm::Communicator()),
                          Device device = {})
      : options(options),
        mesh(mesh),
        plan(train::Replica::measure(options, mesh.shape, mesh.world.rank(), device.kind)),
        engine(comm::Engine::ProgressMode::polled),
        replica(options, device, device.kind, plan, mesh, engine),
        images(static_cast<std::size_t>(
            options.tokens() ? 0 : options.micro * options.image.elements())),
        tokens(static_cast<std::size_t>(
            options.tokens() ? options.micro * options.labels_per_sample() : 0)),
        labels(static_cast<std::size_t>(options.micro * options.labels_per_sample())),
        sample_keys(static_cast<std::size_t>(options.micro)),
        transforms(static_cast<std::size_t>(options.micro)),
        label_weights(static_cast<std::size_t>(options.micro)),
        sums_(static_cast<std::size_t>(options.accumulation)) {
    replica.weight_update().initialize(seed);
  }

  ReplicaFixture(const ReplicaFixture&) = delete;
  ReplicaFixture& operator=(const ReplicaFixture&) = delete;
  ~ReplicaFixture() {
    // A gather of weights may still write into the replica's memory.
    engine.quiesce();
  }

  /// Returns micro-batch number `index`, valid until the next call.
  data::MicroBatch batch(std::int64_t index) {
    data::MicroBatch batch;
    options.tokens() ? fill_tokens(index, batch) : fill_images(index, batch);
    for (std::int64_t b = 0; b < options.micro; ++b)
      sample_keys[static_cast<std::size_t>(b)] = data::sample_key(0, index * options.micro + b);
    augment(index);
    batch.transforms = transforms.data();
    if (options.augment.mixing.is_on()) batch.label_weights = label_weights.data();
    batch.sample_keys = sample_keys.data();
    batch.valid_rows = options.micro;
    return batch;
  }

  /// Computes the gradients of one step over all micro-batches, starting with number `first`.
  /// Returns the loss summed over samples; 0 except on the last stage.
  double gradients(std::int64_t first = 0) {
    replica.begin_step(measures_noise);
    double loss = 0;
    train::PipelineStage& stage = replica.stage();
    for (const parallel::PipelineAction& action : stage.schedule()) {
      if (action.forward) {
        const data::MicroBatch micro = batch(first + action.micro_batch);
        stage.forward(action, train::PipelineStage::takes_batch(action) ? &micro : nullptr);
      } else {
        stage.backward(action);
      }
    }
    for (const train::Sums& sums : micro_batch_sums()) loss += sums.loss;
    if (const double* squares = reducer().finish_measurement(replica.context())) {
      copy_bytes(replica.context().stream(), &gradient_squares, squares, sizeof gradient_squares);
      synchronize(replica.context().stream());
    }
    reduced_gradient = reducer().finish(replica.context());
    return loss;
  }

  /// Returns the sums of the last gradients() for each micro-batch.
  const std::vector<train::Sums>& micro_batch_sums() {
    replica.stage().read_sums(sums_);
    return sums_;
  }

  /// Evaluates one micro-batch.
  train::Sums evaluate(const data::MicroBatch& batch) {
    train::Sums sums;
    replica.stage().evaluate(batch, 0, options.kept_rows != train::KeptRows::none);
    replica.stage().read_sums({&sums, 1});
    return sums;
  }

  /// Runs a whole step. Returns the norm of its gradient.
  double step(double rate, std::int64_t first = 0) {
    gradients(first);
    optim::StepOutcome outcome;
    if (reduced_gradient.exists)
      outcome = optimizer().step(replica.context(), rate, reduced_gradient.finite,
                                 reduced_gradient.scale);
    store().start_gather(replica.context());
    return outcome.grad_norm;
  }

  parallel::ParameterStore& store() { return replica.weight_update().store(); }
  parallel::GradientReducer& reducer() { return replica.weight_update().reducer(); }
  optim::Optimizer& optimizer() { return replica.weight_update().optimizer(); }

  train::ReplicaOptions options;
  parallel::Mesh mesh;
  train::MemoryPlan plan;
  comm::Engine engine;
  train::Replica replica;
  parallel::GradientReducer::ReducedGradient reduced_gradient;  ///< result of the last gradients()
  bool measures_noise = false;  ///< gradients() measures those of its micro-batches
  double gradient_squares = 0;  ///< the result: the sum over the micro-batches of this rank
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> tokens, labels;
  std::vector<std::uint64_t> sample_keys;
  std::vector<ops::ImageTransform> transforms;
  std::vector<float> label_weights;

 private:
  /// Erases and mixes as the options say; transforms that a test has set stay otherwise.
  void augment(std::int64_t index) {
    if (options.tokens()) return;
    const data::Augmentation augmentation{.seed = 5,
                                          .height = options.image[0],
                                          .width = options.image[1],
                                          .erase = options.augment.erase,
                                          .mixing = options.augment.mixing};
    for (std::int64_t b = 0; b < options.micro && augmentation.erase.probability > 0; ++b)
      transforms[static_cast<std::size_t>(b)] =
          augmentation.transform_of(0, index * options.micro + b);
    if (!augmentation.mixing.is_on()) return;
    for (std::size_t b = 0; b < transforms.size(); b += 2)
      augmentation.mix_pair(&sample_keys[b], &transforms[b]);
    for (std::size_t b = 0; b < transforms.size(); ++b) label_weights[b] = transforms[b].weight;
  }

  /// The label determines the mean of the image, so that the model can learn something.
  void fill_images(std::int64_t index, data::MicroBatch& batch) {
    const std::int64_t pixels = options.image.elements();
    for (std::int64_t b = 0; b < options.micro; ++b) {
      const auto label =
          static_cast<std::int32_t>((index * options.micro + b) % options.outputs.count);
      labels[static_cast<std::size_t>(b)] = label;
      for (std::int64_t p = 0; p < pixels; ++p) {
        const double noise = uniform_at(77 + static_cast<std::uint64_t>(index),
                                        static_cast<std::uint64_t>(b * pixels + p));
        images[static_cast<std::size_t>(b * pixels + p)] =
            static_cast<std::uint8_t>(20.0 * label + 60.0 * noise);
      }
    }
    batch.inputs = {images.data(),
                    DType::uint8,
                    DeviceKind::cpu,
                    {options.micro, options.image[0], options.image[1], options.image[2]}};
    batch.labels = {labels.data(), DType::int32, DeviceKind::cpu, {options.micro}};
  }

  /// Each sequence counts up by an increment of its own.
  void fill_tokens(std::int64_t index, data::MicroBatch& batch) {
    const std::int64_t context = options.labels_per_sample();
    for (std::int64_t b = 0; b < options.micro; ++b) {
      const std::int64_t sample = index * options.micro + b;
      for (std::int64_t t = 0; t < context; ++t) {
        const auto at = static_cast<std::size_t>(b * context + t);
        tokens[at] =
            static_cast<std::int32_t>((sample + t * (1 + sample % 3)) % options.outputs.count);
        labels[at] = static_cast<std::int32_t>((sample + (t + 1) * (1 + sample % 3)) %
                                               options.outputs.count);
      }
    }
    const Shape shape{options.micro, context};
    batch.inputs = {tokens.data(), DType::int32, DeviceKind::cpu, shape};
    batch.labels = {labels.data(), DType::int32, DeviceKind::cpu, shape};
  }
  std::vector<train::Sums> sums_;
};

/// Returns the options of a small ResNet on 8 x 8 images with 5 classes.
inline train::ReplicaOptions small_resnet(int depth = 8, std::int64_t width = 8) {
  train::ReplicaOptions options;
  options.model = resnet(depth, width);
  options.image = {8, 8, 1};
  options.outputs.count = 5;
  options.micro = options.global = 10;
  return options;
}

/// Returns the options of a small GPT with 4 heads, a context of 8 and a vocabulary of 37.
inline train::ReplicaOptions small_gpt(std::int64_t layers = 2, std::int64_t width = 16) {
  train::ReplicaOptions options;
  options.model = model_of(model::TransformerOptions{.layers = layers,
                                                     .heads = 4,
                                                     .width = width,
                                                     .context = 8,
                                                     .kv_heads = 4,
                                                     .mlp_width = 4 * width,
                                                     .vocabulary = 37,
                                                     .dropout = 0.1});
  options.optimizer.rule = &optim::rule("adamw");
  options.outputs.count = 37;
  options.micro = options.global = 2;
  return options;
}

}  // namespace trireme::test
