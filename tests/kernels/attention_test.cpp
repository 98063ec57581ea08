// SPDX-License-Identifier: Apache-2.0
//
// Attention with both masks against its definition in double precision: forward, backward, dropout,
// grouped heads, large scores, the keys that a query sees, parts of the heads, number of threads,
// and the memory and work that meta reports.
// Each case runs the op (on the CPU: src/ops/cpu) and, on the CPU, also the portable kernel
// (kernels/attention.cpp).
// The reference's gradient is checked against finite differences.

#include "trireme/ops/attention.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "norm_reference.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::test {
namespace {

using ops::Attention, ops::AttentionMask;

// Letters: b sequence, h query head, q and k positions, d column of a head.

/// Attention in double precision, by the definition.
struct Reference {
  explicit Reference(const Attention& attention)
      : a(attention), scale(1 / std::sqrt(static_cast<double>(a.head_width))) {}

  std::int64_t at(std::int64_t b, std::int64_t t, std::int64_t column) const {
    return (b * a.context + t) * a.qkv_width() + column;
  }
  std::int64_t q_at(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return at(b, t, h * a.head_width);
  }
  std::int64_t k_at(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return at(b, t, (a.heads + h / (a.heads / a.kv_heads)) * a.head_width);
  }
  std::int64_t v_at(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return k_at(b, h, t) + a.kv_heads * a.head_width;
  }
  std::int64_t out_at(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return (b * a.context + t) * a.out_width() + h * a.head_width;
  }

  /// Returns the dropout factor of the probability of (b, h, q, k), by the formula of
  /// ops/attention.hpp.
  double keep(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) const {
    if (a.dropout == 0) return 1;
    const auto element =
        static_cast<std::uint64_t>(((a.first_head + h) * a.context + q) * a.context + k);
    const std::uint32_t word =
        philox(mix64(a.key ^ a.sample_keys[b]), element / 4, 0).word[element % 4];
    return uniform_unit(word) >= a.dropout ? 1 / (1 - static_cast<double>(a.dropout)) : 0;
  }
  double product(const Values& x, std::int64_t i, const Values& y, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t d = 0; d < a.head_width; ++d) sum += x[i + d] * y[j + d];
    return sum;
  }
  /// Returns the number of keys that a query sees.
  std::int64_t keys(std::int64_t q) const {
    return a.mask == AttentionMask::causal ? q + 1 : a.context;
  }
  /// Returns the probabilities of row (b, h, q) before dropout, and the `log_sum` of its scores.
  Values row(const Values& qkv, std::int64_t b, std::int64_t h, std::int64_t q,
             double& log_sum) const {
    Values p(keys(q));
    for (std::int64_t k = 0; k < keys(q); ++k)
      p[k] = scale * product(qkv, q_at(b, h, q), qkv, k_at(b, h, k));
    const double largest = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - largest);
    for (double& x : p) x /= sum;
    log_sum = largest + std::log(sum);
    return p;
  }
  template <class Visit>
  void for_each_row(const Visit& visit) const {
    for (std::int64_t b = 0; b < a.batch; ++b)
      for (std::int64_t h = 0; h < a.heads; ++h)
        for (std::int64_t q = 0; q < a.context; ++q) visit(b, h, q);
  }

  struct Forward {
    Values out, log_sum;
  };
  Forward forward(const Values& qkv) const {
    Forward f{Values(a.batch * a.context * a.out_width(), 0.0),
              Values(a.batch * a.heads * a.context)};
    for_each_row([&](auto b, auto h, auto q) {
      const Values p = row(qkv, b, h, q, f.log_sum[(b * a.heads + h) * a.context + q]);
      for (std::int64_t k = 0; k < keys(q); ++k) {
        const double weight = p[k] * keep(b, h, q, k);
        for (std::int64_t d = 0; d < a.head_width; ++d)
          f.out[out_at(b, h, q) + d] += weight * qkv[v_at(b, h, k) + d];
      }
    });
    return f;
  }
  Values backward(const Values& qkv, const Values& dout) const {
    Values dqkv(qkv.size(), 0.0);
    for_each_row([&](auto b, auto h, auto q) {
      double log_sum = 0, mean = 0;
      const Values p = row(qkv, b, h, q, log_sum);
      Values dp(keys(q));
      for (std::int64_t k = 0; k < keys(q); ++k) {
        dp[k] = keep(b, h, q, k) * product(dout, out_at(b, h, q), qkv, v_at(b, h, k));
        mean += p[k] * dp[k];
      }
      for (std::int64_t k = 0; k < keys(q); ++k) {
        const double ds = p[k] * (dp[k] - mean) * scale, weight = p[k] * keep(b, h, q, k);
        for (std::int64_t d = 0; d < a.head_width; ++d) {
          dqkv[q_at(b, h, q) + d] += ds * qkv[k_at(b, h, k) + d];
          dqkv[k_at(b, h, k) + d] += ds * qkv[q_at(b, h, q) + d];
          dqkv[v_at(b, h, k) + d] += weight * dout[out_at(b, h, q) + d];
        }
      }
    });
    return dqkv;
  }

  Attention a;
  double scale;
};

constexpr std::uint64_t sample_keys[] = {0x9E3779B97F4A7C15u, 17, 0xFFFFFFFFFFFFFFFFu};

/// The implementation under test: the op, which has its own code on the CPU, or the kernel for CUDA
/// devices, here on the host.
enum class Implementation : std::uint8_t { op, kernel };
constexpr Implementation both[] = {Implementation::op, Implementation::kernel};

/// The tensors of one problem, and both passes.
struct AttentionFixture {
  explicit AttentionFixture(const Attention& attention,
                            Implementation implementation = Implementation::op,
                            DeviceKind kind = tested_device(), double size = 1,
                            SumOrder order = SumOrder::any)
      : a(attention),
        by(implementation),
        fixture(kind, 24 * OpsFixture::mebibyte, order),
        qkv(fixture.random(a.dtype, {a.batch * a.context, a.qkv_width()}, "qkv", size)),
        dout(fixture.random(a.dtype, {a.batch * a.context, a.out_width()}, "dout")),
        out(fixture.make(a.dtype, dout.shape)),
        log_sum(fixture.make(DType::float32, {a.batch, a.heads, a.context})),
        dqkv(fixture.make(a.dtype, qkv.shape)) {
    placed.sample_keys = fixture.placed(sample_keys, std::size(sample_keys));
  }
  void forward() {
    if (by == Implementation::op)
      return attention_forward(fixture.context, placed, qkv, out, log_sum);
    ops::with_element_type(a.dtype, [&]<class T>(T) { kernel_forward<T>(); });
  }
  void backward() {
    if (by == Implementation::op)
      return attention_backward(fixture.context, placed, qkv, out, log_sum, dout, dqkv);
    ops::with_element_type(a.dtype, [&]<class T>(T) { kernel_backward<T>(); });
  }
  kernels::AttentionShape shape() const {
    return {a.batch, a.context,          a.heads,      a.kv_heads,    a.head_width, a.dropout,
            a.key,   placed.sample_keys, a.first_head, a.first_query, a.mask};
  }
  template <class T>
  void kernel_forward() {
    kernels::attention_forward<T>(fixture.context.stream(), shape(),
                                  {qkv.as<T>(), out.as<T>(), log_sum.as<float>()});
  }
  template <class T>
  void kernel_backward() {
    const Tensor delta = fixture.make(DType::float32, log_sum.shape);
    kernels::attention_backward<T>(fixture.context.stream(), shape(),
                                   {qkv.as<T>(), out.as<T>(), log_sum.as<float>(), dout.as<T>(),
                                    dqkv.as<T>(), delta.as<float>()});
  }

  Attention a;
  Implementation by;
  OpsFixture fixture;
  /// the shape, with its pointers in memory that kernels can read
  Attention placed = a;
  Tensor qkv, dout, out, log_sum, dqkv;
};

std::string name_of(const Attention& a, Implementation by = Implementation::op) {
  return fmt::format("{}{} {} batch {} context {} heads {}/{} width {} dropout {}",
                     by == Implementation::kernel ? "kernel, " : "", to_string(a.dtype),
                     a.mask == AttentionMask::causal ? "causal" : "no mask", a.batch, a.context,
                     a.heads, a.kv_heads, a.head_width, a.dropout);
}

std::vector<Attention> cases() {
  std::vector<Attention> all;
  for (const DType dtype : compute_types) {
    for (const float dropout : {0.0f, 0.2f}) {
      const auto add = [&](std::int64_t batch, std::int64_t context, std::int64_t heads,
                           std::int64_t kv_heads, std::int64_t head_width) {
        all.push_back({batch, context, heads, kv_heads, head_width, dtype, dropout, 0xABCDEF,
                       sample_keys, 0});
      };
      add(1, 1, 1, 1, 1);
      add(2, 3, 2, 1, 5);
      add(1, 64, 1, 1, 64);  // one tile
      add(1, 65, 2, 2, 16);  // a tile and a row
      add(2, 97, 4, 2, 24);  // odd, grouped
      // even, not a multiple of four; one key/value head for all
      add(1, 130, 3, 1, 80);
      add(1, 331, 2, 2, 8);   // more than one block of tiles
      add(2, 256, 2, 2, 64);  // GPT-2's head
      add(1, 100, 1, 1, 128);
    }
  }
  all.back().first_head = 5;
  for (std::size_t i = 0, count = all.size(); i < count; ++i) {
    all.push_back(all[i]);
    all.back().mask = AttentionMask::none;
  }
  return all;
}

// Values rounded to the tensors' type count twice its unit: the result and, in bfloat16 products,
// the probabilities as an operand.
// float32 sums have some dozens of terms of order one, or their means. Scores of standard normal
// vectors, divided by the root of their width, are standard normal.
double tolerance(const Attention& a) { return 2 * unit_roundoff(a.dtype) + 64 * 0x1p-24; }

TEST(Attention, ForwardEqualsTheDefinition) {
  for (const Attention& a : cases()) {
    const Reference::Forward expected = Reference(a).forward(values(AttentionFixture(a).qkv));
    const double keep = 1 / (1 - static_cast<double>(a.dropout));
    for (const Implementation by : both) {
      AttentionFixture p(a, by);
      p.forward();
      expect_close(p.out, expected.out, tolerance(a) * keep, tolerance(a), name_of(a, by));
      expect_close(p.log_sum, expected.log_sum, 0x1p-24 * (64 + static_cast<double>(a.head_width)),
                   // log_sum is float32 in all cases.
                   0x1p-22, name_of(a, by));
    }
  }
}

// The last queries alone: earlier keys and values are in the cache, the others are appended to it.
TEST(Attention, LaterQueriesReadTheCache) {
  for (const Attention& whole : cases()) {
    if (whole.batch > 1 || whole.dropout > 0 || whole.context < 2) continue;
    for (const std::int64_t first : {whole.context - 1, whole.context / 2}) {
      Attention a = whole;
      a.first_query = first;
      AttentionFixture p(whole);
      const Reference::Forward expected = Reference(whole).forward(values(p.qkv));
      // 1. A cache with the keys and values before the first query; the row behind the last
      //    position must stay as it is.
      const Tensor cache = p.fixture.make(a.dtype, {a.context + 1, a.keys_values_width()});
      const Values qkv = values(p.qkv);
      Values filled(cache.elements(), 7.0);
      for (std::int64_t t = 0; t < a.context; ++t) {
        for (std::int64_t i = 0; t < first && i < a.keys_values_width(); ++i)
          filled[t * a.keys_values_width() + i] = qkv[t * a.qkv_width() + a.out_width() + i];
      }
      const auto rows = [&](const Tensor& tensor) { return tensor.rows(first, a.context); };
      const Tensor log_sum = p.fixture.make(DType::float32, {a.heads, a.queries()});
      Values expected_log_sum;
      for (std::int64_t h = 0; h < a.heads; ++h) {
        for (std::int64_t q = first; q < a.context; ++q)
          expected_log_sum.push_back(expected.log_sum[h * a.context + q]);
      }
      for (const Implementation by : both) {
        // 2. The op appends; the kernel finds the rows there.
        if (by == Implementation::op) {
          assign(cache, filled);
          attention_forward(p.fixture.context, a, rows(p.qkv), cache, rows(p.out), log_sum);
        } else {
          p.a.first_query = first;
          ops::with_element_type(a.dtype, [&]<class T>(T) {
            kernels::attention_forward<T>(
                p.fixture.context.stream(), p.shape(),
                {rows(p.qkv).as<T>(), rows(p.out).as<T>(), log_sum.as<float>(), cache.as<T>()});
          });
        }
        const Values out(expected.out.begin() + first * a.out_width(), expected.out.end());
        expect_close(rows(p.out), out, tolerance(a), tolerance(a), name_of(a, by));
        expect_close(log_sum, expected_log_sum, 0x1p-24 * (64 + static_cast<double>(a.head_width)),
                     0x1p-22, name_of(a, by));
      }
      // 3. All positions are in the cache now.
      const Values after = values(cache);
      for (std::int64_t t = 0; t < a.context; ++t) {
        for (std::int64_t i = 0; i < a.keys_values_width(); ++i)
          ASSERT_EQ(after[t * a.keys_values_width() + i],
                    qkv[t * a.qkv_width() + a.out_width() + i]);
      }
      for (std::int64_t i = a.context * a.keys_values_width(); i < cache.elements(); ++i)
        ASSERT_EQ(after[i], 7.0);
    }
  }
}

TEST(Attention, BackwardIsTheGradient) {
  for (const Attention& a : cases()) {
    AttentionFixture problem(a);
    const Values expected = Reference(a).backward(values(problem.qkv), values(problem.dout));
    // Errors of the terms are independent, so their sum grows with the root of the number of terms,
    // as the gradient itself does.
    const double size = std::sqrt(dot(expected, expected) / static_cast<double>(expected.size()));
    for (const Implementation by : both) {
      AttentionFixture p(a, by);
      p.forward();
      p.backward();
      expect_close(p.dqkv, expected, 4 * tolerance(a) * (1 + size), 4 * tolerance(a),
                   name_of(a, by));
    }
  }
}

// Two positions, scores 0 and -1 of the second query. In products with bfloat16 operands its
// probabilities are rounded, so that sums with the negative of a rounded probability are exactly 0.
// Products in float32 leave the rounding error, about 5e-4.
TEST(Attention, Bfloat16OperandsAreUsedIfTheProcessorMultipliesThem) {
  if (tested_device() != DeviceKind::cpu) GTEST_SKIP() << "products of the CPU";
#if defined(__x86_64__)
  if (std::string_view(TRIREME_CPU_ARCH) != "native") GTEST_SKIP() << TRIREME_CPU_ARCH;
  AttentionFixture p({1, 2, 1, 1, 1, DType::bfloat16});
  const double second = std::exp(-1.0), first = 1 / (1 + second);  // first: after division
  const auto rounded = [](double x) {
    return static_cast<double>(to_float(from_float<BFloat16>(static_cast<float>(x))));
  };
  // q, k, v of each position
  assign(p.qkv, {1, 0, -rounded(second), 1, -1, 1});
  assign(p.dout, {-rounded(first), 1});
  p.forward();
  p.backward();
  const bool exact = __builtin_cpu_supports("avx512bf16") != 0;
  const double out = values(p.out)[1], dv = values(p.dqkv)[2];
  EXPECT_NEAR(out, exact ? 0 : (second - rounded(second)) * first, exact ? 0 : 1e-5);
  EXPECT_NEAR(dv, exact ? 0 : first - rounded(first), exact ? 0 : 1e-5);
#else
  GTEST_SKIP() << "not an x86 processor";
#endif
}

TEST(Attention, ReferenceGradientAgreesWithFiniteDifferences) {
  for (const Attention& a : cases()) {
    if (a.dtype != DType::float32 || a.context > 100) continue;
    AttentionFixture p(a);
    const Reference reference(a);
    const Values qkv = values(p.qkv), dout = values(p.dout),
                 v = values(p.fixture.random(DType::float32, p.qkv.shape, "direction"));
    const Values gradient = reference.backward(qkv, dout);
    const double expected = directional_derivative(
        [&](const Values& x) { return dot(reference.forward(x).out, dout); }, qkv, v);
    // step 1e-5, squared
    EXPECT_NEAR(dot(gradient, v), expected, 1e-7 * (1 + dot(magnitudes(gradient), magnitudes(v))))
        << name_of(a);
  }
}

TEST(Attention, LargeScoresDoNotOverflow) {
  for (const DType dtype : compute_types) {
    const Attention a{1, 70, 1, 1, 64, dtype};
    for (const Implementation by : both) {
      // scores of thousands
      AttentionFixture p(a, by, tested_device(), 40);
      p.forward();
      p.backward();
      for (const Tensor& t : {p.out, p.log_sum, p.dqkv}) {
        for (const double x : values(t)) ASSERT_TRUE(std::isfinite(x)) << name_of(a, by);
      }
    }
  }
}

TEST(Attention, ACausalPositionSeesNothingThatComesAfterIt) {
  for (const DType dtype : compute_types) {
    const Attention a{1, 150, 2, 1, 32, dtype};
    for (const Implementation by : both) {
      AttentionFixture p(a, by), changed(a, by);
      constexpr std::int64_t position = 77;
      Values later = values(p.qkv);
      for (std::int64_t i = position * a.qkv_width(); i < p.qkv.elements(); ++i) later[i] *= -3;
      assign(changed.qkv, later);
      p.forward();
      changed.forward();
      expect_same_bytes(p.out.rows(0, position), changed.out.rows(0, position));
      EXPECT_NE(values(p.out.rows(position, position + 1)),
                values(changed.out.rows(position, position + 1)));
    }
  }
}

// All positions have the same query, and the last key is far larger than others: each row is the
// last value.
TEST(Attention, WithoutAMaskEachPositionSeesTheLastOne) {
  for (const DType dtype : compute_types) {
    Attention a{1, 150, 1, 1, 32, dtype};
    a.mask = AttentionMask::none;
    for (const Implementation by : both) {
      AttentionFixture p(a, by);
      Values qkv = values(p.qkv);
      const std::int64_t last = (a.context - 1) * a.qkv_width();
      for (std::int64_t t = 0; t < a.context; ++t)
        std::fill_n(qkv.begin() + t * a.qkv_width(), a.head_width, 1.0);
      std::fill_n(qkv.begin() + last + a.head_width, a.head_width, 64.0);
      assign(p.qkv, qkv);
      p.forward();
      Values expected(p.out.elements());
      for (std::int64_t i = 0; i < p.out.elements(); ++i)
        expected[i] = qkv[last + 2 * a.head_width + i % a.head_width];
      expect_close(p.out, expected, 0, tolerance(a), name_of(a, by));
    }
  }
}

TEST(Attention, APartOfTheHeadsComputesAsTheWhole) {
  for (const DType dtype : compute_types) {
    const Attention whole{2, 75, 4, 2, 16, dtype, 0.3f, 99, sample_keys, 0};
    Attention part = whole;
    part.heads = 2;
    part.kv_heads = 1;
    part.first_head = 2;
    AttentionFixture w(whole), p(part);
    const Reference all(whole), some(part);
    const auto move =
        // Heads 2 and 3 of the whole, with their key/value head 1.
        [&](const Tensor& from, const Tensor& to, const auto& index) {
          const Values source = values(from);
          Values moved = values(to);
          for (std::int64_t b = 0; b < whole.batch; ++b) {
            for (std::int64_t t = 0; t < whole.context; ++t) {
              for (std::int64_t h = 0; h < 2; ++h) {
                const auto [to_at, from_at] = index(b, h, t);
                for (std::int64_t d = 0; d < whole.head_width; ++d)
                  moved[to_at + d] = source[from_at + d];
              }
            }
          }
          assign(to, moved);
        };
    move(w.qkv, p.qkv, [&](auto b, auto h, auto t) {
      return std::pair(some.q_at(b, h, t), all.q_at(b, h + 2, t));
    });
    move(w.qkv, p.qkv, [&](auto b, auto h, auto t) {
      return std::pair(some.k_at(b, h, t), all.k_at(b, h + 2, t));
    });
    move(w.qkv, p.qkv, [&](auto b, auto h, auto t) {
      return std::pair(some.v_at(b, h, t), all.v_at(b, h + 2, t));
    });
    w.forward();
    p.forward();
    const Tensor expected = p.fixture.make(dtype, p.out.shape);
    move(w.out, expected, [&](auto b, auto h, auto t) {
      return std::pair(some.out_at(b, h, t), all.out_at(b, h + 2, t));
    });
    expect_same_bytes(p.out, expected);
  }
}

TEST(Attention, SameBitsOnAnyNumberOfThreads) {
  for (const Attention& a : cases()) {
    const auto fixture = [&] {
      return AttentionFixture(a, Implementation::op, tested_device(), 1, SumOrder::fixed);
    };
    AttentionFixture many = fixture(), one = fixture();
    many.forward();
    many.backward();
    on_one_thread([&] {
      one.forward();
      one.backward();
    });
    expect_same_bytes(many.out, one.out, name_of(a));
    expect_same_bytes(many.log_sum, one.log_sum, name_of(a));
    expect_same_bytes(many.dqkv, one.dqkv, name_of(a));
  }
}

/// Returns the number of multiply-adds of one product, counted pair by pair.
double counted_products(const Attention& a) {
  double count = 0;
  for (std::int64_t q = a.first_query; q < a.context; ++q)
    for (std::int64_t k = 0; k < a.context; ++k)
      if (a.mask == AttentionMask::none || k <= q) count += static_cast<double>(a.head_width);
  return count * static_cast<double>(a.batch * a.heads);
}

TEST(Attention, WorkIsThatOfThePairsThatSeeEachOther) {
  for (Attention a : cases()) {
    AttentionFixture p(a, Implementation::op, DeviceKind::meta);
    const ops::Counters& counters = p.fixture.context.counters();
    const auto bytes = [](const Tensor& t) { return static_cast<double>(t.bytes()); };
    p.forward();
    EXPECT_EQ(counters.flops, 2 * 2 * counted_products(a)) << name_of(a);
    EXPECT_EQ(counters.bytes, bytes(p.qkv) + bytes(p.out) + bytes(p.log_sum)) << name_of(a);
    p.fixture.context.counters() = {};
    p.backward();
    EXPECT_EQ(counters.flops, 2 * 5 * counted_products(a)) << name_of(a);
    EXPECT_EQ(counters.bytes, 2 * bytes(p.qkv) + 2 * bytes(p.out) + bytes(p.log_sum)) << name_of(a);
    a.first_query = a.context / 2;
    EXPECT_EQ(a.flops(), 2 * 2 * counted_products(a)) << name_of(a);
  }
}

TEST(Attention, MetaTakesTheMemoryAndCountsTheWorkOfTheReal) {
  for (const Attention& a : cases()) {
    AttentionFixture real(a), meta(a, Implementation::op, DeviceKind::meta);
    for (AttentionFixture* p : {&real, &meta}) {
      p->forward();
      p->backward();
    }
    EXPECT_EQ(meta.fixture.workspace.peak_bytes(), real.fixture.workspace.peak_bytes())
        << name_of(a);
    EXPECT_GT(meta.fixture.workspace.peak_bytes(), 0);
    EXPECT_EQ(meta.fixture.context.counters().flops, 3.5 * a.flops());
    EXPECT_EQ(meta.fixture.context.counters().bytes, real.fixture.context.counters().bytes);
    EXPECT_EQ(real.fixture.workspace.used_bytes(), 0);
  }
}

}  // namespace
}  // namespace trireme::test
