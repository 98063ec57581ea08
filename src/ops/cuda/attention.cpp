// Attention on CUDA. cuDNN runs it where it supports the problem; otherwise the program's own
// kernel does. The workspace is taken in either case, so that a plan made on meta has the same
// memory.

#include "attention.hpp"

#include "../backend.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops::cuda {
namespace {

kernels::AttentionShape shape_of(const Attention& a) {
  return {a.batch,   a.context, a.heads,       a.kv_heads,   a.head_width,
          a.dropout, a.key,     a.sample_keys, a.first_head, a.first_query};
}

/// Returns whether cuDNN may run the problem. Its dropout draws other random numbers than ours, it
/// would round float32, and its graphs read keys from qkv.
bool may_use_cudnn(const Context& context, const Attention& a) {
  return context.fusions() && a.dtype != DType::float32 && a.dropout == 0 && a.first_query == 0;
}

Tensor allocate_workspace(Context& context) {
  return context.workspace().allocate(DType::uint8, {workspace_bytes});
}

}  // namespace

void attention_forward(Context& context, const Attention& a, const AttentionTensors& t) {
  const ArenaScope scope(context.workspace());
  const Tensor workspace = may_use_cudnn(context, a) ? allocate_workspace(context) : Tensor{};
  if (context.meta()) return;
  if (may_use_cudnn(context, a) &&
      context.backend().cuda->attend(Problem::Kind::attention_forward, a, t, workspace))
    return;
  with_element_type(a.dtype, [&]<class T>(T) {
    kernels::attention_forward<T>(context.stream(), shape_of(a),
                                  {t.qkv.as<T>(), t.out.as<T>(), t.log_sum.as<float>(),
                                   t.cache.defined() ? t.cache.as<T>() : nullptr});
  });
}

// cuDNN's backward adds dq in no fixed order, so deterministic runs use the program's own kernel.
void attention_backward(Context& context, const Attention& a, AttentionTensors t) {
  const bool use_cudnn = may_use_cudnn(context, a) && !context.deterministic();
  const ArenaScope scope(context.workspace());
  t.delta = context.workspace().allocate(DType::float32, t.log_sum.shape);
  if (use_cudnn)
    t.dq_sum = context.workspace().allocate(DType::float32, {a.batch * a.context, a.out_width()});
  const Tensor workspace = use_cudnn ? allocate_workspace(context) : Tensor{};
  if (context.meta()) return;
  if (use_cudnn &&
      context.backend().cuda->attend(Problem::Kind::attention_backward, a, t, workspace))
    return;
  with_element_type(a.dtype, [&]<class T>(T) {
    kernels::attention_backward<T>(context.stream(), shape_of(a),
                                   {t.qkv.as<T>(), t.out.as<T>(), t.log_sum.as<float>(),
                                    t.dout.as<T>(), t.dqkv.as<T>(), t.delta.as<float>()});
  });
}

}  // namespace trireme::ops::cuda
