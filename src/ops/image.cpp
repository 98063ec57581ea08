// SPDX-License-Identifier: Apache-2.0
#include "trireme/ops/image.hpp"

#include <algorithm>

#include "ops/dispatch/raw_pointer.hpp"
#include "trireme/base/check.hpp"
#include "trireme/kernels/image/image.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {
namespace {

kernels::PixelType pixel_type_of(DType dtype) {
  switch (dtype) {
    case DType::uint8: return kernels::PixelType::uint8;
    case DType::uint16: return kernels::PixelType::uint16;
    case DType::float16: return kernels::PixelType::float16;
    default: TRIREME_EXPECT(dtype == DType::float32); return kernels::PixelType::float32;
  }
}

template <class T>
void run(Context& context, const ImagePreparation& preparation, const Tensor& x,
         const ImageTransform* transforms, const Tensor& y) {
  kernels::PrepareImages<T> args;
  args.batch = x.shape[0];
  args.channels = x.shape[3];
  args.written_channels = y.shape[3];
  args.stored_height = x.shape[1];
  args.stored_width = x.shape[2];
  args.height = y.shape[1];
  args.width = y.shape[2];
  std::copy(std::begin(preparation.mean), std::end(preparation.mean), args.mean);
  std::copy(std::begin(preparation.inverse_std), std::end(preparation.inverse_std),
            args.inverse_std);
  if (preparation.statistics.defined()) args.statistics = preparation.statistics.as<float>();
  args.erases_or_mixes = preparation.erases || preparation.mixes;
  args.pixel_type = pixel_type_of(x.dtype);
  args.x = x.data;
  args.transforms = transforms;
  args.y = y.as<T>();
  kernels::prepare_images(context.stream(), args);
}

}  // namespace

void prepare_images(Context& context, const ImagePreparation& preparation, const Tensor& x,
                    const ImageTransform* transforms, const Tensor& y) {
  TRIREME_EXPECT(x.shape.rank() == 4 && y.shape.rank() == 4 && x.shape[0] == y.shape[0] &&
                 (y.shape[3] == x.shape[3] || y.shape[3] == padded_image_channels));
  TRIREME_EXPECT(is_compute_type(y.dtype));
  TRIREME_EXPECT(!preparation.statistics.defined() ||
                 (preparation.statistics.dtype == DType::float32 &&
                  preparation.statistics.elements() == 2 * x.shape[3] &&
                  x.shape[3] > max_inline_channels));
  TRIREME_EXPECT(!preparation.mixes || x.shape[0] % 2 == 0);
  TRIREME_EXPECT(readable(context, transforms));
  const std::int64_t reads = preparation.mixes ? 2 : 1;
  if (context.counts_only("prepare_images", reads * x.bytes() + y.bytes())) return;
  with_element_type(y.dtype, [&]<class T>(T) { run<T>(context, preparation, x, transforms, y); });
}

}  // namespace trireme::ops
