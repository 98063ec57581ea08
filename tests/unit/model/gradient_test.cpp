#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "support/replica.hpp"

namespace trireme::model {
namespace {

/// Along each tensor's own gradient g the loss changes by |g|^2 a unit: the central difference over a small step must say the same.
/// The step moves the loss by about 2 % of itself, far above float32's rounding of it (1e-6), while third-order terms and ReLU kinks stay
/// within the 5 % allowed.
void check_gradients(const train::ReplicaOptions& options) {
  test::ReplicaFixture fixture(options);
  parallel::ParameterStore& store = fixture.replica.store();
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
    if (square < 1e-7) continue;  // too flat for float32 differences
    const auto loss_at = [&](double scale) {
      for (std::int64_t e = slot.offset; e < slot.offset + slot.elements; ++e) {
        weights[e] = static_cast<float>(start[static_cast<std::size_t>(e)] + scale * gradient[static_cast<std::size_t>(e)]);
      }
      store.refresh_compute();
      return fixture.gradients() / samples;
    };
    const double step = 0.01 / square;
    const double capped = std::min(step, 0.02 / std::sqrt(square));
    const double slope = (loss_at(capped) - loss_at(-capped)) / (2 * capped);
    loss_at(0);
    EXPECT_NEAR(slope / square, 1.0, 0.05) << entries[i].spec.name << " gradient norm " << std::sqrt(square);
    ++checked;
  }
  EXPECT_GE(checked, static_cast<int>(entries.size()) / 3);
}

TEST(Gradient, ResnetFollowsFiniteDifferences) { check_gradients(test::small_resnet()); }

TEST(Gradient, BottlenecksAndThePooledStemFollowFiniteDifferences) {
  train::ReplicaOptions options = test::small_resnet(50, 4);
  options.model.stem = ResnetStem::imagenet;
  options.model.norm = ResnetNorm::group;  // 50 layers of batch norm over 10 tiny images would be too rough for float32 differences
  options.image = {32, 32, 3};
  check_gradients(options);
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
