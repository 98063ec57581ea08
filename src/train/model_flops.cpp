// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/model_flops.hpp"

#include <algorithm>
#include <span>

#include "trireme/train/step/replica.hpp"

namespace trireme::train {

double model_flops_of_a_sample(ReplicaOptions options) {
  options.recompute = 0;
  // The update is no work of the model, but some rules have products.
  options.optimizer.rule =
      *std::ranges::find(optim::rules(), optim::RuleScope::element, &optim::UpdateRule::scope);
  for (optim::ParameterGroup& group : options.optimizer.groups) group.rule = nullptr;
  options.offload = {};
  options.shard = parallel::ShardKind::none;
  options.pipeline_chunks = 1;
  options.sequence = false;
  options.global = options.micro;
  options.accumulation = 1;
  double flops = 0;
  const StepObserver observer{
      .op = [&](const ops::OpCall& op) { flops += op.flops - op.recomputed_flops; }};
  Replica::rehearse(options, {}, 0, DeviceKind::cpu, std::span(&observer, 1));
  return flops / static_cast<double>(options.micro);
}

}  // namespace trireme::train
