// SPDX-License-Identifier: Apache-2.0
//
// Step decision: sums of lists, gradient norm and clipping, learning rates, losses and gradients
// that are not finite, the dynamic loss scale, and the trust ratios of LARS and LAMB.
// Expected values are computed in double on the host. The host must match exactly; a device may
// differ by a few units in the last place.

#include "trireme/ops/update/step_decision.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "norm_reference.hpp"
#include "trireme/ops/update/update.hpp"

namespace trireme::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity(),
                 not_a_number = std::numeric_limits<double>::quiet_NaN();

template <class T>
T* device_copy(OpsFixture& f, const std::vector<T>& start) {
  return const_cast<T*>(f.placed(start));
}

template <class T>
std::vector<T> read(OpsFixture& f, const T* from, std::size_t count) {
  std::vector<T> values(count);
  copy_bytes(f.context.stream(), values.data(), from, count * sizeof(T));
  return values;
}

/// Lists of several lengths (empty, and longer than a device team) of numbers whose sum depends on
/// the order of the additions.
TEST(SumLists, AddInOneOrderWhereverItsNumbersStand) {
  const std::vector<std::int64_t> lengths{0, 1, 2, 31, 257, 4099, 0, 3};
  std::vector<std::int64_t> begins{0};
  for (const std::int64_t length : lengths) begins.push_back(begins.back() + length);
  const auto terms = static_cast<std::size_t>(begins.back());
  std::vector<double> numbers(terms);
  for (std::size_t i = 0; i < terms; ++i) numbers[i] = std::exp(6 * normal_at(3, i));

  std::vector<std::vector<double>> found;
  for (const std::size_t stride : {std::size_t{1}, std::size_t{3}, terms - 1}) {
    ASSERT_EQ(std::gcd(stride, terms), 1u);
    OpsFixture f;
    std::vector<std::int64_t> places(terms);
    std::vector<double> values(terms);
    for (std::size_t i = 0; i < terms; ++i) {
      places[i] = static_cast<std::int64_t>(i * stride % terms);
      values[static_cast<std::size_t>(places[i])] = numbers[i];
    }
    double* const sums = device_copy(f, std::vector<double>(lengths.size(), -1));
    const ops::ListSums lists{f.placed(values), f.placed(places),
                              f.placed(begins), static_cast<std::int64_t>(lengths.size()),
                              begins.back(),    sums};
    ops::sum_lists(f.context, lists);
    found.push_back(read(f, sums, lengths.size()));
    on_one_thread([&] { ops::sum_lists(f.context, lists); });
    EXPECT_EQ(read(f, sums, lengths.size()), found.back());
  }
  for (std::size_t list = 0; list < lengths.size(); ++list) {
    const double expected =
        std::accumulate(numbers.begin() + begins[list], numbers.begin() + begins[list + 1], 0.0);
    if (adds_in_order()) {
      EXPECT_EQ(found[0][list], expected);
    } else {
      EXPECT_NEAR(found[0][list], expected, expected * static_cast<double>(lengths[list]) * 0x1p-53)
          << "all terms are positive";
    }
    for (const std::vector<double>& other : found) EXPECT_EQ(other[list], found[0][list]);
  }
}

/// Four tensors in two parts. The second of this rank's three tensors is a running statistic.
struct DecisionFixture {
  static constexpr std::int64_t tensors = 4, parts = 2;
  OpsFixture fixture;
  // The last entry of each part belongs to the running statistics.
  std::vector<double> squares = {1.5, 0.25, 3, 1e-3, 77, 0.5, 2, 0, 1e-9, 5};
  std::vector<ops::TensorRates> rates = {
      {7, 0.01f, 0.3f, 0},
      {0.1f, 0, 1, kernels::statistic_rule},
      {.rate = 7, .rule = 1, .rate_ratio = 0.3f, .updates_before = 3}};
  ops::StepDecision judgement{.update_count = 4};
  double scale = 1;
  ops::LossScaling scaling;
  ops::DecideStepArgs args;
  const ops::SampleSums* loss = nullptr;
  double loss_limit = infinity, labels = 0;
  std::vector<ops::TensorRates> rates_then;

  explicit DecisionFixture(DeviceKind kind = tested_device()) : fixture(kind) {}

  ops::StepDecision run(bool loss_finite = true, double clip_norm = 0) {
    args = {.gradient = {fixture.placed(squares), parts, tensors},
            .loss_scale = scale,
            .loss_scaling = scaling,
            .loss_finite = loss_finite,
            .loss = loss,
            .loss_limit = loss_limit,
            .labels = labels,
            .learning_rate = 0.05f,
            .clip_norm = clip_norm,
            .rules = {{0.8f, 0.9, 0.999}, {0.7f, 0.8, 0.99}},
            .rates = device_copy(fixture, rates),
            .tensors = 3,
            .decision = device_copy(fixture, std::vector<ops::StepDecision>{judgement})};
    ops::decide_step(fixture.context, args);
    if (fixture.context.meta()) return judgement;
    rates_then = read(fixture, args.rates, rates.size());
    return read(fixture, args.decision, 1)[0];
  }
  double norm() const {
    double sum = 0;
    for (std::int64_t i = 0; i < tensors; ++i)
      sum +=
          squares[static_cast<std::size_t>(i)] + squares[static_cast<std::size_t>(i + tensors + 1)];
    return std::sqrt(sum);
  }
};

/// A device's libraries and fused operations may differ by a few units in the last place; the host
/// must be exact.
void expect_equal(double found, double expected) {
  if (adds_in_order()) {
    EXPECT_EQ(found, expected);
  } else {
    EXPECT_NEAR(found, expected, 8 * 0x1p-53 * std::abs(expected));
  }
}

TEST(DecideStep, TakesTheNormOfAllWeightsAndClipsByIt) {
  for (const double clip_norm : {0.0, 0.5, 1e3}) {
    DecisionFixture p;
    const ops::StepDecision found = p.run(true, clip_norm);
    const double clip = clip_norm > 0 ? std::min(1.0, clip_norm / (p.norm() + 1e-6)) : 1;
    EXPECT_EQ(found.apply, 1);
    expect_equal(found.gradient_norm, p.norm());
    expect_equal(found.gradient_factor_double, clip);
    EXPECT_EQ(found.gradient_factor, static_cast<float>(found.gradient_factor_double));
    EXPECT_EQ(found.gradient_factor_double < 1, clip_norm == 0.5);
    EXPECT_EQ(found.update_count, 5);
    // Tensor 2 has another rule, and its moments began after 3 updates.
    EXPECT_FLOAT_EQ(p.rates_then[0].bias_correction1, static_cast<float>(1 - std::pow(0.9, 5)));
    EXPECT_FLOAT_EQ(p.rates_then[0].bias_correction2, static_cast<float>(1 - std::pow(0.999, 5)));
    EXPECT_FLOAT_EQ(p.rates_then[2].bias_correction1, static_cast<float>(1 - std::pow(0.8, 2)));
    EXPECT_FLOAT_EQ(p.rates_then[2].bias_correction2, static_cast<float>(1 - std::pow(0.99, 2)));
  }
}

TEST(DecideStep, GivesTheLearningRateToTrainedWeights) {
  DecisionFixture p;
  p.run();
  for (std::size_t i = 0; i < p.rates.size(); ++i) {
    const bool statistic = p.rates[i].rule == kernels::statistic_rule;
    EXPECT_EQ(p.rates_then[i].rate, statistic ? p.rates[i].rate : p.rates[i].rate_ratio * 0.05f);
    EXPECT_EQ(p.rates_then[i].rate_ratio, p.rates[i].rate_ratio);
    EXPECT_EQ(p.rates_then[i].momentum, statistic              ? p.rates[i].momentum
                                        : p.rates[i].rule == 1 ? 0.7f
                                                               : 0.8f);
    EXPECT_EQ(p.rates_then[i].weight_decay, p.rates[i].weight_decay);
    EXPECT_EQ(p.rates_then[i].trust_ratio, p.rates[i].trust_ratio);
    EXPECT_EQ(p.rates_then[i].rule, p.rates[i].rule);
  }
}

TEST(DecideStep, DropsNonFiniteSteps) {
  DecisionFixture finite;
  EXPECT_EQ(finite.run(false).apply, 0) << "the loss is not finite";
  for (std::size_t place = 0; place < finite.squares.size(); ++place) {
    for (const double bad : {infinity, -infinity, not_a_number}) {
      DecisionFixture p;
      p.squares[place] = bad;
      const ops::StepDecision found = p.run();
      EXPECT_EQ(found.apply, 0) << "place " << place;
      EXPECT_EQ(found.update_count, 4) << "a skipped step is not counted";
      EXPECT_EQ(found.nonfinite_tensor, static_cast<int>(place % 5)) << "place " << place;
    }
  }
  // Of several the last tensor; running statistics (4) only without a tensor.
  DecisionFixture two;
  two.squares[8] = two.squares[2] = two.squares[4] = not_a_number;
  EXPECT_EQ(two.run().nonfinite_tensor, 3);
  EXPECT_EQ(finite.run(false).nonfinite_tensor, -1);
  EXPECT_EQ(finite.run().nonfinite_tensor, -1);
}

TEST(DecideStep, DividesTheGradientByTheLabelsThatCount) {
  for (const double clip_norm : {0.0, 0.5}) {
    DecisionFixture p, all;
    const std::vector<ops::SampleSums> sums{{.loss = 12, .count = 4}};
    p.loss = p.fixture.placed(sums);
    p.labels = 16;
    p.scale = 8;
    all.scale = 2;  // 8 * 4 / 16
    const ops::StepDecision found = p.run(true, clip_norm), expected = all.run(true, clip_norm);
    EXPECT_EQ(found.apply, 1);
    EXPECT_EQ(found.gradient_norm, expected.gradient_norm);
    EXPECT_EQ(found.gradient_factor_double, expected.gradient_factor_double);
  }
  DecisionFixture none;
  const std::vector<ops::SampleSums> sums{{.loss = 0, .count = 0}};
  none.loss = none.fixture.placed(sums);
  none.labels = 16;
  EXPECT_EQ(none.run().apply, 0) << "no label counts, so there is no gradient";
}

TEST(DecideStep, LooksAtTheLossWhereItLies) {
  const auto applied = [](double loss, double count, double limit, bool host = true) {
    DecisionFixture p;
    const std::vector<ops::SampleSums> sums{{.loss = loss, .count = count}};
    p.loss = p.fixture.placed(sums);
    p.loss_limit = limit;
    return p.run(host).apply == 1;
  };
  EXPECT_TRUE(applied(12, 4, infinity));
  EXPECT_TRUE(applied(12, 4, 3)) << "a loss at the limit permits the step";
  EXPECT_FALSE(applied(12, 4, 2.9));
  EXPECT_FALSE(applied(12, 4, infinity, false)) << "the host has seen a loss that is not finite";
  EXPECT_FALSE(applied(not_a_number, 4, infinity));
  EXPECT_FALSE(applied(infinity, 4, infinity));
  EXPECT_FALSE(applied(-infinity, 4, infinity));
}

/// With a loss scale that grows after three applied steps.
struct LossScaleFixture : DecisionFixture {
  LossScaleFixture(double seeded, double now, std::int64_t good_steps) {
    scale = seeded;
    scaling = {
        .growth = 4, .backoff = 0.5, .min_scale = 1, .max_scale = 4096, .growth_interval = 3};
    judgement.loss_scale = now;
    judgement.good_steps = good_steps;
  }
};

TEST(LossScale, IsDividedOutBeforeNormAndClipping) {
  for (const double clip_norm : {0.0, 0.5}) {
    DecisionFixture plain;
    LossScaleFixture scaled(1024, 1024, 0);
    for (double& square : scaled.squares) square *= 1024 * 1024;
    const ops::StepDecision expected = plain.run(true, clip_norm),
                            found = scaled.run(true, clip_norm);
    EXPECT_EQ(found.apply, 1);
    EXPECT_EQ(found.gradient_norm, expected.gradient_norm);
    EXPECT_EQ(found.gradient_factor_double, expected.gradient_factor_double / 1024);
    EXPECT_EQ(found.gradient_factor, expected.gradient_factor / 1024);
  }
}

TEST(LossScale, GrowsAfterSoManyGoodSteps) {
  const auto after = [](double now, std::int64_t good_steps) {
    return LossScaleFixture(now, now, good_steps).run();
  };
  for (const std::int64_t good : {0, 1}) {
    const ops::StepDecision found = after(512, good);
    EXPECT_EQ(found.loss_scale, 512);
    EXPECT_EQ(found.good_steps, good + 1);
  }
  EXPECT_EQ(after(512, 2).loss_scale, 2048);
  EXPECT_EQ(after(512, 2).good_steps, 0);
  EXPECT_EQ(after(2048, 2).loss_scale, 4096) << "the scale stops at its maximum";
  EXPECT_EQ(after(4096, 2).loss_scale, 4096);
}

TEST(LossScale, FallsWhereAGradientIsNotFinite) {
  for (const double bad : {infinity, not_a_number}) {
    LossScaleFixture p(512, 512, 2);
    p.squares[1] = bad;
    const ops::StepDecision found = p.run();
    EXPECT_EQ(found.apply, 0);
    EXPECT_EQ(found.update_count, 4);
    EXPECT_EQ(found.overflow, 1);
    EXPECT_EQ(found.loss_scale, 256);
    EXPECT_EQ(found.good_steps, 0);
  }
}

TEST(LossScale, FallsOnceForGradientsOfOneScale) {
  // The gradient was computed before the scale fell.
  LossScaleFixture late(512, 256, 0);
  late.squares[0] = infinity;
  const ops::StepDecision found = late.run();
  EXPECT_EQ(found.overflow, 1);
  EXPECT_EQ(found.loss_scale, 256);
}

TEST(LossScale, AtItsFloorTheStepIsABadOne) {
  LossScaleFixture p(1, 1, 2);
  p.squares[0] = infinity;
  const ops::StepDecision found = p.run();
  EXPECT_EQ(found.apply, 0);
  EXPECT_EQ(found.overflow, 0);
  EXPECT_EQ(found.loss_scale, 1);
}

TEST(LossScale, IsNotToBlameForALossOrAVarianceThatIsNotFinite) {
  for (const bool loss : {true, false}) {
    LossScaleFixture p(512, 512, 2);
    if (!loss) p.squares[DecisionFixture::tensors] = infinity;
    const ops::StepDecision found = p.run(!loss);
    EXPECT_EQ(found.apply, 0);
    EXPECT_EQ(found.overflow, 0);
    EXPECT_EQ(found.loss_scale, 512);
    EXPECT_EQ(found.good_steps, 2);
  }
}

TEST(LossScale, StandsWhereItDoesNotMove) {
  for (const double square : {1.0, infinity}) {
    DecisionFixture p;
    p.squares[0] = square;
    const ops::StepDecision found = p.run();
    EXPECT_EQ(found.loss_scale, 1);
    EXPECT_EQ(found.overflow, 0);
    EXPECT_EQ(found.good_steps, 0);
  }
}

/// Trust ratios of a rank's tensors 2 and 0, which are 0 and 3 of the model.
struct TrustRatioFixture {
  OpsFixture fixture;
  std::vector<double> weights = {4, 9, 0.5, 2, 0.1, 0.25, 1, 1, 7, 0.3},
                      gradients = {1e-4, 1, 1, 3, 0, 2e-4, 1, 1, 0.125, 0};
  std::vector<ops::TensorRates> rates = {{1, 0.02f, 5, 0}, {1, 0.5f, 5, 0}, {1, 0.25f, 5, 0}};
  std::vector<ops::TrustRatioTensor> tensors = {{2, 0}, {0, 3}};
  ops::StepDecision judgement{.gradient_factor_double = 0.3};

  ops::TrustRatioArgs args() {
    return {.weight = {fixture.placed(weights), 2, 4},
            .gradient = {fixture.placed(gradients), 2, 4},
            .tensors = fixture.placed(tensors),
            .count = 2,
            .rates = device_copy(fixture, rates),
            .decision = fixture.placed(&judgement, 1),
            .ratios = device_copy(fixture, std::vector<double>(5))};
  }
  static double norm(const std::vector<double>& squares, std::size_t place) {
    return std::sqrt(squares[place] + squares[place + 5]);
  }
  /// Expects `expected` (weight norm, gradient norm, decay) for both, and no change of the third.
  template <class Ratio>
  void expect(const ops::TrustRatioArgs& args, const Ratio& expected) {
    const std::vector<ops::TensorRates> found = read(fixture, args.rates, rates.size());
    for (const ops::TrustRatioTensor& place : tensors) {
      const auto tensor = static_cast<std::size_t>(place.tensor),
                 sum = static_cast<std::size_t>(place.sum_index);
      const auto ratio = static_cast<float>(
          expected(norm(weights, sum), norm(gradients, sum), rates[tensor].weight_decay));
      EXPECT_FLOAT_EQ(found[tensor].trust_ratio, ratio);
      EXPECT_EQ(read(fixture, args.ratios, 5)[sum], found[tensor].trust_ratio);
      EXPECT_EQ(found[tensor].rate, 1);
      EXPECT_EQ(found[tensor].weight_decay, rates[tensor].weight_decay);
    }
    EXPECT_EQ(found[1].trust_ratio, 5);
  }
};

TEST(TrustRatio, OfLarsIsTheLocalRateOfTheClippedGradient) {
  TrustRatioFixture p;
  const ops::TrustRatioArgs args = p.args();
  ops::lars_trust(p.fixture.context, 0.02, args);
  p.expect(args, [](double w, double g, double decay) { return 0.02 * w / (0.3 * g + decay * w); });
}

TEST(TrustRatio, OfLambIsAtMostTen) {
  TrustRatioFixture p;
  const ops::TrustRatioArgs args = p.args();
  ops::lamb_trust(p.fixture.context, args);
  p.expect(args, [](double w, double g, double) { return std::min(10.0, w / g); });
  EXPECT_GT(TrustRatioFixture::norm(p.weights, 0) / TrustRatioFixture::norm(p.gradients, 0), 10);
  EXPECT_LT(TrustRatioFixture::norm(p.weights, 3) / TrustRatioFixture::norm(p.gradients, 3), 10);
}

TEST(TrustRatio, IsOneWhereANormIsZero) {
  for (const bool of_weights : {true, false}) {
    TrustRatioFixture p;
    std::vector<double>& squares = of_weights ? p.weights : p.gradients;
    squares = std::vector<double>(10, 0);
    const auto one = [](double, double, double) { return 1.0; };
    const ops::TrustRatioArgs lars = p.args(), lamb = p.args();
    ops::lars_trust(p.fixture.context, 0.02, lars);
    p.expect(lars, one);
    ops::lamb_trust(p.fixture.context, lamb);
    p.expect(lamb, one);
  }
}

TEST(DecideStep, MetaCountsAsTheCpu) {
  OpsFixture real, meta(DeviceKind::meta);
  for (OpsFixture* f : {&real, &meta}) {
    const std::vector<double> values{1, 2, 3, 4, 5, 6};
    const std::vector<std::int64_t> begins{0, 2, 4, 6}, places{5, 4, 3, 2, 1, 0};
    const std::vector<ops::TrustRatioTensor> trusted{{0, 1}};
    ops::sum_lists(f->context, {f->placed(values), f->placed(places), f->placed(begins), 3, 6,
                                device_copy(*f, values)});
    const ops::PartialSquareSums squares{f->placed(values), 2, 2};
    ops::TensorRates* const rates = device_copy(*f, std::vector<ops::TensorRates>(1));
    ops::StepDecision* const judgement = device_copy(*f, std::vector<ops::StepDecision>(1));
    ops::decide_step(f->context,
                     ops::DecideStepArgs{
                         .gradient = squares, .rates = rates, .tensors = 1, .decision = judgement});
    const ops::TrustRatioArgs trust{squares, squares, f->placed(trusted), 1, rates, judgement};
    ops::lars_trust(f->context, 0.1, trust);
    ops::lamb_trust(f->context, trust);
  }
  EXPECT_EQ(real.context.counters().bytes, meta.context.counters().bytes);
  EXPECT_EQ(meta.context.counters().calls, 4);
  EXPECT_EQ(real.workspace.peak_bytes(), 0);
}

}  // namespace
}  // namespace trireme::test
