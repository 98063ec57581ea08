// SPDX-License-Identifier: Apache-2.0
//
// Counts calls, collects faults, and writes the report of a process.
//
// count_call() counts a call in the current step, end_step() closes the step, and write_report()
// runs when the process ends: by exit(), by returning from main(), or by _exit().

#include "record.hpp"

#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "state.hpp"

namespace stand_in {
namespace {

constexpr std::size_t kinds = static_cast<std::size_t>(Counter::size);
constexpr std::array<const char*, kinds> names{"launches",
                                               "launches_on_default_stream",
                                               "products",
                                               "graphs",
                                               "cuda_graphs",
                                               "by_cuda_graph",
                                               "captures",
                                               "exchanges",
                                               "exchanges_in_place",
                                               "registrations",
                                               "copies",
                                               "pageable_copies",
                                               "blocking_copies",
                                               "clears",
                                               "cache_preferences",
                                               "records",
                                               "holds",
                                               "queries",
                                               "stream_waits",
                                               "event_waits",
                                               "late_event_waits",
                                               "device_waits",
                                               "allocations",
                                               "releases",
                                               "pinned_allocations",
                                               "pinned_releases",
                                               "streams",
                                               "events"};
using Numbers = std::array<std::int64_t, kinds>;

struct CallLog {
  std::mutex mutex;
  Numbers counted{}, at_step{};
  std::vector<Numbers> steps;
  // Kernel -> launches in this step, and in the last whole one.
  std::map<std::string, int> kernels, kernels_of_step;
  std::map<std::string, int> faults;
  // Kind and call stack -> the steps in which it occurred.
  std::map<std::pair<int, std::vector<void*>>, std::vector<int>> call_stacks;
  bool used = false;
};

CallLog& call_log() {
  static auto* const all = new CallLog;  // the program still uses it after static destructors
  return *all;
}

bool has_call_stack(Counter what) {
  static const bool wanted = std::getenv("STAND_IN_CUDA_TRACE") != nullptr;
  return wanted && (what >= Counter::stream_wait || what == Counter::blocking_copy ||
                    what == Counter::pageable_copy || what == Counter::launch_on_default);
}

void write_numbers(std::FILE* file, const char* title, const Numbers& numbers) {
  std::fprintf(file, "%s", title);
  for (std::size_t i = 0; i < kinds; ++i)
    if (numbers[i] != 0) std::fprintf(file, " %s=%ld", names[i], static_cast<long>(numbers[i]));
  std::fprintf(file, "\n");
}

/// Writes the report to the path STAND_IN_CUDA_REPORT plus "." and the process number.
void write_report() {
  CallLog& all = call_log();
  const char* path = std::getenv("STAND_IN_CUDA_REPORT");
  if (path == nullptr || !all.used) return;
  report_leaks([](const std::string& what) { fault(what); });
  const std::lock_guard lock(all.mutex);
  std::FILE* file = std::fopen((std::string(path) + "." + std::to_string(getpid())).c_str(), "w");
  if (file == nullptr) return;
  for (std::size_t i = 0; i < all.steps.size(); ++i)
    write_numbers(file, ("step " + std::to_string(i + 1)).c_str(), all.steps[i]);
  write_numbers(file, "total", all.counted);
  for (const auto& [name, times] : all.kernels_of_step)
    std::fprintf(file, "kernel %d %s\n", times, name.c_str());
  for (const auto& [what, times] : all.faults)
    std::fprintf(file, "fault %d times: %s\n", times, what.c_str());
  for (const auto& [place, steps] : all.call_stacks) {
    std::fprintf(file, "place %s in steps", names[static_cast<std::size_t>(place.first)]);
    for (const int step : steps) std::fprintf(file, " %d", step);
    std::fprintf(file, "\n");
    std::fflush(file);
    backtrace_symbols_fd(place.second.data(), static_cast<int>(place.second.size()), fileno(file));
  }
  std::fclose(file);
}

/// Writes the report when the process ends by exit() or by returning from main().
struct Reporter {
  ~Reporter() { write_report(); }
} reporter;

}  // namespace

void count_call(Counter what) {
  expect_no_capture(names[static_cast<std::size_t>(what)]);
  std::vector<void*> frames;
  if (has_call_stack(what)) {
    frames.resize(14);
    frames.resize(
        static_cast<std::size_t>(backtrace(frames.data(), static_cast<int>(frames.size()))));
  }
  CallLog& all = call_log();
  const std::lock_guard lock(all.mutex);
  all.used = true;
  ++all.counted[static_cast<std::size_t>(what)];
  if (!frames.empty()) {
    std::vector<int>& steps = all.call_stacks[{static_cast<int>(what), frames}];
    steps.push_back(static_cast<int>(all.steps.size()) + 1);
  }
}

void count_kernel(const std::string& name) {
  static const bool wanted = std::getenv("STAND_IN_CUDA_KERNELS") != nullptr;
  if (!wanted) return;
  CallLog& all = call_log();
  const std::lock_guard lock(all.mutex);
  ++all.kernels[name];
}

void fault(const std::string& what) {
  CallLog& all = call_log();
  const std::lock_guard lock(all.mutex);
  all.used = true;
  if (++all.faults[what] == 1) std::fprintf(stderr, "[stand-in for CUDA] %s\n", what.c_str());
}

void end_step() {
  CallLog& all = call_log();
  const std::lock_guard lock(all.mutex);
  Numbers numbers;
  for (std::size_t i = 0; i < kinds; ++i) numbers[i] = all.counted[i] - all.at_step[i];
  all.at_step = all.counted;
  all.steps.push_back(numbers);
  all.kernels_of_step.swap(all.kernels);
  all.kernels.clear();
}

int steps_completed() {
  CallLog& all = call_log();
  const std::lock_guard lock(all.mutex);
  return static_cast<int>(all.steps.size());
}

}  // namespace stand_in

/// Writes the report of a process that ends by _exit().
STAND_IN_API void _exit(int code) {
  stand_in::write_report();
  syscall(SYS_exit_group, code);
  __builtin_unreachable();
}
