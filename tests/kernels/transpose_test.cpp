// SPDX-License-Identifier: Apache-2.0
//
// Transposed matrices: every element at its place, for sizes of one, odd and more than one tile.
#include "trireme/ops/transpose.hpp"

#include "reference.hpp"

namespace trireme {
namespace {

using namespace test;

TEST(Transpose, ExchangesRowsAndColumns) {
  for (const DType dtype : compute_types) {
    for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 1, 7}, Shape{2, 32, 32}, Shape{2, 33, 5},
                               Shape{3, 49, 100}, Shape{1, 64, 31}}) {
      OpsFixture f, meta(DeviceKind::meta);
      const Tensor x = f.random(dtype, shape, "x"),
                   y = f.filled(dtype, {shape[0], shape[2], shape[1]}, 77);
      ops::transpose(f.context, x, y);
      const Values from = values(x);
      Values expected(x.elements());
      for (std::int64_t b = 0; b < shape[0]; ++b)
        for (std::int64_t row = 0; row < shape[1]; ++row)
          for (std::int64_t column = 0; column < shape[2]; ++column)
            expected[(b * shape[2] + column) * shape[1] + row] =
                from[(b * shape[1] + row) * shape[2] + column];
      expect_close(y, expected, 0, 0, to_string(shape));
      ops::transpose(meta.context, meta.make(dtype, x.shape), meta.make(dtype, y.shape));
      EXPECT_EQ(meta.context.counters().bytes, f.context.counters().bytes);
    }
  }
}

}  // namespace
}  // namespace trireme
