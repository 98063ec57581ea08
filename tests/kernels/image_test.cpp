// Image preparation against a double-precision reference, for crops inside and outside of the
// stored image, mirrored or not.

#include "trireme/ops/image.hpp"

#include "kernels/reference.hpp"

#include "trireme/base/check.hpp"

namespace trireme::test {
namespace {

struct Case {
  std::int64_t height, width, channels, out_height, out_width, out_channels = channels;
};

void compare(const Case& c, DType dtype) {
  SCOPED_TRACE(testing::Message() << c.height << "x" << c.width << "x" << c.channels << " to "
                                  << c.out_height << "x" << c.out_width);
  OpsFixture f;
  // Crops inside, beyond each border, and completely outside; each mirrored and not.
  const std::vector<ops::ImageTransform> transforms = {{0, 0, 0},   {0, 0, 1},   {2, -3, 0},
                                                       {-4, 1, 1},  {1, 4, 1},   {3, 3, 0},
                                                       {100, 0, 0}, {0, -100, 1}};
  const std::int64_t batch = static_cast<std::int64_t>(transforms.size());
  const Tensor x = f.make(DType::uint8, {batch, c.height, c.width, c.channels}),
               y = f.make(dtype, {batch, c.out_height, c.out_width, c.out_channels});
  Values pixels(static_cast<std::size_t>(x.elements()));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<double>(mix64(i) % 256);
  assign(x, pixels);
  const ops::ImagePreparation preparation{{0.485f, 0.456f, 0.406f, 0.5f},
                                          {1 / 0.229f, 1 / 0.224f, 1 / 0.225f, 2.0f}};
  ops::prepare_images(f.context, preparation, x, f.placed(transforms), y);
  Values expected(static_cast<std::size_t>(y.elements()));
  std::size_t at = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    const ops::ImageTransform& t = transforms[static_cast<std::size_t>(b)];
    for (std::int64_t i = 0; i < c.out_height; ++i) {
      for (std::int64_t j = 0; j < c.out_width; ++j) {
        const std::int64_t row = i + t.row, column = (t.flip ? c.out_width - 1 - j : j) + t.column;
        const bool inside = row >= 0 && row < c.height && column >= 0 && column < c.width;
        for (std::int64_t k = 0; k < c.channels; ++k) {
          const double value =
              inside ? pixels[((b * c.height + row) * c.width + column) * c.channels + k] : 0;
          expected[at++] = (value / 255 - static_cast<double>(preparation.mean[k])) *
                           static_cast<double>(preparation.inverse_std[k]);
        }
        at += static_cast<std::size_t>(c.out_channels - c.channels);  // zeros
      }
    }
  }
  // Division, difference and product are each rounded once; the difference of numbers up to 1 is
  // multiplied by up to 5.
  expect_close(y, expected, 3 * 5 * 0x1p-24, unit_roundoff(dtype));
}

TEST(PrepareImages, EqualsReference) {
  for (const DType dtype : compute_types) {
    for (std::int64_t channels = 1; channels <= 4; ++channels) {
      compare({28, 28, channels, 28, 28}, dtype);
      compare({5, 37, channels, 5, 37}, dtype);
      compare({40, 41, channels, 32, 31}, dtype);
      compare({9, 7, channels, 13, 19}, dtype);
      compare({40, 41, channels, 32, 32}, dtype);
      compare({1, 1, channels, 1, 1}, dtype);
      compare({40, 41, channels, 32, 31, ops::padded_image_channels}, dtype);
      compare({9, 7, channels, 13, 19, ops::padded_image_channels}, dtype);
    }
  }
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

TEST(PrepareImages, FiveChannelsAreRefusedAndMetaCountsTheSame) {
  OpsFixture meta(DeviceKind::meta), real;
  const ops::ImageTransform none[2] = {};
  EXPECT_THROW(ops::prepare_images(meta.context, {}, meta.make(DType::uint8, {2, 4, 4, 5}), none,
                                   meta.make(DType::float32, {2, 4, 4, 5})),
               InputError);
  for (OpsFixture* f : {&meta, &real})
    ops::prepare_images(f->context, {}, f->filled(DType::uint8, {2, 4, 4, 3}, 1),
                        f->placed(none, 2), f->make(DType::float32, {2, 4, 4, 3}));
  EXPECT_EQ(meta.context.counters().bytes, real.context.counters().bytes);
}

}  // namespace
}  // namespace trireme::test
