// SPDX-License-Identifier: Apache-2.0
#include "trireme/base/phase.hpp"

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace trireme {
namespace {

// Shared, so that an observer that blocks one thread does not block the others.
std::shared_mutex mutex;
std::list<std::function<void(const char*)>> observers;
std::atomic<const char*> current_part = nullptr;

}  // namespace

void enter_phase(const char* phase) {
  const std::shared_lock lock(mutex);
  for (const auto& observer : observers) observer(phase);
}

PhasePart::PhasePart(const char* name) { current_part = name; }
PhasePart::~PhasePart() { current_part = nullptr; }
const char* PhasePart::current() { return current_part; }

PhaseObserver::PhaseObserver(std::function<void(const char*)> observer) {
  const std::lock_guard lock(mutex);
  place_ = observers.insert(observers.end(), std::move(observer));
}

PhaseObserver::~PhaseObserver() {
  const std::lock_guard lock(mutex);
  observers.erase(place_);
}

}  // namespace trireme
