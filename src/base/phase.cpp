#include "trireme/base/phase.hpp"

#include <mutex>
#include <shared_mutex>
#include <utility>

#include "trireme/base/expect.hpp"

namespace trireme {
namespace {

std::shared_mutex mutex;  // shared: a thread that is held up by the listener holds up no other
std::function<void(const char*)> current_observer;

}  // namespace

void enter_phase(const char* phase) {
  const std::shared_lock lock(mutex);
  if (current_observer) current_observer(phase);
}

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
