// SPDX-License-Identifier: Apache-2.0
#include "trireme/ops/value_loss.hpp"

#include "trireme/ops/element_type.hpp"

namespace trireme::ops {

void value_loss(Context& context, const Tensor& outputs, const ValueTargets& targets,
                ValueLossForm form, float delta, float gradient_scale, const Tensor& sums,
                const Tensor& doutputs) {
  const auto& [values, weights] = targets;
  TRIREME_EXPECT(outputs.shape.rank() == 2 && is_compute_type(outputs.dtype));
  TRIREME_EXPECT(values.dtype == DType::float32 && values.elements() == outputs.elements());
  TRIREME_EXPECT(!weights.defined() ||
                 (weights.dtype == DType::float32 && weights.elements() == outputs.shape[0] &&
                  outputs.shape[0] % 2 == 0));
  TRIREME_EXPECT(sums.dtype == DType::float64 && sums.elements() == 4);
  TRIREME_EXPECT(!doutputs.defined() ||
                 (doutputs.dtype == outputs.dtype && doutputs.elements() == outputs.elements()));
  context.count("value_loss", outputs.bytes() + values.bytes() +
                                  (weights.defined() ? weights.bytes() : 0) +
                                  (doutputs.defined() ? doutputs.bytes() : 0));
  ArenaScope scope(context.workspace());
  const Tensor row_sums = context.workspace().allocate(DType::float64, {outputs.shape[0], 2});
  if (context.meta()) return;
  with_element_type(outputs.dtype, [&]<class T>(T) {
    kernels::value_loss(
        context.stream(),
        kernels::ValueLoss<T>{.form = form,
                              .delta = delta,
                              .gradient_scale = gradient_scale,
                              .rows = outputs.shape[0],
                              .columns = outputs.shape[1],
                              .outputs = outputs.as<T>(),
                              .targets = values.as<float>(),
                              .weights = weights.defined() ? weights.as<float>() : nullptr,
                              .doutputs = doutputs.defined() ? doutputs.as<T>() : nullptr,
                              .row_sums = row_sums.as<double>(),
                              .sums = sums.as<double>()});
  });
}

}  // namespace trireme::ops
