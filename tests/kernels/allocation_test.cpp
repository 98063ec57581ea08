// SPDX-License-Identifier: Apache-2.0
//
// A steady step allocates nothing: operator new is counted while products, convolutions, attention
// and pooling run again.

#include "reference.hpp"
#include "support/count_allocations.hpp"
#include "trireme/ops/attention.hpp"
#include "trireme/ops/convolution.hpp"
#include "trireme/ops/linear.hpp"
#include "trireme/ops/pooling.hpp"

namespace trireme {
namespace {

using namespace test;
using ops::Write;

TEST(Allocation, SteadyCallsAllocateNothing) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's allocations would be counted as the program's";
#endif
  if (tested_device() == DeviceKind::emulated)
    GTEST_SKIP() << "the emulated device allocates for its own bookkeeping";
  for (const DType dtype : compute_types) {
    OpsFixture f;
    // In float32 by Winograd's algorithm, in bfloat16 by oneDNN.
    const ops::Convolution c{16, 8, 8, 32, 32, 3, 1, 1, dtype};
    const ops::Linear l{16, 32, 10, ops::MatrixOrder::out_in, dtype};
    const ops::Pooling m{16, 8, 8, 32, 3, 2, 1, dtype};
    const Tensor x = f.random(dtype, c.input_shape(), "x"),
                 w = f.random(dtype, c.weight_shape(), "w"), y = f.make(dtype, c.output_shape());
    const Tensor dx = f.make(dtype, c.input_shape()), dw = f.make(DType::float32, c.weight_shape());
    const Tensor pooled = f.make(dtype, m.output_shape()),
                 winners = f.make(DType::uint8, m.output_shape());
    const Tensor mean = f.make(dtype, {16, 32}), matrix = f.random(dtype, {10, 32}, "matrix"),
                 bias = f.random(DType::float32, {10}, "bias");
    const Tensor logits = f.make(dtype, {16, 10}), dmatrix = f.make(DType::float32, {10, 32}),
                 dbias = f.make(DType::float32, {10});
    // In 16 bits cuDNN has it.
    const ops::Attention a{2, 64, 4, 2, 16, dtype};
    const Tensor qkv = f.random(dtype, {2 * 64, a.qkv_width()}, "qkv"),
                 dqkv = f.make(dtype, qkv.shape), attended = f.make(dtype, {2 * 64, a.out_width()}),
                 log_sum = f.make(DType::float32, {2, 4, 64});
    ops::PreparedWeight of_w, of_matrix;

    const auto step = [&](std::uint64_t version) {
      convolution_forward(f.context, c, x, {w, version, &of_w}, y);
      average_pool_forward(f.context, 16, 64, 32, y, mean);
      linear_forward(f.context, l, mean, {matrix, version, &of_matrix}, bias, logits);
      for (const Write write : {Write::assign, Write::add}) {
        linear_backward_weight(f.context, l, mean, logits, dmatrix, dbias, write);
        convolution_backward_weight(f.context, c, x, y, dw, write);
      }
      linear_backward_data(f.context, l, logits, {matrix, version, &of_matrix}, mean);
      average_pool_backward(f.context, 16, 64, 32, mean, y);
      convolution_backward_data(f.context, c, y, {w, version, &of_w}, x, dx);
      attention_forward(f.context, a, qkv, attended, log_sum);
      attention_backward(f.context, a, qkv, attended, log_sum, attended, dqkv);
      max_pool_forward(f.context, m, x, pooled, winners);
      max_pool_backward(f.context, m, pooled, winners, dx);
    };
    step(1);
    step(2);
    const std::int64_t before = allocations_so_far();
    EXPECT_GT(before, 0) << "the counter sees this program's allocations";
    for (std::uint64_t version = 3; version < 8; ++version) step(version);
    EXPECT_EQ(allocations_so_far() - before, 0) << to_string(dtype);
  }
}

}  // namespace
}  // namespace trireme
