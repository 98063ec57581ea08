// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace trireme {

/// Callbacks that several threads call at once, and that come and go meanwhile. For lists that are
/// global to the process, like signal handlers, because no object of a run owns the process.
template <class... Arguments>
class ObserverList {
 public:
  using Observer = std::function<void(Arguments...)>;
  using Place = typename std::list<Observer>::iterator;

  /// Adds an observer and returns its place.
  Place add(Observer observer) {
    const std::lock_guard lock(mutex_);
    has_observers_ = true;
    return observers_.insert(observers_.end(), std::move(observer));
  }
  /// Removes an observer. Waits until no thread executes it.
  void remove(Place place) {
    const std::lock_guard lock(mutex_);
    observers_.erase(place);
    has_observers_ = !observers_.empty();
  }
  /// Calls all observers. Costs one atomic load if there are none.
  void notify(Arguments... arguments) {
    if (!has_observers_) return;
    // Shared, so that an observer that blocks one thread does not block the others.
    const std::shared_lock lock(mutex_);
    for (const Observer& observer : observers_) observer(arguments...);
  }

 private:
  std::shared_mutex mutex_;
  std::list<Observer> observers_;
  std::atomic<bool> has_observers_ = false;
};

}  // namespace trireme
