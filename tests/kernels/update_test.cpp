// SPDX-License-Identifier: Apache-2.0
//
// Optimizer updates against double-precision rules: SGD, LARS, AdamW (PyTorch's order), LAMB in two
// passes, the weight average, skipped steps, working copies, and square sums of rows.
// Results must not depend on chunks and threads. Tolerances: about a dozen float32 operations per
// element.

#include "trireme/ops/update.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/norm_reference.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::test {
namespace {

/// One element's update in double: weight, gradient (times its factor), slots.
using Rule = std::function<double(double w, double g, double& first, double& second,
                                  const ops::TensorRates&, const ops::StepDecision&)>;

/// Three tensors in one flat buffer, in chunks of several sizes: with weight decay, without, and a
/// running statistic.
/// Working weights: the first tensor in bfloat16, the second in float16, the third in float32, with
/// gaps between them.
struct UpdateFixture {
  static constexpr std::int64_t elements = 2 * 5003 + 37;
  static constexpr std::int64_t begins[] = {0, 5003, 10006, elements},
                                working[] = {0, 10048, 20096}, working_bytes = 20288;
  static constexpr DType types[] = {DType::bfloat16, DType::float16, DType::float32};
  static ops::FlatChunk chunk(std::int64_t begin, std::int64_t count) {
    const std::int32_t tensor = begin < begins[1] ? 0 : begin < begins[2] ? 1 : 2;
    return {begin, static_cast<std::int32_t>(count), tensor, ops::element_type(types[tensor]),
            working[tensor] + (begin - begins[tensor]) * size_of(types[tensor])};
  }
  OpsFixture fixture;
  ops::FlatState state;
  std::vector<ops::FlatChunk> chunks = {chunk(0, 1), chunk(1, 4096), chunk(4097, 906),
                                        chunk(5003, 5003), chunk(10006, 37)};
  std::vector<ops::TensorRates> rates = {
      {0.1f, 0.01f, 0.3f, 0, 0.9f, 1, 0.271f, 0.0297f},
      {0.05f, 0, 1, 0, 0.8f, 1, 0.9f, 0.6f},  // moments that began later
      {0.1f, 0, 1, 1}};
  ops::StepDecision judgement{1, 0.5f};

  explicit UpdateFixture(DeviceKind kind = tested_device()) : fixture(kind) {
    state.weight = fixture.random(DType::float32, {elements}, "weight");
    state.gradient = fixture.random(DType::float32, {elements}, "gradient");
    state.slot1 = fixture.random(DType::float32, {elements}, "slot1");
    state.slot2 = fixture.random(DType::float32, {elements}, "slot2");
    if (kind != DeviceKind::meta) assign(state.slot2, magnitudes(values(state.slot2)));
    state.working = fixture.filled(DType::uint8, {working_bytes}, 0);
    for (const ops::FlatChunk& chunk : chunks)
      state.working_bytes +=
          chunk.elements * static_cast<std::int64_t>(size_of(chunk.working_type));
  }
  /// Returns the expected working weights.
  Tensor rounded() {
    const Tensor bytes = fixture.filled(DType::uint8, {working_bytes}, 0);
    for (int tensor = 0; tensor < 3; ++tensor) {
      const Tensor part{bytes.as<std::uint8_t>() + working[tensor],
                        types[tensor],
                        bytes.device,
                        {begins[tensor + 1] - begins[tensor]}};
      assign(part, values(state.weight.rows(begins[tensor], begins[tensor + 1])));
    }
    return bytes;
  }
  template <class Options>
  void run(void (*update)(ops::Context&, const Options&, const ops::FlatState&,
                          const ops::FlatChunk*, std::int64_t, const ops::TensorRates*,
                          const ops::StepDecision*),
           const Options& options) {
    update(fixture.context, options, state, placed_chunks(), chunk_count(), placed_rates(),
           placed_judgement());
  }
  // The chunk list in memory that kernels can read.
  std::int64_t chunk_count() const { return static_cast<std::int64_t>(chunks.size()); }
  const ops::FlatChunk* placed_chunks() { return fixture.placed(chunks); }
  const ops::TensorRates* placed_rates() { return fixture.placed(rates); }
  const ops::StepDecision* placed_judgement() { return fixture.placed(&judgement, 1); }
};

/// LARS has no rule of its own: rates hold all that it needs.
struct NoRule {};
void update_lars(ops::Context& context, const NoRule&, const ops::FlatState& state,
                 const ops::FlatChunk* chunks, std::int64_t chunk_count,
                 const ops::TensorRates* rates, const ops::StepDecision* decision) {
  ops::update_lars(context, state, chunks, chunk_count, rates, decision);
}

/// Returns an element of the gradient clipped to the limit.
double clipped(double g, float limit) {
  return std::clamp<double>(g, -static_cast<double>(limit), static_cast<double>(limit));
}

/// A limit that clips about half of the gradient.
constexpr float some_limit = 0.5f;

template <class Options, class Update>
void compare_clipped(Update update, const Options& options, const Rule& rule, float limit) {
  UpdateFixture p;
  p.state.gradient_limit = limit;
  Values w = values(p.state.weight), first = values(p.state.slot1), second = values(p.state.slot2);
  const Values g = values(p.state.gradient);
  double scale = 1;
  for (const ops::FlatChunk& chunk : p.chunks) {
    const ops::TensorRates& rates = p.rates[static_cast<std::size_t>(chunk.tensor)];
    for (std::int64_t i = chunk.offset; i < chunk.offset + chunk.elements; ++i) {
      w[i] =
          rates.is_statistic != 0
              ? (1 - static_cast<double>(rates.rate)) * w[i] +
                    static_cast<double>(rates.rate) * g[i]
              : rule(w[i], static_cast<double>(p.judgement.gradient_factor) * clipped(g[i], limit),
                     first[i], second[i], rates, p.judgement);
      scale = std::max({scale, std::abs(w[i]), std::abs(first[i])});
    }
  }
  p.run(update, options);
  // A dozen float32 operations on numbers up to `scale`.
  const double tolerance = 12 * 0x1p-24 * scale;
  expect_close(p.state.weight, w, tolerance, 0, "weight");
  expect_close(p.state.slot1, first, tolerance, 0, "slot 1");
  expect_close(p.state.slot2, second, tolerance, 0, "slot 2");
  expect_same_bytes(p.rounded(), p.state.working, "working weights");
}

/// Compares an update with its rule, without and with clipped elements of the gradient.
template <class Options, class Update>
void compare(Update update, const Options& options, const Rule& rule) {
  compare_clipped(update, options, rule, ops::unlimited);
  compare_clipped(update, options, rule, some_limit);
}

TEST(Update, SgdFollowsTheContract) {
  for (const bool nesterov : {false, true}) {
    compare(ops::update_sgd, ops::SgdRule{nesterov},
            [&](double w, double g, double& v, double&, const ops::TensorRates& r,
                const ops::StepDecision&) {
              const double decayed = g + r.weight_decay * w;
              v = r.momentum * v + decayed;
              return w - r.rate * (nesterov ? g + r.weight_decay * w + r.momentum * v : v);
            });
  }
}

TEST(Update, SgdWithoutMomentumNeedsNoSlot) {
  UpdateFixture with, without;
  ops::fill(with.fixture.context, with.state.slot1, 0);
  without.state.slot1 = {};
  for (UpdateFixture* p : {&with, &without}) {
    for (ops::TensorRates& rates : p->rates) rates.momentum = 0;
  }
  with.run(ops::update_sgd, ops::SgdRule{});
  without.run(ops::update_sgd, ops::SgdRule{});
  expect_same_bytes(with.state.weight, without.state.weight);
}

TEST(Update, LarsFollowsTheContract) {
  compare(update_lars, NoRule{},
          [&](double w, double g, double& v, double&, const ops::TensorRates& r,
              const ops::StepDecision&) {
            v = r.momentum * v +
                static_cast<double>(r.rate) * r.trust_ratio * (g + r.weight_decay * w);
            return w - v;
          });
}

TEST(Update, AdamWFollowsPyTorch) {
  const ops::AdamWRule rule;
  compare(ops::update_adamw, rule,
          [&](double w, double g, double& m, double& v, const ops::TensorRates& r,
              const ops::StepDecision&) {
            w -= static_cast<double>(r.rate) * r.weight_decay * w;
            m += (1 - static_cast<double>(rule.beta1)) * (g - m);
            v = rule.beta2 * v + (1 - static_cast<double>(rule.beta2)) * g * g;
            return w - r.rate / static_cast<double>(r.bias_correction1) * m /
                           (std::sqrt(v) / std::sqrt(static_cast<double>(r.bias_correction2)) +
                            rule.epsilon);
          });
}

/// Compares the direction with its rule. `limit`: for elements of the gradient.
void compare_direction(float limit) {
  const ops::LambRule rule;
  UpdateFixture p;
  p.state.gradient_limit = limit;
  const Values w = values(p.state.weight), g = values(p.state.gradient);
  Values direction = g, first = values(p.state.slot1), second = values(p.state.slot2);
  for (const ops::FlatChunk& chunk : p.chunks) {
    const ops::TensorRates& rates = p.rates[static_cast<std::size_t>(chunk.tensor)];
    for (std::int64_t i = chunk.offset;
         rates.is_statistic == 0 && i < chunk.offset + chunk.elements; ++i) {
      const double scaled = static_cast<double>(p.judgement.gradient_factor) * clipped(g[i], limit);
      first[i] = rule.beta1 * first[i] + (1 - static_cast<double>(rule.beta1)) * scaled;
      second[i] = rule.beta2 * second[i] + (1 - static_cast<double>(rule.beta2)) * scaled * scaled;
      direction[i] = first[i] / rates.bias_correction1 /
                         (std::sqrt(second[i] / rates.bias_correction2) + rule.epsilon) +
                     rates.weight_decay * w[i];
    }
  }
  p.run(ops::lamb_direction, rule);
  // A dozen float32 operations on each. If the first moment is small, it keeps the error of its
  // terms, which are below 5.
  expect_close(p.state.slot1, first, 12 * 0x1p-24, 12 * 0x1p-24, "slot 1");
  expect_close(p.state.slot2, second, 12 * 0x1p-24, 12 * 0x1p-24, "slot 2");
  // 1 / (c1 sqrt(v^)): the factor on an error of the first moment, at most.
  double largest = 0;
  for (std::size_t i = 0; i < second.size(); ++i)
    largest = std::max(largest,
                       1 / (p.rates[0].bias_correction1 *
                            (std::sqrt(second[i] / p.rates[1].bias_correction2) + rule.epsilon)));
  expect_close(p.state.gradient, direction, 12 * 0x1p-24 * largest, 12 * 0x1p-24,
               "direction, and the statistics' gradients as they were");
  const UpdateFixture untouched;
  expect_same_bytes(p.state.weight, untouched.state.weight, "weight");
  expect_same_bytes(p.state.working, untouched.state.working, "working weights");
}

TEST(Update, LambsDirectionIsAdamsStepWithDecay) {
  compare_direction(ops::unlimited);
  compare_direction(some_limit);
}

TEST(Update, ALimitThatNoElementExceedsChangesNoBit) {
  UpdateFixture plain, limited;
  limited.state.gradient_limit = 1e6f;
  for (UpdateFixture* p : {&plain, &limited}) {
    p->run(ops::update_adamw, ops::AdamWRule{});
    p->run(ops::lamb_direction, ops::LambRule{});
  }
  expect_same_bytes(limited.state.gradient, plain.state.gradient, "gradient");
  expect_same_bytes(limited.state.weight, plain.state.weight, "weight");
  expect_same_bytes(limited.state.slot2, plain.state.slot2, "slot 2");
}

TEST(Update, LambStepsAlongTheDirection) {
  UpdateFixture p;
  p.state.gradient_limit = 1e-3f;  // of no effect: the buffer holds the direction
  Values w = values(p.state.weight);
  const Values g = values(p.state.gradient);
  double scale = 1;
  for (const ops::FlatChunk& chunk : p.chunks) {
    const ops::TensorRates& rates = p.rates[static_cast<std::size_t>(chunk.tensor)];
    for (std::int64_t i = chunk.offset; i < chunk.offset + chunk.elements; ++i) {
      const double rate = rates.rate;
      w[i] = rates.is_statistic != 0 ? (1 - rate) * w[i] + rate * g[i]
                                     : w[i] - rate * rates.trust_ratio * g[i];
      scale = std::max(scale, std::abs(w[i]));
    }
  }
  ops::update_lamb(p.fixture.context, p.state, p.placed_chunks(), p.chunk_count(), p.placed_rates(),
                   p.placed_judgement());
  expect_close(
      p.state.weight, w, 4 * 0x1p-24 * scale, 0,
      "weight: four float32 operations; the gradient's factor was in the direction before");
  expect_same_bytes(p.rounded(), p.state.working, "working weights");
}

/// Weights and running statistics, in chunks of 1, 4096, 906, 5003 and 37 elements.
TEST(Update, TheAverageFollowsTheWeights) {
  for (const double decay : {0.5, 0.999, 0.99999999}) {
    UpdateFixture p;
    const UpdateFixture untouched;
    const Tensor& average = p.state.slot1;
    const Values before = values(average), w = values(p.state.weight);
    Values expected = before;
    double largest = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      expected[i] += (1 - decay) * (w[i] - expected[i]);
      largest = std::max(largest, std::abs(w[i] - before[i]));
    }
    ops::update_ema(p.fixture.context, decay, p.state.weight, average, p.placed_chunks(),
                    p.chunk_count(), p.placed_judgement());
    // 1 - decay, the difference and their product are rounded, then the sum.
    expect_close(average, expected, 3 * 0x1p-24 * (1 - decay) * largest, 0x1p-24, "average");
    expect_same_bytes(p.state.weight, untouched.state.weight, "weight");
  }
}

TEST(Update, AnAverageEqualToTheWeightsStays) {
  UpdateFixture p;
  ops::copy(p.fixture.context, p.state.weight, p.state.slot1);
  ops::update_ema(p.fixture.context, 0.9, p.state.weight, p.state.slot1, p.placed_chunks(),
                  p.chunk_count(), p.placed_judgement());
  expect_same_bytes(p.state.slot1, p.state.weight);
}

TEST(Update, AStepThatIsNotAppliedChangesNothing) {
  UpdateFixture p, untouched;
  p.judgement.apply = 0;
  p.run(ops::update_sgd, ops::SgdRule{true});
  p.run(update_lars, NoRule{});
  p.run(ops::update_adamw, ops::AdamWRule{});
  p.run(ops::lamb_direction, ops::LambRule{});
  ops::update_lamb(p.fixture.context, p.state, p.placed_chunks(), p.chunk_count(), p.placed_rates(),
                   p.placed_judgement());
  ops::update_ema(p.fixture.context, 0.5, p.state.weight, p.state.slot1, p.placed_chunks(),
                  p.chunk_count(), p.placed_judgement());
  expect_same_bytes(p.state.gradient, untouched.state.gradient, "gradient");
  expect_same_bytes(p.state.weight, untouched.state.weight, "weight");
  expect_same_bytes(p.state.slot1, untouched.state.slot1, "slot 1");
  expect_same_bytes(p.state.slot2, untouched.state.slot2, "slot 2");
  expect_same_bytes(p.state.working, untouched.state.working, "working weights");
}

TEST(Update, BitsDoNotDependOnChunksNorThreads) {
  UpdateFixture p, cut;
  cut.chunks.clear();
  // Chunks of 1 to 13 elements that end at tensor boundaries.
  for (std::int64_t begin = 0; begin < UpdateFixture::elements;) {
    const std::int64_t end = begin < 5003 ? 5003 : begin < 10006 ? 10006 : UpdateFixture::elements;
    const std::int64_t count = std::min<std::int64_t>(1 + begin % 13, end - begin);
    cut.chunks.push_back(UpdateFixture::chunk(begin, count));
    begin += count;
  }
  const auto step = [](UpdateFixture& problem) {
    problem.run(ops::update_adamw, ops::AdamWRule{});
    problem.run(ops::lamb_direction, ops::LambRule{});
    ops::update_ema(problem.fixture.context, 0.9, problem.state.weight, problem.state.slot1,
                    problem.placed_chunks(), problem.chunk_count(), problem.placed_judgement());
  };
  step(p);
  on_one_thread([&] { step(cut); });
  expect_same_bytes(p.state.gradient, cut.state.gradient, "lamb's direction");
  expect_same_bytes(p.state.working, cut.state.working, "working weights");
  expect_same_bytes(p.state.weight, cut.state.weight, "weight");
  expect_same_bytes(p.state.slot1, cut.state.slot1, "slot 1");
  expect_same_bytes(p.state.slot2, cut.state.slot2, "slot 2");
}

TEST(RowSquareSums, EqualReferenceWhereverTheRowLies) {
  OpsFixture f;
  for (const std::int64_t n : {1, 31, 32, 33, 97, 4099}) {
    const Tensor row = f.random(DType::float32, {n}, "row");
    double expected = 0;
    for (const double x : values(row)) expected += x * x;
    std::vector<double> sums;
    for (const std::int64_t offset : {0, 1, 3, 16, 29}) {
      // Values around a row must not enter its sum.
      const Tensor flat = f.filled(DType::float32, {n + 64}, 1e10);
      copy_values(row, flat.rows(offset, offset + n));
      const ops::FlatRow rows[2] = {{offset, n, 0}, {offset, n, 0}};
      const Tensor two = f.make(DType::float64, {2});
      ops::row_square_sums(f.context, flat, f.placed(rows, 2), 2, two.as<double>());
      for (const double sum : values(two)) sums.push_back(sum);
    }
    for (const double sum : sums) EXPECT_EQ(sum, sums.front());
    EXPECT_NEAR(sums.front(), expected, expected * static_cast<double>(n) * 0x1p-53);
  }
}

TEST(RowSquareSums, AreThoseOfClippedElements) {
  OpsFixture f;
  for (const std::int64_t n : {1, 7, 33, 4099}) {
    const Tensor row = f.random(DType::float32, {n}, "row");
    double expected = 0;
    for (const double x : values(row)) expected += std::pow(clipped(x, some_limit), 2);
    const ops::FlatRow rows[1] = {{0, n, 0}};
    const Tensor sum = f.make(DType::float64, {1});
    ops::row_square_sums(f.context, row, f.placed(rows, 1), 1, sum.as<double>(), some_limit);
    EXPECT_NEAR(values(sum)[0], expected, expected * static_cast<double>(n) * 0x1p-53);
  }
}

/// The step is skipped if an element is not finite, so clipping must not hide it.
TEST(RowSquareSums, ClippingKeepsValuesThatAreNotFinite) {
  OpsFixture f;
  for (const double wrong : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    for (const std::int64_t n : {3, 100}) {
      const Tensor row = f.filled(DType::float32, {n}, 1);
      Values numbers(static_cast<std::size_t>(n), 1);
      numbers.back() = wrong;
      assign(row, numbers);
      const ops::FlatRow rows[1] = {{0, n, 0}};
      const Tensor sum = f.make(DType::float64, {1});
      ops::row_square_sums(f.context, row, f.placed(rows, 1), 1, sum.as<double>(), some_limit);
      EXPECT_FALSE(std::isfinite(values(sum)[0])) << wrong;
    }
  }
}

TEST(Update, MetaCountsAsTheCpu) {
  UpdateFixture real, meta(DeviceKind::meta);
  for (UpdateFixture* p : {&real, &meta}) {
    p->run(ops::update_sgd, ops::SgdRule{false});
    p->run(update_lars, NoRule{});
    p->run(ops::update_adamw, ops::AdamWRule{});
    p->run(ops::lamb_direction, ops::LambRule{});
    ops::update_lamb(p->fixture.context, p->state, p->placed_chunks(), p->chunk_count(),
                     p->placed_rates(), p->placed_judgement());
    ops::update_ema(p->fixture.context, 0.9, p->state.weight, p->state.slot1, p->placed_chunks(),
                    p->chunk_count(), p->placed_judgement());
    const ops::FlatRow row{0, 100, 0};
    ops::row_square_sums(p->fixture.context, p->state.weight, p->fixture.placed(&row, 1), 1,
                         p->fixture.make(DType::float64, {1}).as<double>());
  }
  EXPECT_EQ(real.fixture.context.counters().bytes, meta.fixture.context.counters().bytes);
  EXPECT_EQ(meta.fixture.context.counters().calls, 7);
  EXPECT_EQ(real.fixture.workspace.peak_bytes(), 0);
}

}  // namespace
}  // namespace trireme::test
