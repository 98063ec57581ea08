// SPDX-License-Identifier: Apache-2.0
#include "block_costs.hpp"

#include "trireme/model/block_work.hpp"

namespace trireme::train {

std::vector<double> block_costs(const ReplicaOptions& options) {
  std::vector<double> costs;
  for (const model::BlockWork& work : model::measure_blocks(
           options.model, options.input_shape(), options.outputs, options.compute, DeviceKind::cpu))
    costs.push_back(work.forward_flops);
  // The head runs with the last block.
  if (costs.size() > 1) {
    const double head = costs.back();
    costs.pop_back();
    costs.back() += head;
  }
  return costs;
}

}  // namespace trireme::train
