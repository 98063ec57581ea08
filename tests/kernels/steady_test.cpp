// A steady step allocates nothing: the whole program's operator new is counted while the ops run a second time.

#include <atomic>
#include <cstdlib>
#include <new>

#include "kernels/reference.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/ops/loss.hpp"
#include "trireme/ops/normalization.hpp"
#include "trireme/ops/update.hpp"

namespace {
std::atomic<long> allocations{0};
void* counted(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace trireme::test {
namespace {

TEST(Steady, OpsAllocateNothing) {
  Fixture f;
  constexpr std::int64_t rows = 3001, channels = 16;
  const Tensor x = f.random(DType::float32, {rows, channels}, "x"), y = f.make(DType::float32, x.shape), dy = f.random(DType::float32, x.shape, "dy"),
               dx = f.make(DType::float32, x.shape), narrow = f.make(DType::bfloat16, x.shape);
  const Tensor gamma = f.filled(DType::float32, {channels}, 1), beta = f.filled(DType::float32, {channels}, 0), mean = f.make(DType::float32, {channels}),
               rstd = f.make(DType::float32, {channels}), batch_mean = f.make(DType::float32, {channels}), batch_variance = f.make(DType::float32, {channels}),
               dgamma = f.make(DType::float32, {channels}), dbeta = f.make(DType::float32, {channels});
  const Tensor labels = f.filled(DType::int32, {rows}, 3), sums = f.make(DType::float64, {4});
  const Tensor images = f.filled(DType::uint8, {4, 8, 8, 3}, 9), prepared = f.make(DType::float32, images.shape);
  const ops::ImageTransform transforms[4] = {};
  const ops::BatchNorm norm{rows, channels, true, false, DType::float32};
  const ops::GroupNorm group{1, rows, channels, channels, true, false, DType::float32};
  const ops::FlatState state{x, dy, y, dx, narrow};
  const ops::FlatChunk chunk{0, static_cast<std::int32_t>(rows * channels), 0};
  const ops::FlatRow row{0, rows * channels, 0};
  const ops::TensorRates rates;
  const ops::Judgement judgement;
  double square = 0;
  const auto run = [&] {
    ops::Context& context = f.context;
    ops::batch_norm_forward(context, norm, x, gamma, beta, {}, y, mean, rstd, batch_mean, batch_variance, 1, ops::Write::assign);
    ops::batch_norm_backward(context, norm, x, y, dy, gamma, mean, rstd, dx, {}, dgamma, dbeta, ops::Write::add);
    ops::batch_norm_inference(context, norm, x, gamma, beta, {}, mean, rstd, y);
    ops::group_norm_forward(context, group, x, gamma, beta, {}, y, mean, rstd);
    ops::group_norm_backward(context, group, x, y, dy, gamma, mean, rstd, dx, {}, dgamma, dbeta, ops::Write::assign);
    ops::cross_entropy(context, x, labels, 0.1f, 1, sums, dx);
    ops::prepare_images(context, {}, images, transforms, prepared);
    ops::relu_forward(context, x, y);
    ops::relu_backward(context, y, dy, dx);
    ops::add(context, x, y);
    ops::cast(context, x, narrow);
    ops::copy(context, x, y);
    ops::fill(context, y, 0);
    ops::row_square_sums(context, x, &row, 1, &square);
    ops::update_sgd(context, {}, state, &chunk, 1, &rates, &judgement);
    ops::update_lars(context, {}, state, &chunk, 1, &rates, &judgement);
    ops::update_adamw(context, {}, state, &chunk, 1, &rates, &judgement);
  };
  run();
  const long before = allocations;
  EXPECT_GT(before, 0);  // the count counts
  run();
  EXPECT_EQ(allocations - before, 0);
}

}  // namespace
}  // namespace trireme::test
