#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "support/replica.hpp"

namespace trireme::model {
namespace {

/// Along each tensor's own gradient g the loss changes by |g|^2 a unit: the central difference must say the same. The weights move by 0.002 in
/// norm, and the loss by no more than 0.003 (a deep network's gradient is steep): small against the distance to most ReLU kinks, whose crossing is the main error, and with |g| >= 0.005 the loss still moves by 1e-5,
/// a hundred times float32's rounding of the mean loss of ten samples.
void check_gradients(const train::ReplicaOptions& options, float branch_scale = 1, double flattest = 0.005) {
  test::ReplicaFixture fixture(options);
  parallel::ParameterStore& store = fixture.replica.store();
  for (std::size_t i = 0; i < store.list().entries().size(); ++i) {
    const Tensor scale = store.master({static_cast<std::int32_t>(i)});
    if (store.list().entries()[i].spec.name.ends_with(".bn3.weight")) std::fill_n(scale.as<float>(), scale.elements(), branch_scale);
  }
  fixture.gradients();
  const Tensor flat = store.flat_gradient();
  const std::vector<float> gradient(flat.as<float>(), flat.as<float>() + flat.elements());
  float* weights = store.flat_master().as<float>();
  const std::vector<float> start(weights, weights + flat.elements());
  const double samples = static_cast<double>(options.micro * options.accumulation);

  const auto& entries = store.list().entries();
  int checked = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].spec.role == parallel::Role::statistic) continue;
    const auto& slot = store.layout().slot({static_cast<std::int32_t>(i)});
    double square = 0;
    for (std::int64_t e = 0; e < slot.elements; ++e) square += std::pow(gradient[static_cast<std::size_t>(slot.offset + e)], 2);
    ASSERT_TRUE(std::isfinite(square)) << entries[i].spec.name;
    if (square < flattest * flattest) continue;  // lost in float32's rounding
    const auto loss_at = [&](double scale) {
      for (std::int64_t e = slot.offset; e < slot.offset + slot.elements; ++e) {
        weights[e] = static_cast<float>(start[static_cast<std::size_t>(e)] + scale * gradient[static_cast<std::size_t>(e)]);
      }
      store.refresh_compute();
      return fixture.gradients() / samples;
    };
    const double step = std::min(0.002 / std::sqrt(square), 0.003 / square);
    const double slope = (loss_at(step) - loss_at(-step)) / (2 * step);
    loss_at(0);
    EXPECT_NEAR(slope / square, 1.0, 0.05) << entries[i].spec.name << " gradient norm " << std::sqrt(square);
    ++checked;
  }
  EXPECT_GE(checked, static_cast<int>(entries.size()) / 4);  // most biases of a deep network are too flat
}

TEST(Gradient, ResnetFollowsFiniteDifferences) { check_gradients(test::small_resnet()); }

TEST(Gradient, BottlenecksAndThePooledStemFollowFiniteDifferences) {
  train::ReplicaOptions options = test::small_resnet(50, 4);
  options.model.stem = ResnetStem::imagenet;
  options.model.norm = ResnetNorm::group;
  options.image = {64, 64, 3};
  // At full strength 16 residual branches in a row make the loss too rough for differences in float32; 50 layers round ten times as much as 8.
  check_gradients(options, 0.1f, 0.05);
}

TEST(Gradient, GroupNormAndSmoothingFollowFiniteDifferences) {
  train::ReplicaOptions options = test::small_resnet();
  options.model.norm = ResnetNorm::group;
  options.loss.label_smoothing = 0.1;
  check_gradients(options);
}

TEST(Gradient, MlpFollowsFiniteDifferences) {
  train::ReplicaOptions options = test::small_resnet();
  options.model.kind = ModelKind::mlp;
  options.model.widths = {32, 16};
  check_gradients(options);
}

TEST(Gradient, AccumulationGivesTheGradientOfTheWholeBatch) {
  // Without batch norm (whose statistics are a micro-batch's own) two micro-batches of 5 are one of 10.
  train::ReplicaOptions whole = test::small_resnet();
  whole.model.norm = ResnetNorm::group;
  train::ReplicaOptions halves = whole;
  halves.micro = 5;
  halves.accumulation = 2;
  for (const bool deterministic : {false, true}) {
    halves.deterministic = deterministic;
    test::ReplicaFixture one(whole), two(halves);
    one.batch(0);
    const std::vector<std::uint8_t> images = one.images;
    const std::vector<std::int32_t> labels = one.labels;
    one.gradients();
    two.replica.reducer().begin_step();
    for (std::int64_t j = 0; j < 2; ++j) {
      data::MicroBatch batch = two.batch(0);
      const std::int64_t pixels = 5 * halves.image.elements();
      std::copy_n(images.begin() + j * pixels, pixels, two.images.begin());
      std::copy_n(labels.begin() + j * 5, 5, two.labels.begin());
      two.replica.forward(j, batch);
      two.replica.backward();
    }
    two.replica.reducer().finish(two.replica.context());
    const Tensor a = one.replica.store().flat_gradient(), b = two.replica.store().flat_gradient();
    ASSERT_EQ(a.elements(), b.elements());
    double difference = 0, norm = 0;
    for (std::int64_t i = 0; i < a.elements(); ++i) {
      difference += std::pow(a.as<float>()[i] - b.as<float>()[i], 2);
      norm += std::pow(a.as<float>()[i], 2);
    }
    EXPECT_GT(norm, 0);
    EXPECT_LT(std::sqrt(difference / norm), 1e-5) << "deterministic " << deterministic;
  }
}

}  // namespace
}  // namespace trireme::model
