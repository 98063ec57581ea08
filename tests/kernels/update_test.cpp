#include "trireme/ops/update.hpp"

#include <algorithm>
#include <functional>

#include "kernels/norm_reference.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::test {
namespace {

/// One element's update in double: weight, gradient (times its factor), slots.
using Rule = std::function<double(double w, double g, double& first, double& second, const ops::TensorRates&, const ops::Judgement&)>;

/// Three tensors in one flat buffer: with decay, without, and a running statistic; in chunks of several sizes.
struct Problem {
  static constexpr std::int64_t elements = 2 * 5003 + 37;
  Fixture fixture;
  ops::FlatState state;
  std::vector<ops::FlatChunk> chunks = {{0, 1, 0}, {1, 4096, 0}, {4097, 906, 0}, {5003, 5003, 1}, {10006, 37, 2}};
  std::vector<ops::TensorRates> rates = {{0.1f, 0.01f, 0.3f, 0}, {0.05f, 0, 1, 0}, {0.1f, 0, 1, 1}};
  ops::Judgement judgement{1, 0.5f, 0.271f, 0.0297f};

  explicit Problem(DeviceKind kind = DeviceKind::cpu) : fixture(kind) {
    state.weight = fixture.random(DType::float32, {elements}, "weight");
    state.gradient = fixture.random(DType::float32, {elements}, "gradient");
    state.slot1 = fixture.random(DType::float32, {elements}, "slot1");
    state.slot2 = fixture.random(DType::float32, {elements}, "slot2");
    for (std::int64_t i = 0; kind == DeviceKind::cpu && i < elements; ++i) set_value(state.slot2, i, std::abs(value_at(state.slot2, i)));
    state.compute = fixture.filled(DType::bfloat16, {elements}, 0);
  }
  template <class Options>
  void run(void (*update)(ops::Context&, const Options&, const ops::FlatState&, const ops::FlatChunk*, std::int64_t, const ops::TensorRates*,
                          const ops::Judgement*), const Options& options) {
    update(fixture.context, options, state, chunks.data(), static_cast<std::int64_t>(chunks.size()), rates.data(), &judgement);
  }
};

template <class Options, class Update>
void compare(Update update, const Options& options, const Rule& rule) {
  Problem p;
  Values w = values(p.state.weight), first = values(p.state.slot1), second = values(p.state.slot2);
  const Values g = values(p.state.gradient);
  double scale = 1;
  for (const ops::FlatChunk& chunk : p.chunks) {
    const ops::TensorRates& rates = p.rates[static_cast<std::size_t>(chunk.tensor)];
    for (std::int64_t i = chunk.offset; i < chunk.offset + chunk.elements; ++i) {
      w[i] = rates.statistic != 0 ? (1 - static_cast<double>(rates.rate)) * w[i] + static_cast<double>(rates.rate) * g[i]
                                  : rule(w[i], static_cast<double>(p.judgement.gradient_factor) * g[i], first[i], second[i], rates, p.judgement);
      scale = std::max({scale, std::abs(w[i]), std::abs(first[i])});
    }
  }
  p.run(update, options);
  // A dozen float32 operations on numbers up to `scale`.
  const double tolerance = 12 * 0x1p-24 * scale;
  expect_close(p.state.weight, w, tolerance, 0, "weight");
  expect_close(p.state.slot1, first, tolerance, 0, "slot 1");
  expect_close(p.state.slot2, second, tolerance, 0, "slot 2");
  Tensor cast = p.fixture.make(DType::bfloat16, {Problem::elements});
  for (std::int64_t i = 0; i < Problem::elements; ++i) set_value(cast, i, value_at(p.state.weight, i));
  expect_same_bytes(cast, p.state.compute, "compute copy");
}

TEST(Update, SgdFollowsTheContract) {
  for (const bool nesterov : {false, true}) {
    const ops::SgdRule rule{0.9f, nesterov};
    compare(ops::update_sgd, rule, [&](double w, double g, double& v, double&, const ops::TensorRates& r, const ops::Judgement&) {
      const double decayed = g + r.weight_decay * w;
      v = rule.momentum * v + decayed;
      return w - r.rate * (nesterov ? g + r.weight_decay * w + rule.momentum * v : v);
    });
  }
}

TEST(Update, SgdWithoutMomentumNeedsNoSlot) {
  Problem with, without;
  ops::fill(with.fixture.context, with.state.slot1, 0);
  without.state.slot1 = {};
  with.run(ops::update_sgd, ops::SgdRule{});
  without.run(ops::update_sgd, ops::SgdRule{});
  expect_same_bytes(with.state.weight, without.state.weight);
}

TEST(Update, LarsFollowsTheContract) {
  const ops::LarsRule rule{0.9f};
  compare(ops::update_lars, rule, [&](double w, double g, double& v, double&, const ops::TensorRates& r, const ops::Judgement&) {
    v = rule.momentum * v + static_cast<double>(r.rate) * r.trust * (g + r.weight_decay * w);
    return w - v;
  });
}

TEST(Update, AdamWFollowsPyTorch) {
  const ops::AdamWRule rule;
  compare(ops::update_adamw, rule, [&](double w, double g, double& m, double& v, const ops::TensorRates& r, const ops::Judgement& j) {
    w -= static_cast<double>(r.rate) * r.weight_decay * w;
    m += (1 - static_cast<double>(rule.beta1)) * (g - m);
    v = rule.beta2 * v + (1 - static_cast<double>(rule.beta2)) * g * g;
    return w - r.rate / static_cast<double>(j.bias_correction1) * m / (std::sqrt(v) / std::sqrt(static_cast<double>(j.bias_correction2)) + rule.epsilon);
  });
}

TEST(Update, AStepThatIsNotAppliedChangesNothing) {
  Problem p, untouched;
  p.judgement.apply = 0;
  p.run(ops::update_sgd, ops::SgdRule{0.9f, true});
  p.run(ops::update_lars, ops::LarsRule{0.9f});
  p.run(ops::update_adamw, ops::AdamWRule{});
  expect_same_bytes(p.state.weight, untouched.state.weight, "weight");
  expect_same_bytes(p.state.slot1, untouched.state.slot1, "slot 1");
  expect_same_bytes(p.state.slot2, untouched.state.slot2, "slot 2");
  expect_same_bytes(p.state.compute, untouched.state.compute, "compute");
}

TEST(Update, BitsDoNotDependOnChunksNorThreads) {
  Problem p, cut;
  cut.chunks.clear();
  for (std::int64_t begin = 0; begin < Problem::elements;) {  // pieces of 1 to 13 elements that end where tensors end
    const std::int64_t end = begin < 5003 ? 5003 : begin < 10006 ? 10006 : Problem::elements;
    const std::int64_t count = std::min<std::int64_t>(1 + begin % 13, end - begin);
    cut.chunks.push_back({begin, static_cast<std::int32_t>(count), begin < 5003 ? 0 : begin < 10006 ? 1 : 2});
    begin += count;
  }
  p.run(ops::update_adamw, ops::AdamWRule{});
  on_one_thread([&] { cut.run(ops::update_adamw, ops::AdamWRule{}); });
  expect_same_bytes(p.state.weight, cut.state.weight, "weight");
  expect_same_bytes(p.state.slot1, cut.state.slot1, "slot 1");
  expect_same_bytes(p.state.slot2, cut.state.slot2, "slot 2");
}

TEST(RowSquareSums, EqualReferenceWhereverTheRowLies) {
  Fixture f;
  for (const std::int64_t n : {1, 31, 32, 33, 97, 4099}) {
    const Tensor row = f.random(DType::float32, {n}, "row");
    double expected = 0;
    for (const double x : values(row)) expected += x * x;
    std::vector<double> sums;
    for (const std::int64_t offset : {0, 1, 3, 16, 29}) {
      const Tensor flat = f.filled(DType::float32, {n + 64}, 1e10);  // what lies around a row must not be read into it
      std::memcpy(flat.as<float>() + offset, row.data, static_cast<std::size_t>(row.bytes()));
      const ops::FlatRow rows[2] = {{offset, n, 0}, {offset, n, 0}};
      double two[2] = {};
      ops::row_square_sums(f.context, flat, rows, 2, two);
      sums.insert(sums.end(), two, two + 2);
    }
    for (const double sum : sums) EXPECT_EQ(sum, sums.front());
    EXPECT_NEAR(sums.front(), expected, expected * static_cast<double>(n) * 0x1p-53);
  }
}

TEST(Update, MetaCountsWhatTheCpuCounts) {
  Problem real, meta(DeviceKind::meta);
  for (Problem* p : {&real, &meta}) {
    p->run(ops::update_sgd, ops::SgdRule{0.9f, false});
    p->run(ops::update_lars, ops::LarsRule{0.9f});
    p->run(ops::update_adamw, ops::AdamWRule{});
    const ops::FlatRow row{0, 100, 0};
    double sum = 0;
    ops::row_square_sums(p->fixture.context, p->state.weight, &row, 1, &sum);
  }
  EXPECT_EQ(real.fixture.context.counters().bytes, meta.fixture.context.counters().bytes);
  EXPECT_EQ(meta.fixture.context.counters().calls, 4);
  EXPECT_EQ(real.fixture.workspace.peak_bytes(), 0);
}

}  // namespace
}  // namespace trireme::test
