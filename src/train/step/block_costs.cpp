// SPDX-License-Identifier: Apache-2.0
//
// Counts the floating-point operations of each block with one forward pass on the meta device.
#include "block_costs.hpp"

#include "trireme/model/model.hpp"
#include "trireme/parallel/parameter_store.hpp"

namespace trireme::train {

std::vector<double> block_costs(const ReplicaOptions& options) {
  const Device device{DeviceKind::meta, 0};
  Arena parameters(device, "parameters", 0), gradients(device, "gradients", 0),
      kept(device, "activations", 0), flow0(device, "flow 0", 0), flow1(device, "flow 1", 0),
      workspace(device, "workspace", 0), library(device, "prepared weights", 0);
  ops::Context context(Stream{device, nullptr}, workspace, library, DeviceKind::cpu);
  const Shape input = options.input_shape();
  const model::Model model(options.model, input, options.classes);
  parallel::ParameterList list;
  model.declare(list, 0, model.block_count() + 1);
  const parallel::FlatLayout layout(list, 0, options.compute);
  parallel::ParameterStore store(list, layout, {}, parameters, gradients);
  const parallel::TensorGroup alone;
  model::PingPongArena flow(flow0, flow1);
  model::MicroBatchPass pass({context, store, alone, flow}, kept);
  pass.begin_forward(false, nullptr);
  Tensor x = pass.activation(options.tokens() ? DType::int32 : options.compute, input);
  std::vector<double> costs;
  double before = 0;
  const auto count = [&] {
    const double cost = context.counters().flops - before;
    before = context.counters().flops;
    return cost;
  };
  for (int block = 0; block < model.block_count(); ++block) {
    pass.enter_block();
    x = model.block(block).forward(pass, x);
    costs.push_back(count());
  }
  pass.enter_block();
  const Tensor labels =
      pass.activation(DType::int32, {options.micro * options.labels_per_sample()});
  model.head().loss(pass, x, labels, {}, pass.activation(DType::float64, {4}));
  costs.back() += count();
  return costs;
}

}  // namespace trireme::train
