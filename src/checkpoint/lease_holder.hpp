// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::checkpoint {

/// The largest run.lock that is read.
inline constexpr std::int64_t max_holder_bytes = 1 << 16;

/// The content of run.lock: the process that holds the lease.
struct Holder {
  std::string host, job;
  /// Boot id and PID namespace: a pid is only unique within these. Several hosts or containers may
  /// have one host name.
  std::string pid_scope;
  std::int64_t pid = 0;
  /// Start time of the process in clock ticks since boot. It differs for a later process with the
  /// same pid.
  std::string process_start;
  double heartbeat = 0;  ///< time of the last heartbeat, wall clock seconds

  bool same_process(const Holder& other) const {
    return host == other.host && pid_scope == other.pid_scope && pid == other.pid &&
           process_start == other.process_start;
  }
};

/// Returns this process as holder, with the time as heartbeat.
Holder this_process();

/// The holder as text of run.lock, and back; none if the text is invalid.
std::string text_of(const Holder& holder);
std::optional<Holder> parse_holder(const std::string& text);

/// Returns the holder in the file; none if there is no file. An unreadable file yields a holder
/// without host and with a fresh heartbeat.
std::optional<Holder> read_holder(const std::string& path);

/// Returns whether /proc of this host shows if the holder runs. For other holders only the
/// heartbeat does.
bool runs_on_this_host(const Holder& holder);

/// Returns whether the holder is a process of this host that has exited.
bool has_exited(const Holder& holder);

/// A version of a file: it changes with every write and every rename onto its path.
struct FileVersion {
  std::uint64_t device = 0, inode = 0;
  std::int64_t modified_nanoseconds = 0, changed_nanoseconds = 0;
  bool operator==(const FileVersion&) const = default;
};

/// Returns the version of a file; none if it cannot be opened. Opening lets network file systems
/// ask their server. Allocates nothing.
std::optional<FileVersion> version_of(const char* path);

}  // namespace trireme::checkpoint
