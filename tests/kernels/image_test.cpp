// SPDX-License-Identifier: Apache-2.0
//
// Image preparation against a double-precision reference, for crops inside and outside of the
// stored image, mirrored or not, erased or not, and mixed in pairs.

#include "trireme/ops/image.hpp"

#include "reference.hpp"

#include "trireme/base/check.hpp"

namespace trireme::test {
namespace {

struct Case {
  std::int64_t height, width, channels, out_height, out_width, out_channels = channels;
  DType pixel_type = DType::uint8;
};

/// Returns the number that stored integers are divided by.
double divisor_of(DType pixel_type) {
  return pixel_type == DType::uint8 ? 255 : pixel_type == DType::uint16 ? 65535 : 1;
}

/// Fills x with random pixels and returns them: all integers of the type, or numbers from -2 to 2.
Values fill_pixels(const Tensor& x) {
  Values pixels(static_cast<std::size_t>(x.elements()));
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    const double divisor = divisor_of(x.dtype), number = static_cast<double>(mix64(i) % 65536);
    pixels[i] = divisor == 1     ? number / 16384 - 2
                : divisor == 255 ? std::floor(number / 256)
                                 : number;
  }
  assign(x, pixels);
  return values(x);
}

/// Crops inside, beyond each border, and completely outside; each mirrored and not.
const std::vector<ops::ImageTransform> crops = {{0, 0, 0}, {0, 0, 1}, {2, -3, 0},  {-4, 1, 1},
                                                {1, 4, 1}, {3, 3, 0}, {100, 0, 0}, {0, -100, 1}};

/// Returns the crops with pixels to erase and a mix, for images of the model's extents.
std::vector<ops::ImageTransform> mixed_crops(std::int64_t height, std::int64_t width) {
  const auto part = [](std::int64_t extent, std::size_t eighths) {
    return static_cast<std::uint16_t>(extent * static_cast<std::int64_t>(eighths) / 8);
  };
  std::vector<ops::ImageTransform> transforms = crops;
  for (std::size_t b = 0; b < transforms.size(); ++b) {
    ops::ImageTransform& t = transforms[b];
    // Rectangles at each border, inside, and of no pixels.
    t.erased = {part(height, b % 4), part(height, b % 4 + b), part(width, b % 3),
                part(width, b % 3 + 5)};
    t.pasted = {part(height, 2 + b % 2), part(height, 8 - b), part(width, b % 5),
                part(width, 5 + b % 4)};
    if (b == 3) t.pasted = {0, part(height, 8), 0, part(width, 8)};
    t.mix = b == 0 ? ops::Mix::none : b % 2 == 1 ? ops::Mix::cutmix : ops::Mix::mixup;
    t.weight = static_cast<float>(b) / 7;
  }
  return transforms;
}

bool contains(const ops::PixelRange& range, std::int64_t row, std::int64_t column) {
  return row >= range.top && row < range.bottom && column >= range.left && column < range.right;
}

void compare(const Case& c, DType dtype, bool mixes = false) {
  SCOPED_TRACE(testing::Message() << c.height << "x" << c.width << "x" << c.channels << " to "
                                  << c.out_height << "x" << c.out_width << to_string(dtype));
  OpsFixture f;
  const std::vector<ops::ImageTransform> transforms =
      mixes ? mixed_crops(c.out_height, c.out_width) : crops;
  const std::int64_t batch = static_cast<std::int64_t>(transforms.size());
  const Tensor x = f.make(c.pixel_type, {batch, c.height, c.width, c.channels}),
               y = f.make(dtype, {batch, c.out_height, c.out_width, c.out_channels});
  const Values pixels = fill_pixels(x);
  ops::ImagePreparation preparation{.mean = {0.485f, 0.456f, 0.406f, 0.5f},
                                    .inverse_std = {1 / 0.229f, 1 / 0.224f, 1 / 0.225f, 2.0f},
                                    .erases = mixes,
                                    .mixes = mixes};
  Values statistics(static_cast<std::size_t>(2 * c.channels));
  if (c.channels > ops::max_inline_channels) {
    for (std::int64_t k = 0; k < 2 * c.channels; ++k)
      statistics[k] = static_cast<double>(k % c.channels) / 256 + (k < c.channels ? 0 : 0.5);
    preparation.statistics = f.make(DType::float32, {2, c.channels});
    assign(preparation.statistics, statistics);
  }
  const auto mean_of = [&](std::int64_t k) {
    return c.channels > ops::max_inline_channels ? statistics[k]
                                                 : static_cast<double>(preparation.mean[k]);
  };
  const auto scale_of = [&](std::int64_t k) {
    return c.channels > ops::max_inline_channels ? statistics[c.channels + k]
                                                 : static_cast<double>(preparation.inverse_std[k]);
  };
  const double divisor = divisor_of(c.pixel_type);
  ops::prepare_images(f.context, preparation, x, f.placed(transforms), y);
  const auto prepared = [&](std::int64_t b, std::int64_t i, std::int64_t j, std::int64_t k) {
    const ops::ImageTransform& t = transforms[static_cast<std::size_t>(b)];
    const std::int64_t row = i + t.row, column = (t.flip ? c.out_width - 1 - j : j) + t.column;
    const bool inside = row >= 0 && row < c.height && column >= 0 && column < c.width;
    const double value =
        inside ? pixels[((b * c.height + row) * c.width + column) * c.channels + k] : 0;
    const bool is_mean = !inside && divisor == 1;  // of numbers that are no integers
    return contains(t.erased, i, j) || is_mean ? 0 : (value / divisor - mean_of(k)) * scale_of(k);
  };
  Values expected(static_cast<std::size_t>(y.elements())), bounds(expected.size());
  std::size_t at = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    const ops::ImageTransform& t = transforms[static_cast<std::size_t>(b)];
    for (std::int64_t i = 0; i < c.out_height; ++i) {
      for (std::int64_t j = 0; j < c.out_width; ++j) {
        const double weight = t.mix == ops::Mix::mixup                                ? t.weight
                              : t.mix == ops::Mix::cutmix && contains(t.pasted, i, j) ? 0
                                                                                      : 1;
        for (std::int64_t k = 0; k < c.channels; ++k, ++at) {
          const double own = weight * prepared(b, i, j, k),
                       other = (1 - weight) * prepared(b ^ 1, i, j, k);
          expected[at] = own + other;
          // Division, difference and product are each rounded once; the difference, at most 2.5, is
          // multiplied by up to 5. Then both images are rounded, and so is a mix of them.
          const double magnitude = std::abs(own) + std::abs(other);
          bounds[at] =
              3 * (divisor == 1 ? 2.5 : 1) * 5 * 0x1p-24 + unit_roundoff(dtype) * magnitude;
          if (t.mix == ops::Mix::mixup)
            bounds[at] += 2 * 0x1p-24 * magnitude + unit_roundoff(dtype) * std::abs(expected[at]) +
                          2 * absolute_roundoff(dtype);
        }
        at += static_cast<std::size_t>(c.out_channels - c.channels);  // zeros
      }
    }
  }
  expect_within(y, expected, bounds);
}

void compare_all(bool mixes) {
  for (const DType dtype : compute_types) {
    for (std::int64_t channels = 1; channels <= 4; ++channels) {
      compare({28, 28, channels, 28, 28}, dtype, mixes);
      compare({5, 37, channels, 5, 37}, dtype, mixes);
      compare({40, 41, channels, 32, 31}, dtype, mixes);
      compare({9, 7, channels, 13, 19}, dtype, mixes);
      compare({40, 41, channels, 32, 32}, dtype, mixes);
      compare({1, 1, channels, 1, 1}, dtype, mixes);
      compare({40, 41, channels, 32, 31, ops::padded_image_channels}, dtype, mixes);
      compare({9, 7, channels, 13, 19, ops::padded_image_channels}, dtype, mixes);
    }
  }
}

TEST(PrepareImages, EqualsReference) { compare_all(false); }

TEST(PrepareImages, ErasedAndMixedEqualsReference) { compare_all(true); }

/// A row that is neither erased nor mixed has the bits of the kernel without both. A pasted pixel
/// has those of the partner. The batch is odd without mixing.
TEST(PrepareImages, ErasingAndMixingChangeNoOtherBit) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t written : {std::int64_t{3}, ops::padded_image_channels}) {
      OpsFixture f;
      constexpr std::int64_t batch = 5, side = 19;
      const Tensor x = f.make(DType::uint8, {batch, side, side, 3});
      Values pixels(static_cast<std::size_t>(x.elements()));
      for (std::size_t i = 0; i < pixels.size(); ++i)
        pixels[i] = static_cast<double>(mix64(i) % 256);
      assign(x, pixels);
      ops::ImagePreparation preparation{{0.485f, 0.456f, 0.406f}, {4.3f, 4.4f, 4.5f}};
      std::vector<ops::ImageTransform> transforms(crops.begin(), crops.begin() + batch);
      const Tensor plain = f.make(dtype, {batch, side, side, written}),
                   same = f.make(dtype, plain.shape),
                   pasted = f.make(dtype, {4, side, side, written});
      ops::prepare_images(f.context, preparation, x, f.placed(transforms), plain);
      preparation.erases = true;
      ops::prepare_images(f.context, preparation, x, f.placed(transforms), same);
      expect_same_bytes(plain, same);
      preparation.mixes = true;
      for (ops::ImageTransform& t : transforms) {
        t.mix = ops::Mix::cutmix;
        t.pasted = {0, side, 0, side};
      }
      ops::prepare_images(f.context, preparation, x.rows(0, 4), f.placed(transforms), pasted);
      for (std::int64_t row = 0; row < 4; ++row)
        expect_same_bytes(pasted.rows(row, row + 1), plain.rows(row ^ 1, (row ^ 1) + 1));
    }
  }
}

TEST(PrepareImages, EveryPixelTypeAndManyChannelsEqualReference) {
  for (const DType dtype : compute_types) {
    for (const DType pixels : {DType::uint8, DType::uint16, DType::float16, DType::float32}) {
      for (const bool mixes : {false, true}) {
        compare({9, 7, 1, 13, 19, 1, pixels}, dtype, mixes);
        compare({9, 7, 3, 13, 19, 3, pixels}, dtype, mixes);
        compare({40, 41, 3, 32, 31, ops::padded_image_channels, pixels}, dtype, mixes);
        compare({9, 7, 5, 13, 19, 5, pixels}, dtype, mixes);
        compare({9, 7, 5, 13, 19, ops::padded_image_channels, pixels}, dtype, mixes);
        compare({6, 5, 130, 6, 5, 130, pixels}, dtype, mixes);
      }
    }
  }
}

TEST(PrepareImages, ManyChannelsWithoutStatisticsAreOnlyScaled) {
  OpsFixture f;
  const Tensor x = f.make(DType::uint16, {1, 2, 3, 9}), y = f.make(DType::float32, x.shape);
  Values expected = fill_pixels(x);
  for (double& value : expected) value /= 65535;
  const ops::ImageTransform none{};
  ops::prepare_images(f.context, {}, x, f.placed(&none, 1), y);
  expect_close(y, expected, 0x1p-25, 0x1p-24);
}

TEST(PrepareImages, MirroredTwiceIsTheSame) {
  OpsFixture f;
  const Tensor x = f.make(DType::uint8, {1, 3, 20, 1}), y = f.make(DType::float32, {1, 3, 20, 1}),
               z = f.make(DType::float32, {1, 3, 20, 1});
  Values count(60);
  for (std::size_t i = 0; i < count.size(); ++i) count[i] = static_cast<double>(i);
  assign(x, count);
  const ops::ImagePreparation plain{{0, 0, 0, 0}, {255, 255, 255, 255}};
  const ops::ImageTransform mirrored{0, 0, 1}, *const flip = f.placed(&mirrored, 1);
  ops::prepare_images(f.context, plain, x, flip, y);
  Values once = values(y);
  for (double& value : once) value = std::round(value);
  assign(x, once);
  ops::prepare_images(f.context, plain, x, flip, z);
  expect_close(z, count, 1e-5);
}

TEST(PrepareImages, MetaCountsTheSame) {
  OpsFixture meta(DeviceKind::meta), real;
  const ops::ImageTransform none[2] = {};
  for (OpsFixture* f : {&meta, &real})
    ops::prepare_images(f->context, {}, f->filled(DType::uint8, {2, 4, 4, 3}, 1),
                        f->placed(none, 2), f->make(DType::float32, {2, 4, 4, 3}));
  EXPECT_EQ(meta.context.counters().bytes, real.context.counters().bytes);
  // A mix reads the partner's bytes too.
  ops::prepare_images(meta.context, {.mixes = true}, meta.make(DType::uint8, {2, 4, 4, 3}), none,
                      meta.make(DType::float32, {2, 4, 4, 3}));
  EXPECT_EQ(meta.context.counters().bytes, 2 * real.context.counters().bytes + 2 * 4 * 4 * 3);
}

}  // namespace
}  // namespace trireme::test
