// SPDX-License-Identifier: Apache-2.0
//
// Periodic borders and upsampling against loops over the pixels of the larger image: every element
// at its place, gradients as sums of the copies, an added gradient, and the bytes that meta counts.
#include "trireme/ops/pixel_copies.hpp"

#include <functional>

#include <fmt/format.h>

#include "reference.hpp"

namespace trireme {
namespace {

using ops::Padding;
using namespace test;

/// The sources of the rows and columns of a larger image. The factor is 0 for periodic borders.
struct Case {
  Shape input;
  Padding padding = 0;
  std::int64_t factor = 0;

  Shape output() const {
    const auto extent = [this](std::int64_t size) {
      return factor > 0 ? factor * size : size + padding.sum();
    };
    return {input[0], extent(input[1]), extent(input[2]), input[3]};
  }
  std::int64_t source(std::int64_t place, std::int64_t size) const {
    return factor > 0 ? place / factor : (place - padding.before + 2 * size) % size;
  }
  /// Calls visit(larger, smaller) with flat indices for every element of the larger image.
  void for_each_copy(const std::function<void(std::int64_t, std::int64_t)>& visit) const {
    const Shape all = output();
    std::int64_t number = 0;
    for (std::int64_t b = 0; b < all[0]; ++b)
      for (std::int64_t i = 0; i < all[1]; ++i)
        for (std::int64_t j = 0; j < all[2]; ++j)
          for (std::int64_t c = 0; c < all[3]; ++c)
            visit(
                number++,
                ((b * input[1] + source(i, input[1])) * input[2] + source(j, input[2])) * input[3] +
                    c);
  }
  void forward(ops::Context& context, const Tensor& x, const Tensor& y) const {
    factor > 0 ? upsample_forward(context, factor, x, y)
               : periodic_pad_forward(context, padding, x, y);
  }
  void backward(ops::Context& context, const Tensor& dy, const Tensor& dx) const {
    factor > 0 ? upsample_backward(context, factor, dy, dx)
               : periodic_pad_backward(context, padding, dy, {}, dx);
  }
  std::string name(DType dtype) const {
    return fmt::format("{} {} padding {} {} factor {}", to_string(dtype), to_string(input),
                       padding.before, padding.after, factor);
  }
};

// One pixel, odd extents, channels of packs and others, more than the host adds at once, borders as
// large as the image, on one side, and none.
const Case cases[] = {{{1, 1, 1, 1}, 1},     {{2, 5, 7, 3}, 2},        {{2, 3, 4, 8}, 3},
                      {{3, 4, 6, 16}, 1},    {{1, 7, 5, 131}, {0, 1}}, {{2, 6, 5, 24}, {5, 2}},
                      {{2, 3, 3, 5}, 0},     {{1, 1, 1, 1}, 0, 2},     {{2, 5, 3, 7}, 0, 3},
                      {{2, 4, 6, 16}, 0, 2}, {{1, 3, 2, 136}, 0, 5},   {{2, 3, 4, 8}, 0, 1}};

TEST(PixelCopies, EachPixelIsItsSource) {
  for (const DType dtype : compute_types) {
    for (const Case& c : cases) {
      OpsFixture f;
      const Tensor x = f.random(dtype, c.input, "x"), y = f.filled(dtype, c.output(), 77);
      c.forward(f.context, x, y);
      const Values from = values(x);
      Values expected(y.elements());
      c.for_each_copy([&](auto to, auto source) { expected[to] = from[source]; });
      expect_close(y, expected, 0, 0, c.name(dtype));
    }
  }
}

/// Returns the sums of the copies of each pixel.
Values sums_of(const Case& c, const Values& dy) {
  Values sums(c.input.elements());
  c.for_each_copy([&](auto from, auto source) { sums[source] += dy[from]; });
  return sums;
}

// Largest number of copies of a pixel in the cases.
constexpr double max_copies = 25;

TEST(PixelCopies, GradientsAreSumsOfTheCopies) {
  for (const DType dtype : compute_types) {
    for (const Case& c : cases) {
      OpsFixture f;
      const Tensor dy = f.random(dtype, c.output(), "dy"), dx = f.filled(dtype, c.input, 77);
      c.backward(f.context, dy, dx);
      const Values from = values(dy), expected = sums_of(c, from);
      // One rounding to the type: the sums are made in float32.
      expect_within(dx, expected,
                    sum_bounds(expected, sums_of(c, magnitudes(from)), max_copies, dtype),
                    c.name(dtype));
    }
  }
}

TEST(PixelCopies, AnotherGradientIsAddedBeforeTheRounding) {
  for (const DType dtype : compute_types) {
    for (const Case& c : cases) {
      if (c.factor > 0) continue;
      OpsFixture f;
      const Tensor dy = f.random(dtype, c.output(), "dy"), dx = f.filled(dtype, c.input, 77),
                   addend = f.random(dtype, c.input, "addend");
      periodic_pad_backward(f.context, c.padding, dy, addend, dx);
      const Values from = values(dy), other = values(addend);
      Values expected = sums_of(c, from), scale = sums_of(c, magnitudes(from));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] += other[i];
        scale[i] += std::abs(other[i]);
      }
      expect_within(dx, expected, sum_bounds(expected, scale, max_copies + 1, dtype),
                    c.name(dtype));
    }
  }
}

TEST(PixelCopies, MetaCountsTheBytesOfTheReal) {
  for (const Case& c : cases) {
    OpsFixture real, meta(DeviceKind::meta);
    std::int64_t bytes = 0;
    for (OpsFixture* f : {&real, &meta}) {
      const Tensor x = f->random(DType::bfloat16, c.input, "x"),
                   y = f->make(DType::bfloat16, c.output());
      c.forward(f->context, x, y);
      c.backward(f->context, y, x);
      bytes = 2 * (x.bytes() + y.bytes());
    }
    EXPECT_EQ(meta.context.counters().bytes, real.context.counters().bytes);
    EXPECT_EQ(meta.context.counters().bytes, static_cast<double>(bytes));
    EXPECT_EQ(meta.context.counters().calls, 2);
  }
}

}  // namespace
}  // namespace trireme
