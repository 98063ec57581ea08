// SPDX-License-Identifier: Apache-2.0
//
// Attention: checks shapes, counts work, and dispatches to the CPU's or the CUDA device's
// implementation. The CPU's takes its workspace here and runs when the stream reaches it.

#include "trireme/ops/attention.hpp"

#include "cpu/launch.hpp"
#include "cuda/attention.hpp"
#include "ops/cpu/attention/attention.hpp"
#include "ops/dispatch/raw_pointer.hpp"
#include "trireme/ops/element_type.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::ops {
namespace {

/// Expects `columns` columns for each query, in the problem's dtype, on the context's device.
void expect_matrix(const Context& context, const Attention& a, const Tensor& tensor,
                   std::int64_t columns) {
  TRIREME_EXPECT(tensor.defined() && tensor.elements() == a.batch * a.queries() * columns &&
                 tensor.shape.back() == columns);
  TRIREME_EXPECT(tensor.dtype == a.dtype && tensor.device == context.stream().device.kind);
}

void expect_problem(const Context& context, const Attention& a, const Tensor& qkv,
                    const Tensor& out, const Tensor& log_sum) {
  TRIREME_EXPECT(is_compute_type(a.dtype));
  TRIREME_EXPECT(a.kv_heads > 0 && a.heads % a.kv_heads == 0 && a.head_width > 0);
  TRIREME_EXPECT(a.dropout >= 0 && a.dropout < 1 &&
                 (a.dropout == 0 || context.meta() || a.sample_keys != nullptr));
  TRIREME_EXPECT(a.dropout == 0 || readable(context, a.sample_keys));
  TRIREME_EXPECT(log_sum.dtype == DType::float32 &&
                 log_sum.elements() == a.batch * a.heads * a.queries());
  TRIREME_EXPECT(a.first_query >= 0 && a.queries() > 0);
  expect_matrix(context, a, qkv, a.qkv_width());
  expect_matrix(context, a, out, a.out_width());
}

/// `cache`: keys and values of all positions; undefined: they are in qkv.
struct ForwardTensors {
  Tensor qkv, cache, out, log_sum;
};

/// Copies keys and values of the queries' rows to their positions in the cache.
void append(Context& context, const Attention& a, const Tensor& qkv, const Tensor& cache) {
  const std::int64_t q_bytes = a.out_width() * size_of(a.dtype);
  // Rows of qkv from the first key on: a row's first keys_values_width() columns are k and v.
  const Tensor from{qkv.data == nullptr ? nullptr : static_cast<std::byte*>(qkv.data) + q_bytes,
                    qkv.dtype, qkv.device, qkv.shape};
  const Tensor to = cache.rows(a.first_query, a.context);
  if (a.queries() == 1) return copy(context, {from.data, to.dtype, from.device, to.shape}, to);
  change_channels(context, from, to, Write::assign);
}

OpWork work_of(const Attention& a, double flops, std::int64_t bytes) {
  return {.flops = flops,
          .bytes = static_cast<double>(bytes),
          .products = a.batch * a.heads,
          .m = a.queries(),
          .n = a.context,
          .k = a.head_width,
          .type = element_type(a.dtype)};
}

/// Runs the CPU's forward pass in the element type T.
template <class T>
void forward(const Attention& a, const ForwardTensors& t, const Tensor& workspace) {
  cpu::attention_forward<T>(a,
                            {t.qkv.as<T>(), t.out.as<T>(), t.log_sum.as<float>(),
                             t.cache.defined() ? t.cache.as<T>() : nullptr},
                            workspace.data);
}

template <class T>
void backward(const Attention& a, const Tensor& qkv, const Tensor& out, const Tensor& log_sum,
              const Tensor& dout, const Tensor& dqkv, const Tensor& workspace) {
  cpu::attention_backward<T>(
      a, {qkv.as<T>(), out.as<T>(), log_sum.as<float>(), dout.as<T>(), dqkv.as<T>()},
      workspace.data);
}

/// Checks, counts and launches the forward pass.
void attention_forward(Context& context, const Attention& a, const ForwardTensors& t) {
  expect_problem(context, a, t.qkv, t.out, t.log_sum);
  TRIREME_EXPECT(t.cache.defined() == (a.first_query > 0));
  const std::int64_t cached = a.first_query * a.keys_values_width() * size_of(a.dtype);
  context.count("attention_forward",
                work_of(a, a.flops(), t.qkv.bytes() + cached + t.out.bytes() + t.log_sum.bytes()));
  if (context.target() == DeviceKind::cuda)
    return cuda::attention_forward(context, a,
                                   {.qkv = t.qkv,
                                    .cache = t.cache,
                                    .out = t.out,
                                    .log_sum = t.log_sum,
                                    .dout = {},
                                    .dqkv = {},
                                    .dq_sum = {},
                                    .delta = {}});
  const ArenaScope scope(context.workspace());
  const Tensor workspace =
      context.workspace().allocate(DType::uint8, {cpu::attention_forward_bytes(a)});
  if (context.meta()) return;
  cpu::launch_on_host(context.stream(), [=] {
    with_element_type(a.dtype, [&]<class T>(T) { forward<T>(a, t, workspace); });
  });
}

}  // namespace

void attention_forward(Context& context, const Attention& a, const Tensor& qkv, const Tensor& out,
                       const Tensor& log_sum) {
  attention_forward(context, a, ForwardTensors{qkv, {}, out, log_sum});
}

void attention_forward(Context& context, const Attention& a, const Tensor& qkv, const Tensor& cache,
                       const Tensor& out, const Tensor& log_sum) {
  TRIREME_EXPECT(a.batch == 1 && a.dropout == 0 && cache.dtype == a.dtype &&
                 cache.shape.rank() == 2 && cache.shape[0] >= a.context &&
                 cache.shape[1] == a.keys_values_width());
  append(context, a, qkv, cache);
  // Without earlier positions all keys are in qkv, which every device's implementation reads.
  attention_forward(context, a,
                    ForwardTensors{qkv, a.first_query > 0 ? cache : Tensor{}, out, log_sum});
}

void attention_backward(Context& context, const Attention& a, const Tensor& qkv, const Tensor& out,
                        const Tensor& log_sum, const Tensor& dout, const Tensor& dqkv) {
  expect_problem(context, a, qkv, out, log_sum);
  TRIREME_EXPECT(a.first_query == 0);
  expect_matrix(context, a, dout, a.out_width());
  expect_matrix(context, a, dqkv, a.qkv_width());
  // Five products of the size of the two in forward. The first one computes the scores again.
  OpWork work = work_of(a, 2.5 * a.flops(), 2 * qkv.bytes() + 2 * out.bytes() + log_sum.bytes());
  work.recomputed_flops = 0.5 * a.flops();
  context.count("attention_backward", work);
  if (context.target() == DeviceKind::cuda) {
    return cuda::attention_backward(context, a,
                                    {.qkv = qkv,
                                     .cache = {},
                                     .out = out,
                                     .log_sum = log_sum,
                                     .dout = dout,
                                     .dqkv = dqkv,
                                     .dq_sum = {},
                                     .delta = {}});
  }
  const ArenaScope scope(context.workspace());
  const Tensor workspace =
      context.workspace().allocate(DType::uint8, {cpu::attention_backward_bytes(a)});
  if (context.meta()) return;
  cpu::launch_on_host(context.stream(), [=] {
    with_element_type(
        a.dtype, [&]<class T>(T) { backward<T>(a, qkv, out, log_sum, dout, dqkv, workspace); });
  });
}

}  // namespace trireme::ops
