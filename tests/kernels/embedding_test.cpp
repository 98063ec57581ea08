// SPDX-License-Identifier: Apache-2.0
//
// Embedding and position tables against double-precision references: lookup, split tables,
// gradients with ascending additions, the transposed relation of forward and backward, number of
// threads, and meta.
// Token frequencies are uneven, so that one token has more occurrences than a device adds in one
// run.

#include "trireme/ops/embedding.hpp"

#include <fmt/format.h>

#include "norm_reference.hpp"

namespace trireme::test {
namespace {

/// Tokens of a vocabulary, with small numbers more frequent than large ones. The table holds rows
/// [first, first + table_rows).
struct EmbeddingFixture {
  std::int64_t count, table_rows, width, first;
  SmallOpsFixture fixture;
  Tensor tokens, table, y, dy, dtable;

  EmbeddingFixture(std::int64_t count_, std::int64_t vocabulary, std::int64_t table_rows_,
                   std::int64_t width_, std::int64_t first_, DType dtype,
                   DeviceKind kind = tested_device())
      : count(count_),
        table_rows(table_rows_),
        width(width_),
        first(first_),
        fixture(kind),
        tokens(fixture.make(DType::int32, {count})),
        table(fixture.random(dtype, {table_rows, width}, "table")),
        y(fixture.random(dtype, {count, width}, "y")),
        dy(fixture.random(dtype, {count, width}, "dy")),
        dtable(fixture.random(DType::float32, {table_rows, width}, "dtable")) {
    if (kind == DeviceKind::meta) return;
    Values drawn(static_cast<std::size_t>(count));
    for (std::int64_t n = 0; n < count; ++n) {
      const double u = uniform_at(random_key(1, "tokens"), static_cast<std::uint64_t>(n));
      drawn[n] = std::floor(u * u * static_cast<double>(vocabulary));
    }
    assign(tokens, drawn);
  }
  void backward(ops::Write write) {
    ops::embedding_backward(fixture.context, tokens, dy, first, dtable, write);
  }
};

TEST(Embedding, ForwardTakesRowsAndGivesZeroForOthersTokens) {
  for (const DType dtype : compute_types) {
    for (const auto& [first, width] :
         {std::pair<std::int64_t, std::int64_t>{0, 19}, {5, 19}, {17, 19}, {5, 64}}) {
      EmbeddingFixture p(53, 31, 11, width, first, dtype);
      ops::embedding_forward(p.fixture.context, p.tokens, p.table, first, p.y);
      const Values tokens = values(p.tokens), table = values(p.table), y = values(p.y);
      int others = 0;
      for (std::int64_t n = 0; n < p.count; ++n) {
        const auto row = static_cast<std::int64_t>(tokens[n]) - first;
        const bool mine = row >= 0 && row < p.table_rows;
        others += !mine;
        for (std::int64_t i = 0; i < p.width; ++i)
          ASSERT_EQ(y[n * p.width + i], mine ? table[row * p.width + i] : 0.0);
      }
      EXPECT_GT(others, 0);
      EXPECT_LT(others, p.count);
    }
  }
}

TEST(Embedding, PartsOfATableAddUpToTheWhole) {
  EmbeddingFixture whole(40, 30, 30, 7, 0, DType::float32), low(40, 30, 13, 7, 0, DType::float32),
      high(40, 30, 17, 7, 13, DType::float32);
  copy_values(whole.table.rows(0, 13), low.table);
  copy_values(whole.table.rows(13, 30), high.table);
  for (EmbeddingFixture* p : {&whole, &low, &high}) {
    ops::embedding_forward(p->fixture.context, p->tokens, p->table, p->first, p->y);
    p->backward(ops::Write::assign);
  }
  Values sum = values(low.y);
  const Values of_high = values(high.y);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += of_high[i];
  EXPECT_EQ(sum, values(whole.y));
  expect_same_bytes(low.dtable, whole.dtable.rows(0, 13));
  expect_same_bytes(high.dtable, whole.dtable.rows(13, 30));
}

TEST(Embedding, BackwardAddsInAscendingOrder) {
  for (const DType dtype : compute_types) {
    for (const ops::Write write : {ops::Write::assign, ops::Write::add}) {
      for (const auto& [count, vocabulary, rows, width, first] :
           {std::array<std::int64_t, 5>{1, 1, 1, 1, 0},
            {61, 7, 7, 5, 0},
            {997, 101, 67, 33, 11},
            {211, 300, 200, 130, 100},
            {500, 1, 3, 64, 0},
            {3000, 40, 40, 24, 0}}) {
        EmbeddingFixture p(count, vocabulary, rows, width, first, dtype);
        const Values before = values(p.dtable), tokens = values(p.tokens), dy = values(p.dy);
        std::vector<float> expected(before.begin(), before.end());
        if (write == ops::Write::assign) std::fill(expected.begin(), expected.end(), 0.0f);
        Values magnitude = magnitudes(Values(expected.begin(), expected.end())),
               terms(before.size());
        for (std::int64_t n = 0; n < count; ++n) {
          const auto row = static_cast<std::int64_t>(tokens[n]) - first;
          if (row < 0 || row >= rows) continue;
          for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
            const double term = dy[n * width + i - row * width];
            expected[i] += static_cast<float>(term);
            magnitude[i] += std::abs(term);
            ++terms[i];
          }
        }
        // A device adds runs of 32 occurrences first: two float32 sums per number, each within the
        // bound of one sum.
        Values bounds(before.size());
        for (std::size_t i = 0; i < bounds.size(); ++i)
          bounds[i] = adds_in_order() || terms[i] <= 32 ? 0 : 2 * terms[i] * 0x1p-24 * magnitude[i];
        p.backward(write);
        expect_within(
            p.dtable, Values(expected.begin(), expected.end()), bounds,
            fmt::format("{} tokens, table {} x {}, {}", count, rows, width, to_string(dtype)));
      }
    }
  }
}

TEST(Embedding, BackwardIsTheTransposedOfForward) {
  // y is linear in the table: <forward(table), dy> = <table, backward(dy)>.
  EmbeddingFixture p(211, 60, 40, 23, 10, DType::float32);
  ops::embedding_forward(p.fixture.context, p.tokens, p.table, p.first, p.y);
  p.backward(ops::Write::assign);
  const Values y = values(p.y), dy = values(p.dy);
  // At most 40 float32 additions per number: the count of the most frequent token.
  EXPECT_NEAR(dot(y, dy), dot(values(p.table), values(p.dtable)),
              40 * 0x1p-24 * dot(magnitudes(y), magnitudes(dy)));
}

TEST(Embedding, SameBitsOnAnyNumberOfThreads) {
  EmbeddingFixture many(5003, 301, 301, 37, 0, DType::float32),
      one(5003, 301, 301, 37, 0, DType::float32);
  many.backward(ops::Write::add);
  on_one_thread([&] { one.backward(ops::Write::add); });
  expect_same_bytes(many.dtable, one.dtable);
}

TEST(Positions, AreAddedAndTheirGradientIsSummedInAscendingOrder) {
  for (const DType dtype : compute_types) {
    for (const auto& [rows, context, first_row, width] : {std::array<std::int64_t, 4>{1, 1, 0, 67},
                                                          {21, 7, 0, 67},
                                                          {20, 7, 5, 67},
                                                          {3, 11, 9, 67},
                                                          {10, 5, 23, 67},
                                                          {41, 7, 5, 64}}) {
      SmallOpsFixture f;
      const Tensor table = f.random(dtype, {context, width}, "table"),
                   y = f.random(dtype, {rows, width}, "y"),
                   dy = f.random(dtype, {rows, width}, "dy");
      Values sum = values(y);
      const Values added = values(table), gradient = values(dy);
      for (std::int64_t i = 0; i < y.elements(); ++i)
        sum[i] += added[(first_row + i / width) % context * width + i % width];
      ops::add_positions(f.context, table, first_row, y);
      // 16-bit types: rounded to float32, then to the type.
      expect_close(y, sum, 0, unit_roundoff(dtype) + (dtype != DType::float32 ? 0x1p-24 : 0), "y");
      for (const ops::Write write : {ops::Write::assign, ops::Write::add}) {
        const Tensor dtable = f.random(DType::float32, {context, width}, "dtable");
        const Values before = values(dtable);
        std::vector<float> expected(before.begin(), before.end());
        if (write == ops::Write::assign) std::fill(expected.begin(), expected.end(), 0.0f);
        for (std::int64_t i = 0; i < dy.elements(); ++i) {
          expected[(first_row + i / width) % context * width + i % width] +=
              static_cast<float>(gradient[i]);
        }
        ops::positions_backward(f.context, dy, first_row, dtable, write);
        EXPECT_EQ(values(dtable), Values(expected.begin(), expected.end()))
            << rows << " rows, context " << context;
      }
    }
  }
}

TEST(Embedding, MetaTakesTheSameWorkspaceAndCountsTheSame) {
  EmbeddingFixture real(77, 30, 30, 16, 0, DType::bfloat16),
      meta(77, 30, 30, 16, 0, DType::bfloat16, DeviceKind::meta);
  for (EmbeddingFixture* p : {&real, &meta}) {
    ops::Context& context = p->fixture.context;
    ops::embedding_forward(context, p->tokens, p->table, 0, p->y);
    p->backward(ops::Write::assign);
    p->backward(ops::Write::add);
    ops::add_positions(context, p->table, 3, p->y);
    ops::positions_backward(context, p->dy, 3, p->dtable, ops::Write::add);
  }
  EXPECT_EQ(real.fixture.workspace.peak_bytes(), meta.fixture.workspace.peak_bytes());
  EXPECT_GT(meta.fixture.workspace.peak_bytes(), 0);
  EXPECT_EQ(meta.fixture.workspace.used_bytes(), 0);
  EXPECT_EQ(real.fixture.context.counters().bytes, meta.fixture.context.counters().bytes);
  EXPECT_EQ(meta.fixture.context.counters().calls, 5);
}

}  // namespace
}  // namespace trireme::test
