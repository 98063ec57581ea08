// SPDX-License-Identifier: Apache-2.0
//
// Injects faults (kill, stop, sleep, NaN, bit flip) at chosen phases and steps. Used by tests of
// recovery.
#include "fault_injector.hpp"

#include <chrono>
#include <csignal>
#include <limits>
#include <thread>

namespace trireme::train {
namespace {

/// A bit of the mantissa: the weight stays finite, so only a comparison of replicas detects the
/// change.
constexpr std::uint8_t flipped_bit = 1 << 5;

/// Flips one bit of the first weight, as a memory error would.
void flip(Replica& replica) {
  parallel::ParameterStore& store = replica.weight_update().store();
  const bool whole = store.sharding().kind == parallel::ShardKind::none;
  // The first byte of a little-endian number is in its mantissa.
  void* byte =
      (whole || store.flat_working().data == nullptr ? store.flat_master() : store.flat_working())
          .data;
  const Stream& stream = replica.context().stream();
  replica.state_copy().wait_before_update();
  std::uint8_t value = 0;
  copy_bytes(stream, &value, byte, 1);
  value ^= flipped_bit;
  copy_bytes(stream, byte, &value, 1);
  // `value` and the weights may be in pinned memory, whose copies are asynchronous.
  synchronize(stream);
  store.weights_changed();
}

}  // namespace

FaultInjector::FaultInjector(const std::vector<deck::Fault>& faults, int world_rank) {
  for (const deck::Fault& fault : faults) {
    if (fault.rank == world_rank) armed_.push_back({fault, 0});
  }
}

void FaultInjector::on_phase(const std::string& phase, std::int64_t step, Replica& replica) {
  const double sleep_seconds = inject(phase, step, replica);
  // Outside the lock: other threads may enter phases meanwhile.
  if (sleep_seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(sleep_seconds));
}

/// Triggers the faults of this phase and returns the seconds that the thread must sleep.
double FaultInjector::inject(const std::string& phase, std::int64_t step, Replica& replica) {
  const std::lock_guard lock(mutex_);
  double sleep_seconds = 0;
  if (poisoned_ && phase == "step") {
    replica.stage().scale_gradients(1);
    poisoned_ = false;
  }
  for (Armed& armed : armed_) {
    const deck::Fault& fault = armed.fault;
    if (fault.phase != phase || step < fault.first || step > fault.last || step <= armed.last_step)
      continue;
    armed.last_step = step;
    switch (fault.kind) {
      case deck::Fault::Kind::kill: std::raise(SIGKILL); break;
      case deck::Fault::Kind::stop: std::raise(SIGSTOP); break;
      case deck::Fault::Kind::sleep: sleep_seconds += fault.seconds; break;
      case deck::Fault::Kind::nan:
        replica.stage().scale_gradients(std::numeric_limits<float>::quiet_NaN());
        poisoned_ = true;
        break;
      case deck::Fault::Kind::flip: flip(replica); break;
    }
  }
  return sleep_seconds;
}

}  // namespace trireme::train
