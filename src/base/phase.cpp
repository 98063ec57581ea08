// SPDX-License-Identifier: Apache-2.0
#include "trireme/base/phase.hpp"

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "trireme/base/expect.hpp"

namespace trireme {
namespace {

// Shared, so that an observer that blocks one thread does not block the others.
std::shared_mutex mutex;
std::function<void(const char*)> current_observer;
std::atomic<const char*> current_part = nullptr;

}  // namespace

void enter_phase(const char* phase) {
  const std::shared_lock lock(mutex);
  if (current_observer) current_observer(phase);
}

PhasePart::PhasePart(const char* name) { current_part = name; }
PhasePart::~PhasePart() { current_part = nullptr; }
const char* PhasePart::current() { return current_part; }

PhaseObserver::PhaseObserver(std::function<void(const char*)> observer) {
  const std::lock_guard lock(mutex);
  TRIREME_EXPECT(!current_observer);
  current_observer = std::move(observer);
}

PhaseObserver::~PhaseObserver() {
  const std::lock_guard lock(mutex);
  current_observer = nullptr;
}

}  // namespace trireme
