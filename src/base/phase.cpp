#include "trireme/base/phase.hpp"

#include <mutex>
#include <shared_mutex>
#include <utility>

#include "trireme/base/expect.hpp"

namespace trireme {
namespace {

std::shared_mutex mutex;  // shared: a thread that is held up by the listener holds up no other
std::function<void(const char*)> heard_by;

}  // namespace

void come_by(const char* phase) {
  const std::shared_lock lock(mutex);
  if (heard_by) heard_by(phase);
}

PhaseListener::PhaseListener(std::function<void(const char*)> listener) {
  const std::lock_guard lock(mutex);
  TRIREME_EXPECT(!heard_by);
  heard_by = std::move(listener);
}

PhaseListener::~PhaseListener() {
  const std::lock_guard lock(mutex);
  heard_by = nullptr;
}

}  // namespace trireme
