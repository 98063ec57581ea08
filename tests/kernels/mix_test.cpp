// SPDX-License-Identifier: Apache-2.0
//
// Erased and mixed images and their loss against torchvision and PyTorch, for given draws.

#include <algorithm>
#include <string>
#include <vector>

#include "reference.hpp"
#include "support/mix_reference.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/ops/loss.hpp"

namespace trireme::test {
namespace {

ops::PixelRange range_of(const nlohmann::json& list) {
  const auto side = [&](int i) { return list.at(i).get<std::uint16_t>(); };
  return {side(0), side(1), side(2), side(3)};
}

ops::ImageTransform transform_of(const nlohmann::json& sample) {
  const std::string mix = sample.at("mix");
  ops::ImageTransform t;
  t.row = sample.at("row");
  t.column = sample.at("column");
  t.flip = sample.at("flip");
  t.mix = mix == "mixup" ? ops::Mix::mixup : mix == "cutmix" ? ops::Mix::cutmix : ops::Mix::none;
  t.erased = range_of(sample.at("erased"));
  t.pasted = range_of(sample.at("pasted"));
  t.weight = sample.at("weight");
  return t;
}

TEST(MixedImages, EqualTorchvision) {
  const nlohmann::json reference = mix_reference();
  OpsFixture f;
  const std::vector<std::int64_t> extents = reference.at("shape");
  const Shape shape{extents[0], extents[1], extents[2], extents[3]};
  const Tensor x = f.make(DType::uint8, shape), y = f.make(DType::float32, shape);
  assign(x, reference.at("pixels"));
  std::vector<ops::ImageTransform> transforms;
  for (const nlohmann::json& sample : reference.at("samples"))
    transforms.push_back(transform_of(sample));
  ops::ImagePreparation preparation{.erases = true, .mixes = true};
  for (std::size_t c = 0; c < 3; ++c) {
    preparation.mean[c] = reference.at("mean").at(c);
    preparation.inverse_std[c] = static_cast<float>(1 / reference.at("std").at(c).get<double>());
  }
  ops::prepare_images(f.context, preparation, x, f.placed(transforms), y);
  // Both sides round in float32, in another order: numbers up to 2.7 after a few operations.
  expect_close(y, reference.at("mixed"), 16 * 0x1p-24);
}

TEST(MixedLabels, EqualPyTorch) {
  const nlohmann::json reference = mix_reference();
  OpsFixture f;
  const std::vector<double> labels = reference.at("labels"), logits = reference.at("logits");
  const std::int64_t rows = std::ssize(labels), classes = std::ssize(logits) / rows;
  const Tensor x = f.make(DType::float32, {rows, classes}), dx = f.make(DType::float32, x.shape),
               own = f.make(DType::int32, {rows}), weights = f.make(DType::float32, {rows}),
               sums = f.make(DType::float64, {4});
  Values weight;
  for (const nlohmann::json& sample : reference.at("samples"))
    weight.push_back(sample.at("weight"));
  assign(x, logits);
  assign(own, labels);
  assign(weights, weight);
  ops::cross_entropy(f.context, x, {own, reference.at("smoothing").get<float>(), weights}, 1, sums,
                     dx);
  // The targets of torchvision are rounded to float32; so are sums and exponentials here.
  EXPECT_NEAR(value_at(sums, 0), reference.at("loss").get<double>(), 1e-5);
  expect_close(dx, reference.at("gradient"), 1e-6);
}

}  // namespace
}  // namespace trireme::test
