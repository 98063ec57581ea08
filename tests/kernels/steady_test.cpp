// SPDX-License-Identifier: Apache-2.0
//
// A steady step allocates nothing: the program's operator new is counted while the ops of
// convolution networks and of transformers run a second time.
// Each op runs once before, so that caches, workspaces and execution spaces exist.
// allocation_test.cpp covers the ops that call oneDNN.

#include "reference.hpp"
#include "support/count_allocations.hpp"
#include "trireme/ops/activation.hpp"
#include "trireme/ops/attention.hpp"
#include "trireme/ops/dropout.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/embedding.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/ops/loss.hpp"
#include "trireme/ops/normalization.hpp"
#include "trireme/ops/rotary.hpp"
#include "trireme/ops/row_norm.hpp"
#include "trireme/ops/softmax_loss.hpp"
#include "trireme/ops/update/step_decision.hpp"
#include "trireme/ops/update/update.hpp"

namespace trireme::test {
namespace {

TEST(Steady, OpsAllocateNothing) {
  if (tested_device() == DeviceKind::emulated)
    GTEST_SKIP() << "the emulated device allocates for its own bookkeeping";
  OpsFixture f;
  constexpr std::int64_t rows = 3001, channels = 16;
  const Tensor x = f.random(DType::float32, {rows, channels}, "x"),
               y = f.make(DType::float32, x.shape), dy = f.random(DType::float32, x.shape, "dy"),
               dx = f.make(DType::float32, x.shape), narrow = f.make(DType::bfloat16, x.shape),
               working = f.make(DType::float32, x.shape);
  const Tensor gamma = f.filled(DType::float32, {channels}, 1),
               beta = f.filled(DType::float32, {channels}, 0),
               mean = f.make(DType::float32, {channels}), rstd = f.make(DType::float32, {channels}),
               variance = f.make(DType::float32, {channels}),
               running = f.filled(DType::float32, {channels}, 0),
               running_variance = f.filled(DType::float32, {channels}, 0),
               dgamma = f.make(DType::float32, {channels}),
               dbeta = f.make(DType::float32, {channels});
  const Tensor labels = f.filled(DType::int32, {rows}, 3), sums = f.make(DType::float64, {4});
  const Tensor images = f.filled(DType::uint8, {4, 8, 8, 3}, 9),
               prepared = f.make(DType::float32, images.shape);
  const ops::ImageTransform no_transforms[4] = {}, *const transforms = f.placed(no_transforms, 4);
  const ops::BatchNorm norm{rows, channels, true, false, DType::float32};
  const ops::GroupNorm group{1, rows, channels, channels, true, false, DType::float32};
  const ops::FlatChunk one_chunk{0, static_cast<std::int32_t>(rows * channels), 0},
      *const chunk = f.placed(&one_chunk, 1);
  const ops::FlatRow one_row{0, rows * channels, 0}, *const row = f.placed(&one_row, 1);
  const ops::TensorRates no_rates, *const rates = f.placed(&no_rates, 1);
  const ops::StepDecision applied, *const judgement = f.placed(&applied, 1);
  const ops::WindowState state{.weight = x,
                               .gradient = dy,
                               .slots = {y, dx},
                               .working = working,
                               .chunks = chunk,
                               .chunk_count = 1,
                               .rates = rates,
                               .decision = judgement};
  double* const square = f.filled(DType::float64, {2}, 1).as<double>();
  const std::int64_t no_places[3] = {}, *const places = f.placed(no_places, 3);
  const ops::TrustRatioTensor no_tensor, *const trusted = f.placed(&no_tensor, 1);
  auto* const set_rates = const_cast<ops::TensorRates*>(rates);
  auto* const made = const_cast<ops::StepDecision*>(judgement);
  const ops::PartialSquareSums squares{square, 1, 1};
  const std::uint64_t key = 7, *const sample_key = f.placed(&key, 1);
  const ops::Attention attention{1, rows, 1, 1, 4, DType::float32, 0.1f, 1, sample_key, 0},
      narrow_attention{1, rows, 1, 1, 4, DType::bfloat16};
  const Tensor qkv = f.random(DType::float32, {rows, 12}, "qkv"),
               dqkv = f.make(DType::float32, qkv.shape),
               attended = f.make(DType::float32, {rows, 4}),
               log_sum = f.make(DType::float32, {1, 1, rows}),
               narrow_qkv = f.random(DType::bfloat16, qkv.shape, "qkv"),
               narrow_attended = f.make(DType::bfloat16, {rows, 4}),
               narrow_dqkv = f.make(DType::bfloat16, qkv.shape);
  const Tensor stats = f.make(DType::float32, {1, rows, 4}),
               merged = f.make(DType::float32, {rows, 4}),
               ranks = f.filled(DType::int32, {rows}, 0);
  const auto run = [&] {
    ops::Context& context = f.context;
    ops::attention_forward(context, attention, qkv, attended, log_sum);
    ops::attention_backward(context, attention, qkv, attended, log_sum, attended, dqkv);
    ops::attention_forward(context, narrow_attention, narrow_qkv, narrow_attended, log_sum);
    ops::attention_backward(context, narrow_attention, narrow_qkv, narrow_attended, log_sum,
                            narrow_attended, narrow_dqkv);
    ops::softmax_statistics(context, x, labels, 0, stats);
    ops::merge_statistics(context, stats, merged);
    ops::softmax_gradient(context, {0, channels, 0.1f, 1}, x, labels, merged, dx, ranks);
    ops::softmax_sums(context, merged, labels, ranks, channels, 0.1f, sums, ops::Write::add);
    ops::batch_norm_statistics(context, norm, x, {mean, rstd, variance});
    ops::batch_norm_apply(context, norm, x, gamma, beta, {}, y, {mean, rstd, variance}, {});
    ops::batch_norm_backward(context, norm, x, y, dy, gamma, beta, {mean, rstd, variance}, dx, {},
                             dgamma, dbeta, {running, running_variance, 1}, {}, ops::Write::add);
    ops::batch_norm_inference(context, norm, x, gamma, beta, {}, mean, rstd, y);
    ops::group_norm_forward(context, group, x, gamma, beta, {}, y, mean, rstd, {});
    ops::group_norm_backward(context, group, x, y, dy, gamma, beta, mean, rstd, dx, {}, dgamma,
                             dbeta, {}, ops::Write::assign);
    ops::cross_entropy(context, x, {labels, 0.1f}, 1, sums, dx);
    ops::prepare_images(context, {}, images, transforms, prepared);
    ops::relu_forward(context, x, y);
    ops::relu_backward(context, y, dy, dx);
    ops::add(context, x, y);
    ops::cast(context, x, narrow);
    ops::copy(context, x, y);
    ops::fill(context, y, 0);
    ops::row_square_sums(context, x, row, 1, square);
    ops::sum_lists(context, {square, places, places, 2, 0, square});
    ops::decide_step(context,
                     ops::DecideStepArgs{
                         .gradient = squares, .rates = set_rates, .tensors = 1, .decision = made});
    ops::lars_trust(context, 0.1, {squares, squares, trusted, 1, set_rates, judgement});
    ops::lamb_trust(context, {squares, squares, trusted, 1, set_rates, judgement});
    for (kernels::UpdateKernel* kernel :
         {kernels::update_sgd, kernels::update_lars, kernels::update_adamw})
      ops::update(context, {.kernel = kernel, .slots = 2}, {}, state);
  };
  run();
  const std::int64_t before = allocations_so_far();
  // Proves that the counter works.
  EXPECT_GT(before, 0);
  run();
  EXPECT_EQ(allocations_so_far() - before, 0);
}

TEST(Steady, OpsOfTransformersAllocateNothing) {
  if (tested_device() == DeviceKind::emulated)
    GTEST_SKIP() << "the emulated device allocates for its own bookkeeping";
  for (const DType dtype : compute_types) {
    OpsFixture f;
    constexpr std::int64_t rows = 301, width = 16;
    const Tensor x = f.random(dtype, {rows, width}, "x"), y = f.make(dtype, x.shape),
                 dy = f.random(dtype, x.shape, "dy"), half = f.make(dtype, {rows, width / 2});
    const Tensor gamma = f.filled(DType::float32, {width}, 1),
                 mean = f.make(DType::float32, {rows}), rstd = f.make(DType::float32, {rows});
    const Tensor sums = f.make(DType::float32, {width}), tokens = f.filled(DType::int32, {rows}, 3);
    const Tensor table = f.random(dtype, {11, width}, "table"),
                 dtable = f.make(DType::float32, {11, width});
    const std::uint64_t one_key = 5, *const key = f.placed(&one_key, 1);
    const ops::RowNorm norm{rows, width, false, dtype};
    const ops::Dropout drop{0.1f, 1, key, 0, rows};
    const auto run = [&] {
      ops::Context& context = f.context;
      ops::row_norm_forward(context, norm, x, gamma, gamma, y, mean, rstd);
      ops::row_norm_backward(context, norm, x, dy, gamma, mean, rstd, {}, y, sums, sums,
                             ops::Write::add);
      ops::gelu_forward(context, x, y);
      ops::gelu_backward(context, x, dy, y);
      ops::swiglu_forward(context, x, half);
      ops::swiglu_backward(context, x, half, y);
      ops::rotary(context, {rows, width, 2, 8, rows, dtype}, y, false);
      ops::embedding_forward(context, tokens, table, 0, y);
      ops::embedding_backward(context, tokens, dy, 0, dtable, ops::Write::assign);
      ops::add_positions(context, table, 0, y);
      ops::positions_backward(context, dy, 0, dtable, ops::Write::add);
      ops::dropout(context, drop, x, y);
      ops::dropout_add(context, drop, x, sums, dy, y);
      ops::add_bias(context, sums, x, y);
      ops::column_sums(context, dy, sums, ops::Write::assign);
      ops::scaled_copy(context, gamma, 2, sums, ops::Write::add);
    };
    run();
    const std::int64_t before = allocations_so_far();
    run();
    EXPECT_EQ(allocations_so_far() - before, 0) << to_string(dtype);
  }
}

}  // namespace
}  // namespace trireme::test
