// SPDX-License-Identifier: Apache-2.0
//
// Measures the blocks of a model one after the other on the meta device, which counts work and
// memory without doing any.
#include "trireme/model/block_work.hpp"

#include <cstdint>

#include "trireme/model/family.hpp"
#include "trireme/model/loss.hpp"

namespace trireme::model {

std::vector<BlockWork> measure_blocks(const ModelOptions& options, const Shape& input,
                                      const AnswerExtents& outputs, DType compute,
                                      DeviceKind target) {
  const Device meta{DeviceKind::meta, 0};
  Arena parameters(meta, "parameters", 0), gradients(meta, "gradients", 0),
      activations(meta, "activations", 0),
      flow[2] = {{meta, "flow 0", 0}, {meta, "flow 1", 0}}, workspace(meta, "workspace", 0),
      library(meta, "prepared weights", 0), data(meta, "data", 0);
  PingPongArena ping_pong(flow[0], flow[1]);
  ops::Context context(Stream{meta, nullptr}, workspace, library, target);
  const Model model(options, input, outputs);
  parallel::ParameterList list;
  model.declare(list, 0, model.block_count() + 1);
  const parallel::FlatLayout layout(list, std::int64_t{1} << 20, compute);
  parallel::ParameterStore store(list, layout, {}, parameters, gradients);
  const parallel::TensorGroup alone;
  MicroBatchPass pass({context, store, alone, ping_pong}, activations);

  const std::int64_t batch = input[0];
  const std::vector<std::uint64_t> keys(static_cast<std::size_t>(batch));
  std::vector<BlockWork> all;
  std::size_t counted = 0;  // parameters of blocks before
  const auto add = [&](const std::string& name, const std::string& contents, int index,
                       const auto& run) {
    BlockWork work{.name = name, .contents = contents};
    for (; counted < list.entries().size() && list.entries()[counted].block == index; ++counted)
      if (const auto& spec = list.entries()[counted].spec; spec.role == parallel::Role::weight)
        work.weights += spec.shape.elements();
    const std::int64_t bytes = activations.peak_bytes();
    const double flops = context.counters().flops;
    work.output = run();
    work.forward_flops = context.counters().flops - flops;
    work.activation_bytes = activations.peak_bytes() - bytes;
    all.push_back(std::move(work));
  };
  pass.begin_forward(true, keys.data());
  const bool tokens = takes_tokens(options);
  Tensor x = data.allocate(tokens ? DType::int32 : compute, model.input_in_memory(compute, target));
  for (int i = 0; i < model.block_count(); ++i) {
    pass.enter_block();
    add(model.block(i).name(), model.block(i).contents(), i, [&] {
      x = model.block(i).forward(pass, x);
      return x.shape;
    });
  }
  // The head runs forward and backward in one call and keeps nothing in between.
  pass.begin_forward(false, nullptr);
  pass.enter_block();
  const Tensor labels = data.allocate(DType::int32,
                                      {tokens ? input.elements() : batch * outputs.places()}),
               sums = data.allocate(DType::float64, {4});
  add(model.head().name(), model.head().contents(), model.block_count(), [&] {
    // Losses count no FLOPs.
    LossSettings settings;
    settings.kind = &default_loss(AnswerKind::one_class);
    model.head().loss(pass, x, labels, settings, sums);
    return Shape();
  });
  return all;
}

}  // namespace trireme::model
