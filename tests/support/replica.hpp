#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/base/philox.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::test {

/// A replica on the CPU with images and labels of its own, keyed by their index: for tests of whole steps without files.
struct ReplicaFixture {
  explicit ReplicaFixture(const train::ReplicaOptions& options, std::uint64_t seed = 1)
      : options(options),
        plan(train::Replica::measure(options, 0, 1, DeviceKind::cpu)),
        engine(comm::Engine::Drive::polled),
        replica(options, Device{DeviceKind::cpu, 0}, DeviceKind::cpu, plan, comm::Communicator(), engine),
        images(static_cast<std::size_t>(options.micro * options.image.elements())),
        labels(static_cast<std::size_t>(options.micro)),
        transforms(static_cast<std::size_t>(options.micro)) {
    replica.store().initialize(seed);
  }

  /// Micro-batch number `index`: a label decides the image's mean, so that there is something to learn.
  data::MicroBatch batch(std::int64_t index) {
    const std::int64_t pixels = options.image.elements();
    for (std::int64_t b = 0; b < options.micro; ++b) {
      const auto label = static_cast<std::int32_t>((index * options.micro + b) % options.classes);
      labels[static_cast<std::size_t>(b)] = label;
      for (std::int64_t p = 0; p < pixels; ++p) {
        const double noise = uniform_at(77 + static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(b * pixels + p));
        images[static_cast<std::size_t>(b * pixels + p)] = static_cast<std::uint8_t>(20.0 * label + 60.0 * noise);
      }
    }
    data::MicroBatch batch;
    batch.images = {images.data(), DType::uint8, DeviceKind::cpu, {options.micro, options.image[0], options.image[1], options.image[2]}};
    batch.labels = {labels.data(), DType::int32, DeviceKind::cpu, {options.micro}};
    batch.transforms = transforms.data();
    batch.valid = options.micro;
    return batch;
  }

  /// Gradients of one step over all micro-batches (the first of them is number `first`). Returns the loss summed over samples.
  double gradients(std::int64_t first = 0) {
    replica.reducer().begin_step();
    double loss = 0;
    for (std::int64_t j = 0; j < options.accumulation; ++j) {
      replica.forward(j, batch(first + j));
      replica.backward();
      loss += replica.micro_batch_sums()[static_cast<std::size_t>(j)].loss;
    }
    replica.reducer().finish(replica.context());
    return loss;
  }

  train::ReplicaOptions options;
  train::MemoryPlan plan;
  comm::Engine engine;
  train::Replica replica;
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels;
  std::vector<ops::ImageTransform> transforms;
};

inline train::ReplicaOptions small_resnet(int depth = 8, std::int64_t width = 8) {
  train::ReplicaOptions options;
  options.model.depth = depth;
  options.model.width = width;
  options.model.stem = model::ResnetStem::small;
  options.image = {8, 8, 1};
  options.classes = 5;
  options.micro = options.global = 10;
  return options;
}

}  // namespace trireme::test
