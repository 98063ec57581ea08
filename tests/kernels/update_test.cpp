// SPDX-License-Identifier: Apache-2.0
//
// Optimizer updates against double-precision rules: SGD, LARS, AdamW (PyTorch's order), LAMB and
// Muon in two passes, the weight average, skipped steps, working copies, and square sums of rows.
// Results must not depend on chunks and threads. Tolerances: about a dozen float32 operations per
// element.

#include "trireme/ops/update/update.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "norm_reference.hpp"
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
  ops::WindowState state;
  std::vector<ops::FlatChunk> chunks = {chunk(0, 1), chunk(1, 4096), chunk(4097, 906),
                                        chunk(5003, 5003), chunk(10006, 37)};
  std::vector<ops::TensorRates> rates = {
      {0.1f, 0.01f, 0.3f, 0, 0.9f, 1, 0.271f, 0.0297f},
      {0.05f, 0, 1, 0, 0.8f, 1, 0.9f, 0.6f},  // moments that began later
      {0.1f, 0, 1, kernels::statistic_rule}};
  ops::StepDecision judgement{1, 0.5f};

  explicit UpdateFixture(DeviceKind kind = tested_device()) : fixture(kind) {
    state.weight = fixture.random(DType::float32, {elements}, "weight");
    state.gradient = fixture.random(DType::float32, {elements}, "gradient");
    state.slots[0] = fixture.random(DType::float32, {elements}, "slot1");
    state.slots[1] = fixture.random(DType::float32, {elements}, "slot2");
    if (kind != DeviceKind::meta) assign(state.slots[1], magnitudes(values(state.slots[1])));
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
  /// Returns the state with its tables in memory that kernels can read.
  const ops::WindowState& placed() {
    state.elements = elements;
    state.chunks = fixture.placed(chunks);
    state.chunk_count = static_cast<std::int64_t>(chunks.size());
    state.rates = fixture.placed(rates);
    state.decision = fixture.placed(&judgement, 1);
    return state;
  }
  void run(const ops::UpdatePass& pass, const ops::RuleNumbers& numbers = {}) {
    ops::update(fixture.context, pass, numbers, placed());
  }
  void run_ema(double decay) { ops::update_ema(fixture.context, decay, placed(), state.slots[0]); }
};

constexpr ops::UpdatePass sgd{ops::Op::of_rule("update_sgd"), kernels::update_sgd, true, 1, true},
    lars{ops::Op::of_rule("update_lars"), kernels::update_lars, true, 1},
    adamw{ops::Op::of_rule("update_adamw"), kernels::update_adamw, true, 2},
    lamb_direction{ops::Op::of_rule("lamb_direction"), kernels::lamb_direction, false, 2},
    lamb{ops::Op::of_rule("update_lamb"), kernels::update_lamb, true, 0},
    muon_direction{ops::Op::of_rule("muon_direction"), kernels::muon_direction, false, 1},
    muon{ops::Op::of_rule("update_muon"), kernels::update_muon, true, 0};

/// Returns an element of the gradient clipped to the limit.
double clipped(double g, float limit) {
  return std::clamp<double>(g, -static_cast<double>(limit), static_cast<double>(limit));
}

/// A limit that clips about half of the gradient.
constexpr float some_limit = 0.5f;

void compare_clipped(const ops::UpdatePass& pass, const ops::RuleNumbers& numbers, const Rule& rule,
                     float limit) {
  UpdateFixture p;
  p.state.gradient_limit = limit;
  Values w = values(p.state.weight), first = values(p.state.slots[0]),
         second = values(p.state.slots[1]);
  const Values g = values(p.state.gradient);
  double scale = 1;
  for (const ops::FlatChunk& chunk : p.chunks) {
    const ops::TensorRates& rates = p.rates[static_cast<std::size_t>(chunk.tensor)];
    for (std::int64_t i = chunk.offset; i < chunk.offset + chunk.elements; ++i) {
      w[i] =
          rates.rule == kernels::statistic_rule
              ? (1 - static_cast<double>(rates.rate)) * w[i] +
                    static_cast<double>(rates.rate) * g[i]
              : rule(w[i], static_cast<double>(p.judgement.gradient_factor) * clipped(g[i], limit),
                     first[i], second[i], rates, p.judgement);
      scale = std::max({scale, std::abs(w[i]), std::abs(first[i])});
    }
  }
  p.run(pass, numbers);
  // A dozen float32 operations on numbers up to `scale`.
  const double tolerance = 12 * 0x1p-24 * scale;
  expect_close(p.state.weight, w, tolerance, 0, "weight");
  expect_close(p.state.slots[0], first, tolerance, 0, "slot 1");
  expect_close(p.state.slots[1], second, tolerance, 0, "slot 2");
  expect_same_bytes(p.rounded(), p.state.working, "working weights");
}

/// Compares an update with its rule, without and with clipped elements of the gradient.
void compare(const ops::UpdatePass& pass, const ops::RuleNumbers& numbers, const Rule& rule) {
  compare_clipped(pass, numbers, rule, ops::unlimited);
  compare_clipped(pass, numbers, rule, some_limit);
}

TEST(Update, SgdFollowsTheContract) {
  for (const bool nesterov : {false, true}) {
    compare(sgd, {.nesterov = nesterov},
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
  ops::fill(with.fixture.context, with.state.slots[0], 0);
  without.state.slots[0] = {};
  for (UpdateFixture* p : {&with, &without}) {
    for (ops::TensorRates& rates : p->rates) rates.momentum = 0;
  }
  with.run(sgd);
  without.run(sgd);
  expect_same_bytes(with.state.weight, without.state.weight);
}

TEST(Update, LarsFollowsTheContract) {
  compare(lars, {},
          [&](double w, double g, double& v, double&, const ops::TensorRates& r,
              const ops::StepDecision&) {
            v = r.momentum * v +
                static_cast<double>(r.rate) * r.trust_ratio * (g + r.weight_decay * w);
            return w - v;
          });
}

TEST(Update, AdamWFollowsPyTorch) {
  const ops::RuleNumbers rule;
  compare(adamw, rule,
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
  const ops::RuleNumbers rule;
  UpdateFixture p;
  p.state.gradient_limit = limit;
  const Values w = values(p.state.weight), g = values(p.state.gradient);
  Values direction = g, first = values(p.state.slots[0]), second = values(p.state.slots[1]);
  for (const ops::FlatChunk& chunk : p.chunks) {
    const ops::TensorRates& rates = p.rates[static_cast<std::size_t>(chunk.tensor)];
    for (std::int64_t i = chunk.offset;
         rates.rule != kernels::statistic_rule && i < chunk.offset + chunk.elements; ++i) {
      const double scaled = static_cast<double>(p.judgement.gradient_factor) * clipped(g[i], limit);
      first[i] = rule.beta1 * first[i] + (1 - static_cast<double>(rule.beta1)) * scaled;
      second[i] = rule.beta2 * second[i] + (1 - static_cast<double>(rule.beta2)) * scaled * scaled;
      direction[i] = first[i] / rates.bias_correction1 /
                         (std::sqrt(second[i] / rates.bias_correction2) + rule.epsilon) +
                     rates.weight_decay * w[i];
    }
  }
  p.run(lamb_direction, rule);
  // A dozen float32 operations on each. If the first moment is small, it keeps the error of its
  // terms, which are below 5.
  expect_close(p.state.slots[0], first, 12 * 0x1p-24, 12 * 0x1p-24, "slot 1");
  expect_close(p.state.slots[1], second, 12 * 0x1p-24, 12 * 0x1p-24, "slot 2");
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
    p->run(adamw);
    p->run(lamb_direction);
  }
  expect_same_bytes(limited.state.gradient, plain.state.gradient, "gradient");
  expect_same_bytes(limited.state.weight, plain.state.weight, "weight");
  expect_same_bytes(limited.state.slots[1], plain.state.slots[1], "slot 2");
}

/// Compares a step along the direction with its rule, an element's new weight from the old one and
/// the direction. `operations`: those in float32 of an element.
void compare_along_direction(
    const ops::UpdatePass& pass, int operations,
    const std::function<double(double w, double direction, const ops::TensorRates&)>& rule) {
  UpdateFixture p;
  p.state.gradient_limit = 1e-3f;  // of no effect: the buffer holds the direction
  Values w = values(p.state.weight);
  const Values g = values(p.state.gradient);
  double scale = 1;
  for (const ops::FlatChunk& chunk : p.chunks) {
    const ops::TensorRates& rates = p.rates[static_cast<std::size_t>(chunk.tensor)];
    for (std::int64_t i = chunk.offset; i < chunk.offset + chunk.elements; ++i) {
      const double rate = rates.rate;
      w[i] = rates.rule == kernels::statistic_rule ? (1 - rate) * w[i] + rate * g[i]
                                                   : rule(w[i], g[i], rates);
      scale = std::max(scale, std::abs(w[i]));
    }
  }
  p.run(pass);
  expect_close(p.state.weight, w, operations * 0x1p-24 * scale, 0,
               "weight: the gradient's factor was in the direction before");
  expect_same_bytes(p.rounded(), p.state.working, "working weights");
}

TEST(Update, LambStepsAlongTheDirection) {
  compare_along_direction(lamb, 4, [](double w, double direction, const ops::TensorRates& r) {
    return w - static_cast<double>(r.rate) * r.trust_ratio * direction;
  });
}

TEST(Update, MuonsDirectionIsTheAverageOfGradients) {
  for (const bool nesterov : {false, true}) {
    UpdateFixture p;
    p.state.gradient_limit = some_limit;
    const Values g = values(p.state.gradient);
    Values direction = g, average = values(p.state.slots[0]);
    for (const ops::FlatChunk& chunk : p.chunks) {
      const ops::TensorRates& rates = p.rates[static_cast<std::size_t>(chunk.tensor)];
      for (std::int64_t i = chunk.offset;
           rates.rule != kernels::statistic_rule && i < chunk.offset + chunk.elements; ++i) {
        const double scaled =
            static_cast<double>(p.judgement.gradient_factor) * clipped(g[i], some_limit);
        average[i] += (1 - static_cast<double>(rates.momentum)) * (scaled - average[i]);
        direction[i] = nesterov ? scaled + rates.momentum * (average[i] - scaled) : average[i];
      }
    }
    p.run(muon_direction, {.nesterov = nesterov});
    // Some float32 operations on numbers below 5.
    expect_close(p.state.slots[0], average, 5 * 4 * 0x1p-24, 0, "average");
    expect_close(p.state.gradient, direction, 5 * 8 * 0x1p-24, 0, "direction");
    const UpdateFixture untouched;
    expect_same_bytes(p.state.weight, untouched.state.weight, "weight");
    expect_same_bytes(p.state.slots[1], untouched.state.slots[1], "slot 2");
  }
}

TEST(Update, MuonStepsAlongTheDirectionAfterTheDecay) {
  compare_along_direction(muon, 6, [](double w, double direction, const ops::TensorRates& r) {
    const double rate = r.rate;
    return w * (1 - rate * r.weight_decay) - rate * r.trust_ratio * direction;
  });
}

/// Weights and running statistics, in chunks of 1, 4096, 906, 5003 and 37 elements.
TEST(Update, TheAverageFollowsTheWeights) {
  for (const double decay : {0.5, 0.999, 0.99999999}) {
    UpdateFixture p;
    const UpdateFixture untouched;
    const Tensor& average = p.state.slots[0];
    const Values before = values(average), w = values(p.state.weight);
    Values expected = before;
    double largest = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      expected[i] += (1 - decay) * (w[i] - expected[i]);
      largest = std::max(largest, std::abs(w[i] - before[i]));
    }
    p.run_ema(decay);
    // 1 - decay, the difference and their product are rounded, then the sum.
    expect_close(average, expected, 3 * 0x1p-24 * (1 - decay) * largest, 0x1p-24, "average");
    expect_same_bytes(p.state.weight, untouched.state.weight, "weight");
  }
}

TEST(Update, AnAverageEqualToTheWeightsStays) {
  UpdateFixture p;
  ops::copy(p.fixture.context, p.state.weight, p.state.slots[0]);
  p.run_ema(0.9);
  expect_same_bytes(p.state.slots[0], p.state.weight);
}

TEST(Update, AStepThatIsNotAppliedChangesNothing) {
  UpdateFixture p, untouched;
  p.judgement.apply = 0;
  p.run(sgd, {.nesterov = true});
  p.run(lars);
  p.run(adamw);
  p.run(lamb_direction);
  p.run(lamb);
  p.run(muon_direction);
  p.run(muon);
  p.run_ema(0.5);
  expect_same_bytes(p.state.gradient, untouched.state.gradient, "gradient");
  expect_same_bytes(p.state.weight, untouched.state.weight, "weight");
  expect_same_bytes(p.state.slots[0], untouched.state.slots[0], "slot 1");
  expect_same_bytes(p.state.slots[1], untouched.state.slots[1], "slot 2");
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
    problem.run(adamw);
    problem.run(lamb_direction);
    problem.run_ema(0.9);
  };
  step(p);
  on_one_thread([&] { step(cut); });
  expect_same_bytes(p.state.gradient, cut.state.gradient, "lamb's direction");
  expect_same_bytes(p.state.working, cut.state.working, "working weights");
  expect_same_bytes(p.state.weight, cut.state.weight, "weight");
  expect_same_bytes(p.state.slots[0], cut.state.slots[0], "slot 1");
  expect_same_bytes(p.state.slots[1], cut.state.slots[1], "slot 2");
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
    p->run(sgd, {.nesterov = false});
    p->run(lars);
    p->run(adamw);
    p->run(lamb_direction);
    p->run(lamb);
    p->run(muon_direction);
    p->run(muon);
    p->run_ema(0.9);
    const ops::FlatRow row{0, 100, 0};
    ops::row_square_sums(p->fixture.context, p->state.weight, p->fixture.placed(&row, 1), 1,
                         p->fixture.make(DType::float64, {1}).as<double>());
  }
  EXPECT_EQ(real.fixture.context.counters().bytes, meta.fixture.context.counters().bytes);
  EXPECT_EQ(meta.fixture.context.counters().calls, 9);
  EXPECT_EQ(real.fixture.workspace.peak_bytes(), 0);
}

}  // namespace
}  // namespace trireme::test
