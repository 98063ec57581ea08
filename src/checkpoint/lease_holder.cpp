// SPDX-License-Identifier: Apache-2.0
//
// The holder of a lease: the process that run.lock names, and whether it still runs.
//
// lease.cpp calls these functions. A holder is known by host, process number and start time of the
// process. Whether it runs can be read only on its own host, within its namespace of process
// numbers.
#include "lease_holder.hpp"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "trireme/base/batch_job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/host.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/json.hpp"
#include "trireme/io/run_names.hpp"

namespace trireme::checkpoint {
namespace {

/// Returns the first 4096 bytes of a file of /proc; empty if it cannot be read.
std::string read_proc_file(const std::string& path) {
  std::string text;
  if (std::FILE* file = std::fopen(path.c_str(), "r")) {
    char buffer[4096];
    text.assign(buffer, std::fread(buffer, 1, sizeof buffer, file));
    std::fclose(file);
  }
  return text;
}

/// Returns the boot id of the host and the PID namespace of this process.
const std::string& pid_scope_name() {
  static const std::string name = kernel_scope("pid");
  return name;
}

/// Returns the start time of a process (field 22 of /proc/<pid>/stat). Empty if there is no such
/// process, or only a zombie.
std::string process_start(std::int64_t pid) {
  const std::string text = read_proc_file(fmt::format("/proc/{}/stat", pid));
  // Field 2, the program name in parentheses, may contain spaces; field 3 follows it.
  std::size_t at = text.rfind(')');
  if (at == std::string::npos) return "";
  ++at;
  for (int field = 3; field <= 22; ++field) {
    at = text.find_first_not_of(' ', at);
    if (at == std::string::npos) return "";
    const std::size_t end = text.find(' ', at);
    if (field == 3 && (text[at] == 'Z' || text[at] == 'X')) return "";
    if (field == 22) return text.substr(at, end - at);
    at = end;
  }
  return "";
}

}  // namespace

Holder this_process() {
  // Determined once: for Flux this runs a command.
  static const std::vector<BatchJob> jobs = batch_jobs();
  return {host_name(),
          jobs.empty() ? "" : jobs.front().text(),
          pid_scope_name(),
          ::getpid(),
          process_start(::getpid()),
          wall_seconds()};
}

std::string text_of(const Holder& holder) {
  const nlohmann::ordered_json json{{"host", holder.host}, {"system", holder.pid_scope},
                                    {"pid", holder.pid},   {"process_start", holder.process_start},
                                    {"job", holder.job},   {"heartbeat", holder.heartbeat}};
  return json.dump() + "\n";
}

std::optional<Holder> parse_holder(const std::string& text) {
  try {
    const auto json =
        io::parse_json<nlohmann::json>(text, io::run_names::lease, {.bytes = max_holder_bytes});
    Holder holder;
    holder.host = json.at("host").get<std::string>();
    holder.pid_scope = json.value("system", "");
    holder.pid = json.at("pid").get<std::int64_t>();
    holder.process_start = json.at("process_start").get<std::string>();
    holder.job = json.at("job").get<std::string>();
    holder.heartbeat = json.at("heartbeat").get<double>();
    return holder;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::optional<Holder> read_holder(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  std::optional<Holder> holder;
  try {
    holder = parse_holder(io::read_own_text_file(path, max_holder_bytes));
  } catch (const std::exception&) {
    holder.reset();
  }
  if (holder) return holder;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  // The caller waits stale_seconds for an unreadable file, then takes it over.
  holder.emplace().heartbeat = wall_seconds();
  return holder;
}

bool runs_on_this_host(const Holder& holder) {
  return holder.host == host_name() && holder.pid_scope == pid_scope_name() && holder.pid > 0 &&
         !holder.process_start.empty();
}

bool has_exited(const Holder& holder) {
  return runs_on_this_host(holder) && process_start(holder.pid) != holder.process_start;
}

std::optional<FileVersion> version_of(const char* path) {
  const int descriptor = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return std::nullopt;
  struct stat status{};
  const bool known = ::fstat(descriptor, &status) == 0;
  ::close(descriptor);
  if (!known) return std::nullopt;
  const auto nanoseconds = [](const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  return FileVersion{status.st_dev, status.st_ino, nanoseconds(status.st_mtim),
                     nanoseconds(status.st_ctim)};
}

}  // namespace trireme::checkpoint
