// Exchanges loss sums, stop requests and busy seconds between all ranks, once a step, on the
// device. StepPipeline posts a status in begin() and waits for the totals in end().
#include "trireme/train/status_exchange.hpp"

#include <cstring>

#include "trireme/parallel/bounds.hpp"

namespace trireme::train {

using ops::SampleSums;
using ops::StepStatus;

StatusExchange::StatusExchange(const parallel::Mesh& mesh, comm::Engine& engine, Device device,
                               Arena& memory)
    : world_(mesh.world),
      engine_(engine),
      message_bounds_(
          parallel::equal_bounds(static_cast<std::size_t>(world_.size()), sizeof(StepStatus))),
      readback_(device, static_cast<std::size_t>(message_bounds_.back()) + sizeof(SampleSums)) {
  bytes_ = memory.allocate(
      DType::uint8, {message_bounds_.back() + static_cast<std::int64_t>(sizeof(SampleSums))});
  SampleSums* joined = nullptr;
  if (bytes_.data != nullptr) {
    statuses_ = static_cast<StepStatus*>(bytes_.data);
    joined = reinterpret_cast<SampleSums*>(statuses_ + world_.size());
  }
  const int last = mesh.shape.pipeline - 1;
  reduce_arguments_ = {.statuses = statuses_,
                       .first = parallel::rank_of(mesh.shape, {last, 0, 0}),
                       .step = mesh.shape.tensor,
                       .count = mesh.shape.data,
                       .sums = joined,
                       .ranks = world_.size(),
                       .invalid = flag_unreadable};
}

void StatusExchange::post(ops::Context& context, const Tensor& sums, std::uint64_t stop_requests,
                          double busy_seconds, const double* gradient_squares) {
  ops::pack_status(context, {.sums = static_cast<const SampleSums*>(sums.data),
                             .count = sums.defined() ? sums.shape[0] : 0,
                             .stop_requests = stop_requests,
                             .busy_seconds = busy_seconds,
                             .gradient_squares = gradient_squares,
                             .status = statuses_ == nullptr ? nullptr : statuses_ + world_.rank()});
  // Gradient buckets are reduced meanwhile.
  engine_.wait(engine_.all_gather(world_, static_cast<std::byte*>(bytes_.data), message_bounds_,
                                  "trireme/train/step_status"));
  ops::reduce_status(context, reduce_arguments_);
  readback_.enqueue(context.stream(), static_cast<const std::byte*>(bytes_.data));
}

StatusExchange::Totals StatusExchange::wait(std::vector<StepStatus>& statuses) {
  const std::byte* received = readback_.wait();
  statuses.resize(message_bounds_.size() - 1);
  if (received == nullptr) return {};  // meta
  std::memcpy(statuses.data(), received, statuses.size() * sizeof(StepStatus));
  Totals totals;
  std::memcpy(&totals.sums, received + message_bounds_.back(), sizeof(SampleSums));
  for (const StepStatus& status : statuses) totals.stop_requests |= status.stop_requests;
  return totals;
}

}  // namespace trireme::train
