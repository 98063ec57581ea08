// SPDX-License-Identifier: Apache-2.0
//
// The whole augmentation of training images, from the shard to the input of the model: a step has
// the same images, labels and weights in the order of its rows at every number of ranks.
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "image_set.hpp"
#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t samples = 53, global = 24, steps = 7, side = 6, channels = 3;

/// Returns the digest of each step: prepared images, labels and label weights of its rows.
std::vector<std::uint64_t> digests_of_steps(const std::string& folder, std::int64_t micro,
                                            int ranks, int workers) {
  AugmentOptions augment;
  augment.random_resized_crop.size = side;
  augment.flip = true;
  augment.color_jitter = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1};
  augment.rand_augment.count = 2;
  const Dataset dataset(folder, {0, ImagePipeline::training(augment, 3).form()});
  std::vector<std::unique_ptr<Loader>> loaders;
  for (int rank = 0; rank < ranks; ++rank) {
    LoaderOptions options;
    options.order = {.seed = 3, .samples = samples, .shuffle = Shuffle::full};
    options.batching = {.samples = samples, .global_batch = global, .drop_last = false};
    options.augmentation = {.seed = 3,
                            .height = side,
                            .width = side,
                            .erase = {.probability = 0.5},
                            .mixing = {.mixup = 0.4, .cutmix = 1}};
    options.micro = micro;
    options.data_rank = rank;
    options.data_size = ranks;
    options.workers = workers;
    loaders.push_back(std::make_unique<Loader>(dataset, options));
    loaders.back()->start({0, 0});
  }
  const Shape images{micro, side, side, channels};
  Arena workspace({}, "workspace", 0), library({}, "library", 0),
      memory({}, "images", images.elements() * size_of(DType::float32) + 64);
  const Tensor prepared = memory.allocate(DType::float32, images);
  ops::Context context({}, workspace, library);
  const ops::ImagePreparation preparation{
      .mean = {0.5f, 0.4f, 0.3f}, .inverse_std = {4, 4.5f, 5}, .erases = true, .mixes = true};
  std::vector<std::uint64_t> digests;
  io::Xxh3 hash;
  for (std::int64_t step = 0; step < steps; ++step) {
    std::vector<std::byte> rows, labels, weights;
    const auto append = [](std::vector<std::byte>& to, const void* from, std::int64_t bytes) {
      const auto* const begin = static_cast<const std::byte*>(from);
      to.insert(to.end(), begin, begin + bytes);
    };
    for (const auto& loader : loaders) {
      for (std::int64_t part = 0; part < global / (micro * ranks); ++part) {
        const MicroBatch& batch = loader->next();
        ops::prepare_images(context, preparation, batch.inputs, batch.transforms, prepared);
        append(rows, prepared.data, prepared.bytes());
        append(labels, batch.labels.data, batch.labels.bytes());
        append(weights, batch.label_weights, micro * static_cast<std::int64_t>(sizeof(float)));
      }
    }
    hash.reset();
    for (const std::vector<std::byte>* part : {&rows, &labels, &weights})
      hash.update(part->data(), part->size());
    digests.push_back(hash.digest());
  }
  return digests;
}

TEST(AugmentedBatches, AreTheSameAtEveryNumberOfRanks) {
  const test::ScratchFolder folder;
  ImageSet set(samples);
  set.height = 11;
  set.width = 9;
  set.channels = channels;
  set.images.clear();
  for (std::int64_t i = 0; i < samples * set.sample_bytes(); ++i)
    set.images.push_back(static_cast<std::byte>(i * i * 37 + (i >> 5)));
  set.write(folder / "set", {20, 33});
  const std::vector<std::uint64_t> one = digests_of_steps(folder / "set", 2, 1, 1);
  EXPECT_EQ(std::set(one.begin(), one.end()).size(), static_cast<std::size_t>(steps));
  EXPECT_EQ(digests_of_steps(folder / "set", 2, 1, 4), one) << "4 workers";
  EXPECT_EQ(digests_of_steps(folder / "set", 12, 1, 2), one) << "other micro-batches";
  for (const int ranks : {2, 3, 4})
    EXPECT_EQ(digests_of_steps(folder / "set", 2, ranks, 2), one) << ranks << " ranks";
}

}  // namespace
}  // namespace trireme::data
