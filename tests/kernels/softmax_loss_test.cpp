// SPDX-License-Identifier: Apache-2.0
//
// Split softmax cross-entropy: the pieces for several parts and tiles, against the definition in
// double precision and against the unsplit op.
// Also: ties across parts, independence of tiles, in-place gradients, missing rows, logits that are
// not finite, number of threads, and meta. The fused kernel, which needs one part and overwrites
// the logits, against the definition and the pieces.

#include "trireme/ops/softmax_loss.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "norm_reference.hpp"
#include "trireme/ops/loss.hpp"

namespace trireme::test {
namespace {

using ops::Write;

struct Options {
  std::int64_t rows = 0, classes = 0;
  DType logits = DType::float32, gradient = DType::float32;
  float smoothing = 0;
  int parts = 1;
  int tiles = 1;
  double scale = 1;
};

std::string name_of(const Options& o) {
  return fmt::format("{} x {}, {} to {}, smoothing {}, {} parts, {} tiles, scale {}", o.rows,
                     o.classes, to_string(o.logits), to_string(o.gradient), o.smoothing, o.parts,
                     o.tiles, o.scale);
}

/// Runs the pieces as a group of `parts` ranks would, tile after tile.
class SoftmaxLossFixture {
 public:
  static constexpr std::int64_t capacity_bytes = 8 * OpsFixture::mebibyte;
  static constexpr float gradient_scale = 0.25f;

  explicit SoftmaxLossFixture(const Options& options, DeviceKind kind = tested_device())
      : o(options),
        fixture(kind, capacity_bytes),
        logits(fixture.random(o.logits, {o.rows, o.classes}, "logits", o.scale)),
        labels(fixture.make(DType::int32, {o.rows})),
        sums(fixture.make(DType::float64, {4})),
        dlogits(fixture.make(o.gradient, {o.rows, o.classes})) {
    if (labels.data == nullptr) return;
    Values label(static_cast<std::size_t>(o.rows), -1.0);
    for (std::size_t row = 0; row < label.size(); ++row) {
      if (row % 7 != 5)
        label[row] = static_cast<double>(mix64(row) % static_cast<std::uint64_t>(o.classes));
    }
    assign(labels, label);
  }

  void run(bool evaluation = false, bool in_place = false) {
    for (int tile = 0; tile < o.tiles; ++tile) {
      const std::int64_t begin = o.rows * tile / o.tiles, end = o.rows * (tile + 1) / o.tiles;
      run_tile(begin, end, evaluation, in_place, tile == 0 ? Write::assign : Write::add);
    }
  }

  /// Runs the fused op and the sums. The gradient overwrites `logits`, unless in evaluation.
  void run_fused(bool evaluation = false) {
    const Tensor ranks = fixture.filled(DType::int32, {o.rows}, 0),
                 merged = fixture.make(DType::float32, {o.rows, 4});
    fused_softmax(fixture.context, {0, o.classes, o.smoothing, gradient_scale}, logits, labels,
                  merged, evaluation ? Tensor{} : logits, ranks);
    softmax_sums(fixture.context, merged, labels, ranks, o.classes, o.smoothing, sums,
                 Write::assign);
  }

  Options o;
  OpsFixture fixture;
  Tensor logits, labels, sums, dlogits;

 private:
  std::int64_t first(int part) const { return o.classes * part / o.parts; }

  /// Copies columns [begin, end) of `whole` to a contiguous matrix, or back.
  static void move_columns(const Tensor& whole, std::int64_t row, std::int64_t first,
                           const Tensor& part, bool back) {
    const std::int64_t classes = part.shape[1];
    if (part.data == nullptr) return;
    Values of_whole = values(whole), of_part = values(part);
    for (std::int64_t i = 0; i < part.elements(); ++i) {
      const std::int64_t at = (row + i / classes) * whole.shape[1] + first + i % classes;
      back ? of_whole[at] = of_part[i] : of_part[i] = of_whole[at];
    }
    back ? assign(whole, of_whole) : assign(part, of_part);
  }

  void run_tile(std::int64_t begin, std::int64_t end, bool evaluation, bool in_place, Write write) {
    const std::int64_t rows = end - begin;
    ops::Context& context = fixture.context;
    const ArenaScope scope(fixture.tensors);
    const Tensor label = labels.rows(begin, end), ranks = fixture.filled(DType::int32, {rows}, 0);
    const Tensor stats = fixture.make(DType::float32, {o.parts, rows, 4}),
                 merged = fixture.make(DType::float32, {rows, 4});
    for (int part = 0; part < o.parts; ++part) {
      const ArenaScope part_scope(fixture.tensors);
      const Tensor x = fixture.make(o.logits, {rows, first(part + 1) - first(part)});
      move_columns(logits, begin, first(part), x, false);
      softmax_statistics(context, x, label, first(part), stats.rows(part, part + 1));
    }
    merge_statistics(context, stats, merged);
    for (int part = 0; part < o.parts; ++part) {
      const ArenaScope part_scope(fixture.tensors);
      const Tensor x = fixture.make(o.logits, {rows, first(part + 1) - first(part)});
      move_columns(logits, begin, first(part), x, false);
      const Tensor dx = evaluation ? Tensor{} : in_place ? x : fixture.make(o.gradient, x.shape);
      softmax_gradient(context, {first(part), o.classes, o.smoothing, gradient_scale}, x, label,
                       merged, dx, ranks);
      if (!evaluation) move_columns(dlogits, begin, first(part), dx, true);
    }
    softmax_sums(context, merged, label, ranks, o.classes, o.smoothing, sums, write);
  }
};

struct Reference {
  Values sums, dlogits;
  explicit Reference(const SoftmaxLossFixture& p)
      : sums(4, 0.0), dlogits(static_cast<std::size_t>(p.logits.elements()), 0.0) {
    const std::int64_t classes = p.o.classes;
    const double smoothing = p.o.smoothing;
    const Values labels = values(p.labels), logits = values(p.logits);
    for (std::int64_t row = 0; row < p.o.rows; ++row) {
      const auto label = static_cast<std::int64_t>(labels[row]);
      if (label < 0) continue;
      const auto x = [&](std::int64_t c) { return logits[row * classes + c]; };
      double largest = x(0), total = 0;
      for (std::int64_t c = 0; c < classes; ++c) largest = std::max(largest, x(c));
      for (std::int64_t c = 0; c < classes; ++c) total += std::exp(x(c) - largest);
      std::int64_t before = 0;
      for (std::int64_t c = 0; c < classes; ++c) {
        const double target =
            (c == label ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
        sums[0] += target * (largest + std::log(total) - x(c));
        dlogits[row * classes + c] =
            SoftmaxLossFixture::gradient_scale * (std::exp(x(c) - largest) / total - target);
        before += x(c) > x(label) || (x(c) == x(label) && c < label);
      }
      sums[1] += 1;
      sums[2] += before < 1;
      sums[3] += before < 5;
    }
  }
};

std::vector<Options> cases() {
  std::vector<Options> all;
  for (const auto& [logits, gradient] : {std::pair{DType::float32, DType::float32},
                                         {DType::float32, DType::bfloat16},
                                         {DType::bfloat16, DType::bfloat16},
                                         {DType::float32, DType::float16},
                                         {DType::float16, DType::float16}}) {
    for (const auto& [rows, classes] : {std::pair<std::int64_t, std::int64_t>{1, 3},
                                        {13, 5},
                                        {67, 10},
                                        {29, 97},
                                        {5, 1003},
                                        {3, 4096},
                                        {3, 4099}}) {
      for (const float smoothing : {0.0f, 0.1f}) {
        for (const int parts : {1, 3}) {
          for (const double scale : {1.0, 30.0})
            // 30: most probabilities vanish
            all.push_back({rows, classes, logits, gradient, smoothing, parts, 1, scale});
        }
      }
    }
  }
  return all;
}

// Error of a row's loss: 64 float32 additions per lane, fast_exp within two units in the last
// place, and logits up to 5 * scale whose sum is rounded.
double loss_error(const Options& o) {
  return static_cast<double>(o.rows) * 0x1p-24 * (64 + 64 * o.scale);
}

TEST(SoftmaxLoss, EqualsTheDefinition) {
  for (const Options& o : cases()) {
    SCOPED_TRACE(name_of(o));
    SoftmaxLossFixture p(o);
    const Reference expected(p);
    p.run();
    EXPECT_NEAR(value_at(p.sums, 0), expected.sums[0], loss_error(o));
    for (int i = 1; i < 4; ++i) EXPECT_EQ(value_at(p.sums, i), expected.sums[i]);
    // x - maximum is rounded by up to 2^-24 * |difference|. exp turns this into a relative error,
    // for probabilities that count (difference below 20).
    expect_close(p.dlogits, expected.dlogits, 32 * 0x1p-24 * 0.25,
                 unit_roundoff(o.gradient) + 64 * 0x1p-24, "dlogits");
  }
}

/// Cases of the fused op, with rows of GPT-2's vocabulary and rows that are too long for it.
std::vector<Options> fused_cases() {
  std::vector<Options> all;
  for (const Options& o : cases()) {
    if (o.parts == 1 && o.logits == o.gradient) all.push_back(o);
  }
  for (const DType dtype : compute_types) {
    for (const std::int64_t classes : {50304, 50257, 130001})
      all.push_back({2, classes, dtype, dtype, 0.1f});
  }
  return all;
}

TEST(SoftmaxLoss, FusedEqualsTheDefinition) {
  for (const Options& o : fused_cases()) {
    SCOPED_TRACE(name_of(o));
    SoftmaxLossFixture p(o);
    const Reference expected(p);
    p.run_fused();
    EXPECT_NEAR(value_at(p.sums, 0), expected.sums[0], loss_error(o));
    for (int i = 1; i < 4; ++i) EXPECT_EQ(value_at(p.sums, i), expected.sums[i]);
    // As of the pieces (EqualsTheDefinition).
    expect_close(p.logits, expected.dlogits, 32 * 0x1p-24 * 0.25,
                 unit_roundoff(o.gradient) + 64 * 0x1p-24, "dlogits");
  }
}

/// The host adds in the same order. A device joins the sums of threads in another one.
TEST(SoftmaxLoss, FusedHasTheBitsOfThePiecesOnTheHost) {
  if (!adds_in_order()) GTEST_SKIP() << "a device adds in another order";
  for (const Options& o : fused_cases()) {
    SCOPED_TRACE(name_of(o));
    SoftmaxLossFixture pieces(o), fused(o);
    pieces.run(false, true);
    fused.run_fused();
    expect_same_bytes(pieces.sums, fused.sums);
    expect_same_bytes(pieces.dlogits, fused.logits);
  }
}

TEST(SoftmaxLoss, FusedKeepsTheLogitsInEvaluation) {
  for (const DType dtype : compute_types) {
    SoftmaxLossFixture training({31, 37, dtype, dtype, 0.1f}), evaluation(training.o);
    const Tensor before = evaluation.fixture.copy_of(evaluation.logits);
    training.run_fused();
    evaluation.run_fused(true);
    expect_same_bytes(evaluation.logits, before);
    expect_same_bytes(training.sums, evaluation.sums);
  }
}

TEST(SoftmaxLoss, FusedRowsWithoutAValidLabel) {
  for (const DType dtype : compute_types) {
    SoftmaxLossFixture p({2, 1003, dtype, dtype, 0.1f});
    assign(p.labels, {-1, 1003});
    p.run_fused();
    EXPECT_EQ(value_at(p.sums, 1), 1);
    EXPECT_TRUE(std::isnan(value_at(p.sums, 0)));
    const Values gradient = values(p.logits);
    for (std::size_t i = 0; i < 1003; ++i) {
      EXPECT_EQ(gradient[i], 0) << i;
      EXPECT_TRUE(std::isnan(gradient[1003 + i])) << i;
    }
  }
}

/// One launch that reads and writes each logit once. Rows that do not fit into shared memory (here
/// for certain: 260 KB) take two, which read twice. Meta counts the same.
TEST(SoftmaxLoss, FusedCountsItsWay) {
  for (const auto& [classes, calls, passes] :
       {std::tuple<std::int64_t, std::int64_t, double>{1003, 2, 2}, {130001, 3, 3}}) {
    const Options o{3, classes, DType::bfloat16, DType::bfloat16, 0.1f};
    SoftmaxLossFixture real(o), meta(o, DeviceKind::meta);
    real.run_fused();
    meta.run_fused();
    const ops::Counters &found = real.fixture.context.counters(),
                        &planned = meta.fixture.context.counters();
    EXPECT_EQ(found.calls, calls);  // with the sums
    EXPECT_EQ(planned.calls, calls);
    EXPECT_EQ(planned.bytes, found.bytes);
    const double logits = static_cast<double>(real.logits.bytes());
    EXPECT_NEAR(found.bytes, passes * logits, 300);  // and some bytes for each row
    EXPECT_EQ(real.fixture.workspace.peak_bytes(), meta.fixture.workspace.peak_bytes());
  }
}

TEST(SoftmaxLoss, EqualsTheUnsplitOp) {
  for (const Options& o : cases()) {
    if (o.logits != o.gradient) continue;
    SCOPED_TRACE(name_of(o));
    SoftmaxLossFixture p(o);
    p.run();
    const Tensor sums = p.fixture.make(DType::float64, {4}),
                 dlogits = p.fixture.make(o.gradient, p.dlogits.shape);
    ops::cross_entropy(p.fixture.context, p.logits, {p.labels, o.smoothing},
                       SoftmaxLossFixture::gradient_scale, sums, dlogits);
    EXPECT_NEAR(value_at(p.sums, 0), value_at(sums, 0), 2 * loss_error(o));
    for (int i = 1; i < 4; ++i) EXPECT_EQ(value_at(p.sums, i), value_at(sums, i));
    expect_close(p.dlogits, values(dlogits), 64 * 0x1p-24 * 0.25,
                 2 * unit_roundoff(o.gradient) + 128 * 0x1p-24, "dlogits");
  }
}

TEST(SoftmaxLoss, TiesGoToTheLowerClassWhereverThePartsEnd) {
  for (const int parts : {1, 3}) {
    for (const DType dtype : compute_types) {
      SoftmaxLossFixture p({4, 8, dtype, dtype, 0, parts});
      assign(p.logits, Values(32, 1.0));
      assign(p.labels, {0, 4, 5, 7});
      p.run();
      EXPECT_EQ(value_at(p.sums, 2), 1);  // the row with label 0
      EXPECT_EQ(value_at(p.sums, 3), 2);  // and the row with label 4
    }
  }
}

/// On the host for any tile boundaries. On a device, whose threads take packs, for tiles that begin
/// at a pack; losses of rows are then added in blocks.
TEST(SoftmaxLoss, TilesOfRowsDoNotShow) {
  const bool host = adds_in_order();
  for (const std::int64_t rows : {std::int64_t{67}, std::int64_t{64}}) {
    if (rows % 32 != 0 && !host) continue;
    for (const int parts : {1, 3}) {
      SoftmaxLossFixture whole({rows, 97, DType::float32, DType::bfloat16, 0.1f, parts, 1}),
          tiled({rows, 97, DType::float32, DType::bfloat16, 0.1f, parts, 4});
      whole.run();
      tiled.run();
      expect_same_bytes(whole.dlogits, tiled.dlogits);
      if (host) {
        expect_same_bytes(whole.sums, tiled.sums);
      } else {
        expect_close(tiled.sums, values(whole.sums), 0, static_cast<double>(rows) * 0x1p-53,
                     "sums of positive numbers in double");
      }
    }
  }
}

TEST(SoftmaxLoss, GradientMayLieOnTheLogitsAndEvaluationNeedsNone) {
  for (const DType dtype : compute_types) {
    SoftmaxLossFixture apart({31, 37, dtype, dtype, 0.1f, 3}), in_place(apart.o),
        evaluation(apart.o);
    apart.run();
    in_place.run(false, true);
    evaluation.run(true);
    expect_same_bytes(apart.dlogits, in_place.dlogits);
    expect_same_bytes(apart.sums, in_place.sums);
    expect_same_bytes(apart.sums, evaluation.sums);
  }
}

TEST(SoftmaxLoss, MissingRowsCountNowhere) {
  for (const int parts : {1, 3}) {
    SoftmaxLossFixture p({9, 11, DType::float32, DType::float32, 0.1f, parts});
    assign(p.labels, Values(9, -1.0));
    p.run();
    EXPECT_EQ(values(p.sums), Values(4, 0.0));
    EXPECT_EQ(values(p.dlogits), Values(99, 0.0));
  }
}

TEST(SoftmaxLoss, NonFiniteLogitsShowInTheLoss) {
  for (const int parts : {1, 3}) {
    SoftmaxLossFixture p({3, 11, DType::float32, DType::float32, 0, parts});
    set_value(p.logits, 4, std::nan(""));
    p.run();
    EXPECT_TRUE(std::isnan(value_at(p.sums, 0)));
    SoftmaxLossFixture beyond({3, 11, DType::float32, DType::float32, 0, parts});
    set_value(beyond.labels, 1, 11);
    beyond.run();
    EXPECT_TRUE(std::isnan(value_at(beyond.sums, 0)));
    EXPECT_TRUE(std::isnan(value_at(beyond.dlogits, 11)));
  }
}

TEST(SoftmaxLoss, SameBitsOnAnyNumberOfThreads) {
  SoftmaxLossFixture many({1001, 10, DType::float32, DType::float32, 0.1f, 3}), one(many.o);
  many.run();
  on_one_thread([&] { one.run(); });
  expect_same_bytes(many.sums, one.sums);
  expect_same_bytes(many.dlogits, one.dlogits);
}

TEST(SoftmaxLoss, MetaTakesTheSameWorkspaceAndCountsTheSame) {
  const Options o{77, 10, DType::bfloat16, DType::bfloat16, 0, 3, 2};
  SoftmaxLossFixture real(o), meta(o, DeviceKind::meta);
  real.run();
  meta.run();
  EXPECT_EQ(real.fixture.workspace.peak_bytes(), meta.fixture.workspace.peak_bytes());
  EXPECT_EQ(real.fixture.context.counters().bytes, meta.fixture.context.counters().bytes);
  EXPECT_GT(meta.fixture.context.counters().bytes, 0);
}

}  // namespace
}  // namespace trireme::test
