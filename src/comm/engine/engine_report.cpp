// SPDX-License-Identifier: Apache-2.0
//
// The words of Engine for reports of hangs: outstanding requests, their states, and the current
// wait.
//
// Called by the watchdog's thread while other threads work or hang. Needs `mutex` for a short time
// and never calls MPI.

#include <algorithm>

#include <fmt/format.h>

#include "engine_state.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::comm {

std::string Engine::State::RequestSlot::describe() const {
  return std::visit(
      [&](const auto& typed_work) {
        return fmt::format("{} {} {}: {}", typed_work.kind, sequence_number, purpose.describe(),
                           typed_work.describe(*group->implementation));
      },
      *work);
}

std::vector<const Engine::State::RequestSlot*> Engine::State::unfinished() const {
  if (nccl != nullptr) staging->select_device();
  std::vector<const RequestSlot*> found;
  for (const RequestSlot& slot : slots) {
    const bool passed = slot.by_nccl && slot.under_way && slot.nccl_done->is_done();
    if (slot.request != 0 && !slot.copy_back_enqueued && !passed) found.push_back(&slot);
  }
  std::sort(found.begin(), found.end(), [](const RequestSlot* a, const RequestSlot* b) {
    return a->sequence_number < b->sequence_number;
  });
  return found;
}

std::string_view Engine::State::progress_of(const RequestSlot& slot) const {
  if (!slot.under_way) return "queued";
  if (slot.by_nccl) return "on its stream";
  return progress_mode == ProgressMode::thread || main_is_waiting ? "blocked on peers"
                                                                  : "not polled";
}

std::string Engine::Purpose::describe() const {
  std::string text(label);
  for (const Item& item : {first, second})
    if (!item.name.empty()) text += fmt::format(", {} {}", item.name, item.number);
  return text;
}

std::vector<std::string> Engine::describe() const {
  // No request ends meanwhile, so no slot changes its request.
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> lines;
  for (const State::RequestSlot* slot : state_->unfinished())
    lines.push_back(fmt::format("{}; {}", slot->describe(), state_->progress_of(*slot)));
  return lines;
}

std::optional<PeerWait> Engine::current_wait() const {
  const double begin = state_->wait_begin;
  if (begin == 0) return std::nullopt;
  const std::lock_guard lock(state_->mutex);
  const std::vector<const State::RequestSlot*> unfinished = state_->unfinished();
  const Request waited = state_->waited_request;
  const auto found = std::find_if(
      unfinished.begin(), unfinished.end(),
      [&](const State::RequestSlot* slot) { return waited == 0 || slot->request == waited; });
  if (found == unfinished.end()) return std::nullopt;  // It has just ended.
  const State::RequestSlot& slot = **found;
  return PeerWait{.operation = slot.describe(),
                  .seconds = monotonic_seconds() - begin,
                  .is_queued = !slot.under_way};
}

}  // namespace trireme::comm
