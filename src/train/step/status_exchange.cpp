// SPDX-License-Identifier: Apache-2.0
//
// Adds loss sums and stop requests over all ranks, once a step, on the device. StepPipeline posts a
// status in begin() and waits for the totals in end().
#include "trireme/train/step/status_exchange.hpp"

#include <cstring>

namespace trireme::train {

using ops::SampleSums;
using ops::StepStatus;
using ops::StepTotals;

StatusExchange::StatusExchange(const parallel::Mesh& mesh, comm::Engine& engine, Device device,
                               Arena& memory)
    : world_(mesh.world),
      engine_(engine),
      axes_(parallel::axes_of(mesh.shape)),
      counts_samples_(mesh.coordinates.tensor_rank == 0),
      readback_(device, sizeof(StepTotals)) {
  bytes_ = memory.allocate(DType::uint8, {2 * sizeof(StepStatus) + sizeof(StepTotals)});
  if (bytes_.data == nullptr) return;  // meta
  status_ = static_cast<StepStatus*>(bytes_.data);
  scratch_ = status_ + 1;
  totals_ = reinterpret_cast<StepTotals*>(status_ + 2);
}

void StatusExchange::post(ops::Context& context, const Tensor& sums, std::uint64_t stop_requests,
                          const double* gradient_squares) {
  const bool counts = counts_samples_ && sums.defined();
  ops::pack_status(context, {.sums = counts ? static_cast<const SampleSums*>(sums.data) : nullptr,
                             .count = counts ? sums.shape[0] : 0,
                             .stop_requests = stop_requests,
                             .gradient_squares = gradient_squares,
                             .status = status_});
  // Gradient buckets are reduced meanwhile.
  engine_.wait(engine_.all_reduce(world_, reinterpret_cast<double*>(status_),
                                  reinterpret_cast<double*>(scratch_), kernels::status_values,
                                  axes_, "trireme/train/step_status"));
  ops::read_status(context, {.status = status_, .invalid = flag_unreadable, .totals = totals_});
  readback_.enqueue(context.stream(), reinterpret_cast<const std::byte*>(totals_));
}

StepTotals StatusExchange::wait() {
  StepTotals totals;
  if (const std::byte* received = readback_.wait()) std::memcpy(&totals, received, sizeof totals);
  return totals;
}

}  // namespace trireme::train
