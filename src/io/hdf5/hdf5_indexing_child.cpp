// SPDX-License-Identifier: Apache-2.0
//
// The child process that makes the indexes of HDF5 files: sets its limits, scans each file, and
// writes records about its objects to the pipe of its parent (hdf5_indexing.cpp shows the order).
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include "hdf5_detail.hpp"
#include "hdf5_indexing.hpp"
#include "hdf5_scan.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::io {
namespace {

using namespace detail;

template <class Resource>
void set_limit(Resource resource, rlim_t most) {
  rlimit now{};
  ::getrlimit(resource, &now);
  now.rlim_cur = now.rlim_max == RLIM_INFINITY ? most : std::min(most, now.rlim_max);
  ::setrlimit(resource, &now);
}

/// Memory use of this process. With CUDA's libraries it is hundreds of MiB before the first file.
struct MemoryUse {
  /// Bytes of private writable memory now, and peak resident bytes. getrusage() would also count
  /// the peak of the parent process.
  rlim_t data = 0, peak_resident = 0;

  static MemoryUse measure() {
    MemoryUse memory;
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) memory.peak_resident = bytes_of(line);
      if (line.starts_with("VmData:")) memory.data = bytes_of(line);
    }
    return memory;
  }
  /// Parses a line such as "VmData:    1234 kB".
  static rlim_t bytes_of(const std::string& line) {
    return std::strtoull(line.c_str() + line.find(':') + 1, nullptr, 10) * 1024;
  }
};

/// Returns whether this process used more memory than a file may need.
bool is_near_limit(const MemoryUse& start) {
  return MemoryUse::measure().peak_resident > start.peak_resident + max_used_bytes;
}

/// Limits the processor time from now on: SIGPROF ends the process.
void limit_time(std::int64_t file_bytes) {
  itimerval timer{};
  timer.it_value.tv_sec = static_cast<time_t>(seconds_for(file_bytes));
  ::setitimer(ITIMER_PROF, &timer, nullptr);
}

/// Writes to the pipe. Returns false if the parent process has closed the pipe.
bool write_all(const char* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::write(report_descriptor, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

/// Writes records to the pipe, many at once.
class RecordWriter {
 public:
  void put(char kind, std::string_view content) {
    const std::uint64_t length = content.size();
    bytes_ += kind;
    bytes_.append(reinterpret_cast<const char*>(&length), sizeof length).append(content);
    constexpr std::size_t enough = 64 << 10;
    if (bytes_.size() >= enough) flush();
  }
  void flush() {
    ensure(write_all(bytes_.data(), bytes_.size()),
           "the pipe to the process that started this one is closed");
    bytes_.clear();
  }

 private:
  std::string bytes_;
};

}  // namespace

ExitCode run_hdf5_indexing(const std::vector<std::string>& paths) {
  const MemoryUse start = MemoryUse::measure();
  set_limit(RLIMIT_CORE, 0);
// AddressSanitizer reserves terabytes of address space.
#if !defined(__SANITIZE_ADDRESS__)
  set_limit(RLIMIT_DATA, start.data + max_memory_bytes);
#endif
  // No filter of a file may load a library.
  H5PLset_loading_state(0);
  RecordWriter writer;
  for (const std::string& path : paths) {
    char kind = end_record;
    std::string text;
    try {
      limit_time(size_of_file(path));
      detail::scan_hdf5(path,
                        [&](const std::string& object) { writer.put(object_record, object); });
    } catch (const InputError& refused) {
      kind = error_record;
      text = refused.what();
    } catch (const Failure& failure) {
      kind = failure_record;
      text = failure.what();
    } catch (const std::bad_alloc&) {
      return ExitCode::wrong_input;
    } catch (const std::length_error&) {
      return ExitCode::wrong_input;
    }
    if (is_near_limit(start)) return ExitCode::wrong_input;
    writer.put(kind, text);
    writer.flush();  // a crash on the next file must not lose this one
  }
  return ExitCode::done;
}

}  // namespace trireme::io
