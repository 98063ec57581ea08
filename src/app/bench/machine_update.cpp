// SPDX-License-Identifier: Apache-2.0
//
// The machine file that `trireme bench` makes or updates.
#include "machine_update.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "app/output_file.hpp"
#include "op_cases.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/host.hpp"
#include "trireme/base/text.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/device.hpp"
#include "trireme/io/file.hpp"

namespace trireme::app {
namespace {

constexpr int rounds = 5;
constexpr double min_seconds = 0.05;

/// Returns the bytes of the largest cache of the first core; 0 if the system does not tell them.
std::int64_t last_cache_bytes() {
  std::int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    std::int64_t size = 0;
    char unit = ' ';
    if (!(file >> size)) continue;
    file >> unit;
    largest = std::max(largest, size * (unit == 'K' ? 1024 : unit == 'M' ? 1024 * 1024 : 1));
  }
  return largest;
}

/// Rounds measured numbers to four digits, more than a measurement has.
void round_numbers(plan::Machine& machine) {
  const auto round = [](double& x) { x = std::strtod(fmt::format("{:.4g}", x).c_str(), nullptr); };
  const auto round_all = [&](std::vector<double>& list) {
    for (double& x : list) round(x);
  };
  for (double* x : {&machine.peak.float32, &machine.peak.bfloat16, &machine.peak.float16,
                    &machine.memory.bytes_per_s, &machine.memory.node_bytes_per_s,
                    &machine.overhead.launch_seconds})
    round(*x);
  for (plan::LinkFigures* link : {&machine.node_link, &machine.network}) {
    round(link->latency_seconds);
    round(link->bytes_per_s);
    round_all(link->message_bytes_per_s);
  }
  for (auto& [name, collective] : machine.collectives) round_all(collective.seconds);
  for (auto& [name, e] : machine.efficiency) {
    round(e.compute);
    round_all(e.compute_grid);
    round_all(e.bandwidth_curve);
  }
}

}  // namespace

MachineUpdate::MachineUpdate(std::string path) : path_(std::move(path)) {
  std::error_code ignored;
  if (path_.empty() || !std::filesystem::exists(path_, ignored)) {
    if (!path_.empty()) target_ = validate_creatable("--machine-out", path_);
    measure_basics();
    return;
  }
  machine_ = plan::parse_machine(keys::read_file(path_), path_);
  validate(machine_.device.kind == plan::MachineKind::cpu,
           "--machine-out {}: is of a GPU, and this program measures the CPU; name another file",
           path_);
  validate(machine_.device.threads == KokkosScope::threads(),
           "--machine-out {}: was measured with {}, and this process has {}; set OMP_NUM_THREADS, "
           "or name another file",
           path_, counted(machine_.device.threads, "thread", "threads"), KokkosScope::threads());
  target_ = validate_creatable("--machine-out", path_);
}

plan::Origin MachineUpdate::origin(const std::string& subject) {
  return {fmt::format("trireme bench {}", subject), utc_timestamp().substr(0, 10)};
}

void MachineUpdate::measure_basics() {
  const plan::Origin measured = origin("gemm, base figures");
  machine_.name = host_name();
  machine_.description =
      fmt::format("measured with {}", counted(KokkosScope::threads(), "thread", "threads"));
  // 1. The gap before an op: one that has next to no work.
  machine_.overhead = {measured,
                       std::min(1e-3, time_op(copy_case(16), rounds, min_seconds).seconds), 0};
  // 2. Memory and peak.
  constexpr std::int64_t elements = std::int64_t{1} << 26, edge = 1024;
  const OpTiming copy = time_op(copy_case(elements), rounds, min_seconds);
  machine_.memory = {measured, host_memory_bytes(), copy.call.bytes / copy.seconds, 0};
  const OpTiming product = time_op(
      linear_case(DType::float32, LayerPass::forward, edge, edge, edge), rounds, min_seconds);
  machine_.peak.origin = measured;
  machine_.peak.float32 = product.call.flops / product.seconds;
  // 3. The node.
  machine_.device.origin = machine_.node.origin = measured;
  machine_.device.kind = plan::MachineKind::cpu;
  machine_.device.units = machine_.node.cores = available_cores();
  machine_.device.threads = KokkosScope::threads();
  machine_.device.l2_bytes = last_cache_bytes();
  machine_.node.memory_bytes = host_memory_bytes();
  // 4. Classes, until their ops are measured.
  for (const char* kind : {"product", "convolution", "attention"})
    for (const char* pass : {"forward", "backward"}) {
      plan::Efficiency& e = machine_.efficiency[fmt::format("all.{}_{}", kind, pass)];
      e.origin = measured;
      e.compute = e.bandwidth = 1;
    }
  machine_.efficiency["all.memory_bound"].origin = measured;
  machine_.efficiency["all.memory_bound"].bandwidth = 1;
}

void MachineUpdate::write() const {
  if (path_.empty()) return;
  plan::Machine rounded = machine_;
  round_numbers(rounded);
  try {
    io::replace_file(target_, plan::write_machine(rounded));
  } catch (const Failure& failure) {
    throw InputError(fmt::format("--machine-out {}: cannot be written: {}", path_, failure.what()));
  }
  fmt::print("\nwritten: {}\n", path_);
}

}  // namespace trireme::app
