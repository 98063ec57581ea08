// SPDX-License-Identifier: Apache-2.0
#include "trireme/base/phase.hpp"

#include <atomic>
#include <utility>

namespace trireme {
namespace {

ObserverList<const char*> observers;
std::atomic<const char*> current_part = nullptr;

}  // namespace

void enter_phase(const char* phase) { observers.notify(phase); }

PhasePart::PhasePart(const char* name) { current_part = name; }
PhasePart::~PhasePart() { current_part = nullptr; }
const char* PhasePart::current() { return current_part; }

PhaseObserver::PhaseObserver(std::function<void(const char*)> observer)
    : place_(observers.add(std::move(observer))) {}
PhaseObserver::~PhaseObserver() { observers.remove(place_); }

}  // namespace trireme
