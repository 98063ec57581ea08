#include "trireme/train/agreement.hpp"

#include <cstring>

#include "trireme/parallel/bounds.hpp"

namespace trireme::train {

using ops::SampleSums;
using ops::StepStatus;

Agreement::Agreement(const parallel::Mesh& mesh, comm::Engine& engine, Device device, Arena& memory)
    : world_(mesh.world),
      engine_(engine),
      bounds_(parallel::equal_bounds(static_cast<std::size_t>(world_.size()), sizeof(StepStatus))),
      report_(device, static_cast<std::size_t>(bounds_.back()) + sizeof(SampleSums)) {
  bytes_ = memory.allocate(DType::uint8,
                           {bounds_.back() + static_cast<std::int64_t>(sizeof(SampleSums))});
  SampleSums* joined = nullptr;
  if (bytes_.data != nullptr) {
    messages_ = static_cast<StepStatus*>(bytes_.data);
    joined = reinterpret_cast<SampleSums*>(messages_ + world_.size());
  }
  const int last = mesh.shape.pipeline - 1;
  join_ = {.statuses = messages_,
           .first = parallel::rank_of(mesh.shape, {last, 0, 0}),
           .step = mesh.shape.tensor,
           .count = mesh.shape.data,
           .sums = joined};
}

void Agreement::tell(ops::Context& context, const Tensor& sums, std::uint64_t wishes,
                     double busy_seconds) {
  ops::pack_status(context, {.sums = static_cast<const SampleSums*>(sums.data),
                             .count = sums.defined() ? sums.shape[0] : 0,
                             .stop_requests = wishes,
                             .busy_seconds = busy_seconds,
                             .status = messages_ == nullptr ? nullptr : messages_ + world_.rank()});
  engine_.wait(engine_.all_gather(world_, static_cast<std::byte*>(bytes_.data), bounds_,
                                  "trireme/train/agree"));  // buckets go on meanwhile
  ops::reduce_status(context, join_);
  report_.enqueue(context.stream(), static_cast<const std::byte*>(bytes_.data));
}

Agreement::Heard Agreement::hear(std::vector<StepStatus>& messages) {
  const std::byte* told = report_.wait();
  messages.resize(bounds_.size() - 1);
  std::memcpy(messages.data(), told, messages.size() * sizeof(StepStatus));
  Heard heard;
  std::memcpy(&heard.sums, told + bounds_.back(), sizeof(SampleSums));
  for (const StepStatus& message : messages) heard.wishes |= message.stop_requests;
  return heard;
}

}  // namespace trireme::train
