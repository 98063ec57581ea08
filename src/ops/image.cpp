#include "trireme/ops/image.hpp"

#include <algorithm>

#include "raw_pointer.hpp"
#include "trireme/base/check.hpp"
#include "trireme/kernels/image.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {
namespace {

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
  args.erases_or_mixes = preparation.erases || preparation.mixes;
  args.x = x.as<std::uint8_t>();
  args.transforms = transforms;
  args.y = y.as<T>();
  kernels::prepare_images(context.stream(), args);
}

}  // namespace

void prepare_images(Context& context, const ImagePreparation& preparation, const Tensor& x,
                    const ImageTransform* transforms, const Tensor& y) {
  TRIREME_EXPECT(x.shape.rank() == 4 && y.shape.rank() == 4 && x.shape[0] == y.shape[0] &&
                 (y.shape[3] == x.shape[3] || y.shape[3] == padded_image_channels));
  TRIREME_EXPECT(x.dtype == DType::uint8 && is_compute_type(y.dtype));
  TRIREME_EXPECT(!preparation.mixes || x.shape[0] % 2 == 0);
  TRIREME_EXPECT(readable(context, transforms));
  validate(x.shape[3] >= 1 && x.shape[3] <= 4, "images of {} channels: 1 to 4 are supported",
           x.shape[3]);
  const std::int64_t reads = preparation.mixes ? 2 : 1;
  context.count(0, static_cast<double>(reads * x.bytes() + y.bytes()));
  if (context.meta()) return;
  with_element_type(y.dtype, [&]<class T>(T) { run<T>(context, preparation, x, transforms, y); });
}

}  // namespace trireme::ops
