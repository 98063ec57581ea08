// SPDX-License-Identifier: Apache-2.0
//
// Decisions of the CUDA products that need no device: which operand is read in which order, the
// type of results and bias gradients, the workspace that meta plans, and the counted work.
// A loop over column-major matrices replaces cuBLASLt; small integers make its results exact.

#include "ops/cuda/operands.hpp"

#include "ops/cuda/library.hpp"
#include "reference.hpp"
#include "trireme/ops/attention.hpp"
#include "trireme/ops/cast_tensors.hpp"

namespace trireme::ops::cuda {
namespace {

using Kind = Problem::Kind;
using namespace test;

/// Computes result = first second as cuBLASLt does with these operands; every matrix is
/// column-major.
void multiply(const Operands& operands, float* data[3]) {
  const auto at = [&](const Operand& operand, std::int64_t row, std::int64_t column) -> float& {
    if (operand.transposed) std::swap(row, column);
    EXPECT_LT(row, operand.rows);
    EXPECT_LT(column, operand.columns);
    return data[static_cast<int>(operand.source)][column * operand.rows + row];
  };
  const std::int64_t inner =
      operands.first.transposed ? operands.first.rows : operands.first.columns;
  ASSERT_EQ(inner, operands.second.transposed ? operands.second.columns : operands.second.rows);
  for (std::int64_t row = 0; row < operands.result.rows; ++row) {
    for (std::int64_t column = 0; column < operands.result.columns; ++column) {
      double sum = 0;
      for (std::int64_t k = 0; k < inner; ++k)
        sum += static_cast<double>(at(operands.first, row, k)) * at(operands.second, k, column);
      at(operands.result, row, column) = static_cast<float>(sum);
    }
  }
}

TEST(CudaOperands, GiveTheProductsOfALayer) {
  constexpr std::int64_t rows = 5, in = 3, out = 4;
  for (const MatrixOrder order : {MatrixOrder::out_in, MatrixOrder::in_out}) {
    const Linear linear{rows, in, out, order};
    const auto w_at = [&](std::int64_t k, std::int64_t n) {
      return order == MatrixOrder::out_in ? n * in + k : k * out + n;
    };
    std::vector<float> x(rows * in), w(in * out), y(rows * out);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i * i % 11) - 5;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = static_cast<float>(i * 3 % 13) - 6;
    std::vector<float> made_x(x.size()), made_w(w.size()), made_y(y.size()), want_x(x.size()),
        want_w(w.size()), want_y(y.size());
    for (std::int64_t m = 0; m < rows; ++m)
      for (std::int64_t n = 0; n < out; ++n)
        for (std::int64_t k = 0; k < in; ++k) {
          want_y[m * out + n] += x[m * in + k] * w[w_at(k, n)];
          want_x[m * in + k] += y[m * out + n] * w[w_at(k, n)];
          want_w[w_at(k, n)] += x[m * in + k] * y[m * out + n];
        }
    float *forward[3] = {x.data(), w.data(), made_y.data()},
          *data[3] = {made_x.data(), w.data(), y.data()},
          *weight[3] = {x.data(), made_w.data(), y.data()};
    multiply(operands_of(Kind::linear_forward, linear), forward);
    multiply(operands_of(Kind::linear_backward_data, linear), data);
    multiply(operands_of(Kind::linear_backward_weight, linear), weight);
    // exact, because the numbers are small integers
    EXPECT_EQ(made_y, want_y);
    EXPECT_EQ(made_x, want_x);
    EXPECT_EQ(made_w, want_w);
    // The bias's gradient: the sums that the library takes over its designated operand, along the
    // dimension that the product sums over.
    const Operands operands = operands_of(Kind::linear_backward_weight, linear);
    const Operand& summed = dy_is_first(operands) ? operands.first : operands.second;
    ASSERT_EQ(summed.source, Operand::Source::y);
    // So the remaining dimension is `out`, as stored.
    EXPECT_EQ(summed.transposed, !dy_is_first(operands));
    EXPECT_EQ(dy_is_first(operands) ? operands.result.rows : operands.result.columns, out);
    EXPECT_EQ(summed.rows, out);
    EXPECT_EQ(summed.columns, rows);
  }
}

TEST(CudaOperands, OfFloat8LieAlongTheSummedExtent) {
  constexpr std::int64_t rows = 16, in = 32, out = 48;
  const auto turned = [](const std::vector<float>& matrix, std::int64_t columns) {
    const std::int64_t height = static_cast<std::int64_t>(matrix.size()) / columns;
    std::vector<float> result(matrix.size());
    for (std::int64_t i = 0; i < height; ++i)
      for (std::int64_t j = 0; j < columns; ++j) result[j * height + i] = matrix[i * columns + j];
    return result;
  };
  for (const MatrixOrder order : {MatrixOrder::out_in, MatrixOrder::in_out}) {
    Linear linear{.rows = rows, .in = in, .out = out, .order = order, .dtype = DType::bfloat16};
    std::vector<float> x(rows * in), w(in * out), y(rows * out);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i * i % 11) - 5;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = static_cast<float>(i * 3 % 13) - 6;
    // Layouts of src/ops/float8.cpp: forward reads w [out, in], the gradient of x reads w [in,
    // out], and that of w reads both others transposed.
    const bool out_in = order == MatrixOrder::out_in;
    std::vector<float> other_w = turned(w, out_in ? in : out), turned_x = turned(x, in),
                       turned_y = turned(y, out);
    std::vector<float>&forward_w = out_in ? w : other_w, &backward_w = out_in ? other_w : w;
    std::vector<float> made[3][2] = {{std::vector<float>(y.size()), y},
                                     {std::vector<float>(x.size()), x},
                                     {std::vector<float>(w.size()), w}};
    for (const int float8 : {0, 1}) {
      linear.float8 = float8 == 1;
      ASSERT_EQ(linear.in_float8(), float8 == 1);
      float* forward[3] = {x.data(), (linear.float8 ? forward_w : w).data(),
                           made[0][float8].data()};
      float* data[3] = {made[1][float8].data(), (linear.float8 ? backward_w : w).data(), y.data()};
      float* weight[3] = {(linear.float8 ? turned_x : x).data(), made[2][float8].data(),
                          (linear.float8 ? turned_y : y).data()};
      int which = 0;
      for (const auto& [kind, operands] : {std::pair(Kind::linear_forward, forward),
                                           {Kind::linear_backward_data, data},
                                           {Kind::linear_backward_weight, weight}}) {
        const Operands asked = operands_of(kind, linear);
        if (linear.float8) {
          EXPECT_TRUE(asked.first.transposed && !asked.second.transposed);
          EXPECT_EQ(asked.first.rows, asked.second.rows);
        }
        multiply(asked, operands);
        if (linear.float8) {
          EXPECT_EQ(made[which][0], made[which][1]);
          EXPECT_EQ(asked.result_type,
                    kind == Kind::linear_backward_weight ? DType::float32 : DType::bfloat16);
        }
        ++which;
      }
    }
  }
}

TEST(CudaOperands, TheWeightsGradientIsFloat32AndAWideResultToo) {
  Linear linear{8, 8, 8, MatrixOrder::out_in, DType::bfloat16};
  EXPECT_EQ(operands_of(Kind::linear_backward_weight, linear).result_type, DType::float32);
  EXPECT_EQ(operands_of(Kind::linear_forward, linear).result_type, DType::bfloat16);
  linear.float32_result = true;
  EXPECT_EQ(operands_of(Kind::linear_backward_data, linear).result_type, DType::float32);
}

TEST(CudaOperands, MetaTakesTheWorkspaceWhereverItRuns) {
  const Device device{DeviceKind::meta};
  Arena workspace(device, "workspace", 0), library(device, "library", 0);
  Context context({device}, workspace, library, DeviceKind::cuda);
  const Linear linear{8, 8, 8};
  const auto matrix = [&](DType type) { return Tensor{nullptr, type, DeviceKind::meta, {8, 8}}; };
  linear_forward(context, linear, matrix(DType::float32), {matrix(DType::float32), 1, nullptr}, {},
                 matrix(DType::float32));
  EXPECT_EQ(workspace.peak_bytes(), workspace_bytes);
  EXPECT_EQ(workspace.used_bytes(), 0);
  // A weight gradient that is added in bfloat16 needs its own memory format and a float32 one.
  const Convolution convolution{2, 4, 4, 8, 16, 3, 1, 1, DType::bfloat16};
  const auto image = [&](const Shape& shape, DType type) {
    return Tensor{nullptr, type, DeviceKind::meta, shape};
  };
  convolution_backward_weight(context, convolution,
                              image(convolution.input_shape(), DType::bfloat16),
                              image(convolution.output_shape(), DType::bfloat16),
                              image(convolution.weight_shape(), DType::float32), Write::add);
  EXPECT_EQ(workspace.peak_bytes(), workspace_bytes + convolution.weight_shape().elements() * 2);
  EXPECT_EQ(workspace.used_bytes(), 0);
}

TEST(CudaOperands, GradientsInSixteenBitsWaitForTheirCast) {
  const Device device{DeviceKind::meta};
  constexpr std::int64_t count = 64 * 8;
  // Returns the memory of the gradient that waits, and checks that the rest is workspace.
  const auto waiting = [&](Convolution c, bool fusions) {
    Arena workspace(device, "workspace", 0), library(device, "library", 0),
        memory(device, "gradients", 0);
    Context context({device}, workspace, library, DeviceKind::cuda, {.fusions = fusions});
    NarrowGradients narrow(memory);
    context.set_narrow_gradients(&narrow);
    const auto tensor = [&](const Shape& shape, DType type) {
      return Tensor{nullptr, type, DeviceKind::meta, shape};
    };
    const Counters before = context.counters();
    for (const Write write : {Write::assign, Write::add})
      convolution_backward_weight(context, c, tensor(c.input_shape(), c.dtype),
                                  tensor(c.output_shape(), c.dtype),
                                  tensor(c.weight_shape(), DType::float32), write);
    const std::int64_t bytes = memory.used_bytes();
    EXPECT_EQ(workspace.used_bytes(), 0);
    if (bytes > 0) {
      EXPECT_EQ(workspace.peak_bytes(), workspace_bytes);
    }
    narrow.convert(context);
    EXPECT_EQ(memory.used_bytes(), 0);
    EXPECT_EQ(context.counters().calls - before.calls, 2);
    return bytes;
  };
  const Convolution wide{2, 4, 4, 8, 64, 3, 1, 1, DType::bfloat16};
  EXPECT_EQ(waiting(wide, true), 2 * 9 * count * 2);
  EXPECT_EQ(waiting(wide, false), 0);
  Convolution other = wide;
  other.dtype = DType::float32;
  EXPECT_EQ(waiting(other, true), 0);
  // As a matrix product it writes float32, but a plan does not know the faster form.
  const Convolution product{2, 4, 4, 8, 64, 1, 1, 0, DType::float16};
  EXPECT_EQ(waiting(product, true), 2 * count * 2);
  Convolution padded = wide;
  padded.in_channels = 3;
  padded.padded_channels = 8;
  EXPECT_EQ(waiting(padded, true), 2 * 9 * count * 2);
}

TEST(CudaOperands, MetaTakesAttentionsMemory) {
  const Device device{DeviceKind::meta};
  // The workspace of cuDNN's graph is added to that of backward's kernel, up to a limit. float32,
  // dropout and deterministic runs use the kernel alone.
  const auto peak_of = [&](const Attention& a, bool deterministic, bool backward) {
    Arena workspace(device, "workspace", 0), library(device, "library", 0);
    Context context({device}, workspace, library, DeviceKind::cuda,
                    {.deterministic = deterministic});
    const auto rows = [&](std::int64_t width) {
      return Tensor{nullptr, a.dtype, DeviceKind::meta, {a.batch * a.context, width}};
    };
    const Tensor log_sum{nullptr, DType::float32, DeviceKind::meta, {a.batch, a.heads, a.context}};
    if (backward) {
      attention_backward(context, a, rows(a.qkv_width()), rows(a.out_width()), log_sum,
                         rows(a.out_width()), rows(a.qkv_width()));
    } else {
      attention_forward(context, a, rows(a.qkv_width()), rows(a.out_width()), log_sum);
    }
    EXPECT_EQ(workspace.used_bytes(), 0);
    return workspace.peak_bytes();
  };
  const auto peak = [&](DType dtype, float dropout, bool deterministic, bool backward) {
    return peak_of({2, 64, 4, 2, 16, dtype, dropout}, deterministic, backward);
  };
  constexpr std::int64_t delta = 2 * 4 * 64 * 4, dq = 2 * 64 * 4 * 16 * 4, small = 512,
                         // sums of dq, and dk and dv of each query head, of whole tiles
      tiles = 2 * 128 * 4 * 16 * (4 + 2 * 2);
  EXPECT_EQ(peak(DType::bfloat16, 0, false, false), small);
  EXPECT_EQ(peak(DType::bfloat16, 0, false, true), delta + dq + tiles + small);
  EXPECT_EQ(peak(DType::bfloat16, 0, true, true), delta);
  EXPECT_EQ(peak(DType::bfloat16, 0.1f, false, false), 0);
  EXPECT_EQ(peak(DType::float32, 0, false, true), delta);
  // The largest problem of 32 heads within the limit, and the next one.
  constexpr std::int64_t gibibyte = std::int64_t{1} << 30, heads = 32;
  const Attention largest{4, 8192, heads, 8, 128, DType::bfloat16};
  Attention too_large = largest;
  too_large.context += 128;
  const auto delta_of = [](const Attention& a) { return a.batch * a.context * heads * 4; };
  const auto dq_of = [](const Attention& a) { return a.batch * a.context * heads * 128 * 4; };
  EXPECT_EQ(peak_of(largest, false, true), delta_of(largest) + dq_of(largest) + gibibyte + small);
  EXPECT_EQ(peak_of(too_large, false, true),
            delta_of(too_large) + dq_of(too_large) + cuda::max_attention_workspace_bytes);
  EXPECT_EQ(peak_of(too_large, false, false), small);
}

/// One step's work of a layer followed by GELU.
struct Work {
  Counters counters;
  std::int64_t peak_bytes = 0;
};
Work work_of(DeviceKind target, const Linear& l, Write write, bool deterministic = false) {
  const Device device{DeviceKind::meta};
  Arena workspace(device, "workspace", 0), library(device, "library", 0);
  Context context({device}, workspace, library, target, {.deterministic = deterministic});
  const auto matrix = [&](DType type, std::int64_t rows, std::int64_t columns) {
    return Tensor{nullptr, type, DeviceKind::meta, {rows, columns}};
  };
  const Tensor x = matrix(l.dtype, l.rows, l.in), y = matrix(l.dtype, l.rows, l.out), z = y,
               w = matrix(l.dtype, l.out, l.in), dw = matrix(DType::float32, l.out, l.in),
               bias{nullptr, DType::float32, DeviceKind::meta, {l.out}};
  linear_forward(context, l, x, {w, 1, nullptr}, bias, y);
  linear_add_forward(context, l, x, {w, 1, nullptr}, bias, z, y);
  linear_gelu_forward(context, l, x, {w, 1, nullptr}, bias, z, y);
  linear_backward_data(context, l, y, {w, 1, nullptr}, x);
  linear_backward_data_gelu(context, l, y, {w, 1, nullptr}, x, x);
  linear_backward_weight(context, l, x, y, dw, bias, write);
  EXPECT_EQ(workspace.used_bytes(), 0);
  return {context.counters(), workspace.peak_bytes()};
}

TEST(CudaOperands, AnOpCountsAsOnTheCpu) {
  for (const DType dtype : compute_types) {
    for (const Write write : {Write::assign, Write::add}) {
      const Linear linear{32, 16, 24, MatrixOrder::out_in, dtype};
      const Counters cpu = work_of(DeviceKind::cpu, linear, write).counters,
                     cuda = work_of(DeviceKind::cuda, linear, write).counters;
      EXPECT_EQ(cuda.flops, cpu.flops);
      EXPECT_EQ(cuda.bytes, cpu.bytes);
      EXPECT_EQ(cuda.calls, cpu.calls);
      EXPECT_EQ(cuda.flops, 6 * linear.flops());
    }
  }
  const Linear linear{.rows = 32, .in = 16, .out = 48, .dtype = DType::bfloat16, .float8 = true};
  const Work cpu = work_of(DeviceKind::cpu, linear, Write::add),
             cuda = work_of(DeviceKind::cuda, linear, Write::add);
  EXPECT_EQ(cuda.counters.flops, cpu.counters.flops);
  EXPECT_EQ(cuda.counters.bytes, cpu.counters.bytes);
  EXPECT_EQ(cuda.counters.calls, cpu.counters.calls);
}

TEST(CudaOperands, ABiasGradientThatIsAddedTakesItsOwnSums) {
  const Linear linear{32, 16, 128, MatrixOrder::out_in, DType::float32};
  constexpr std::int64_t sums = 128 * 4;
  EXPECT_EQ(work_of(DeviceKind::cuda, linear, Write::assign).peak_bytes, workspace_bytes);
  EXPECT_EQ(work_of(DeviceKind::cuda, linear, Write::add).peak_bytes, workspace_bytes + sums);
  // The kernel adds to the existing values.
  EXPECT_EQ(work_of(DeviceKind::cuda, linear, Write::add, true).peak_bytes, workspace_bytes);
}

TEST(CudaOperands, ABiasIsTakenInTheTypeOfTheResult) {
  const Device device{DeviceKind::meta};
  const auto peak = [&](DType dtype, bool wide) {
    Arena workspace(device, "workspace", 0), library(device, "library", 0);
    Context context({device}, workspace, library, DeviceKind::cuda);
    const Linear linear{64, 64, 64, MatrixOrder::out_in, dtype, wide};
    const auto matrix = [&](DType type) {
      return Tensor{nullptr, type, DeviceKind::meta, {64, 64}};
    };
    const Tensor bias{nullptr, DType::float32, DeviceKind::meta, {64}};
    linear_forward(context, linear, matrix(dtype), {matrix(dtype), 1, nullptr}, bias,
                   matrix(linear.result_dtype()));
    EXPECT_EQ(workspace.used_bytes(), 0);
    return workspace.peak_bytes();
  };
  EXPECT_EQ(peak(DType::float32, false), workspace_bytes);
  EXPECT_EQ(peak(DType::bfloat16, true), workspace_bytes);
  EXPECT_EQ(peak(DType::bfloat16, false), workspace_bytes + 64 * 2);
}

}  // namespace
}  // namespace trireme::ops::cuda
