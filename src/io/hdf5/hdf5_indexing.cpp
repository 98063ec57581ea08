// SPDX-License-Identifier: Apache-2.0
//
// Makes the indexes of HDF5 files in child processes with limits of memory and time.
//
//   this process                              child process (run_hdf5_indexing)
//   start it with a pipe and up to 256 paths  set the limits
//   read the pipe                             scan file 1, write its objects and an end mark
//   file 1: check the report, pass it on      scan file 2, write its objects and an end mark
//   file 2: likewise                          scan file 3: crash, or a limit is reached
//   the pipe ends within file 3
//   throw InputError with the path of file 3
//
// Up to four children work beside each other. index_hdf5() is called wherever the program reads an
// HDF5 file; under MPI by rank 0 only.

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <list>
#include <mutex>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hdf5_indexing.hpp"
#include "hdf5_report.hpp"
#include "hdf5_scan.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/child_process.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/host.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"
#include "trireme/io/versions.hpp"

namespace trireme::io {
namespace {

using namespace detail;

// The paths of one process must fit on a command line.
constexpr std::size_t max_paths_per_process = 256;
constexpr int max_processes = 4;
/// The command of the child process. One per process, like HDF5's own state.
struct Command {
  std::mutex mutex;
  std::vector<std::string> words;
  double idle_seconds = 120;
};

Command& command() {
  static Command one;
  return one;
}

std::string library_version() { return "HDF5 " + hdf5_version(); }

/// Returns whether a process causes this signal itself by crashing.
bool is_crash_signal(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGABRT || signal == SIGFPE ||
         signal == SIGILL || signal == SIGSYS || signal == SIGTRAP;
}

/// Throws the error for the exit status of a child process that ended at file `path`: InputError if
/// the file is at fault, Failure if the process was killed from outside.
[[noreturn]] void throw_child_failure(int status, const std::string& path,
                                      std::int64_t file_bytes) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::wrong_input)) {
    throw InputError(
        fmt::format("{}: its metadata need more than {} MiB of memory: the file is damaged or "
                    "malicious",
                    path, max_used_bytes >> 20));
  }
  // A build with AddressSanitizer exits with this code after a memory error.
  if (WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::failure)) {
    throw InputError(fmt::format("{}: {} crashes on this file: it is damaged or malicious", path,
                                 library_version()));
  }
  ensure(WIFSIGNALED(status),
         "{}: the process that reads the structure of HDF5 files exited with code {}", path,
         WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  if (signal == SIGPROF)
    throw InputError(fmt::format(
        "{}: {} does not finish reading its structure within {} s of processor time, the limit for "
        "{}: the file is damaged or malicious, or has too many objects",
        path, library_version(), seconds_for(file_bytes), format_bytes(file_bytes)));
  ensure(is_crash_signal(signal),
         "{}: the process that reads the structure of HDF5 files was killed by signal {}", path,
         signal);
  throw InputError(fmt::format("{}: {} crashes on this file ({}): it is damaged or malicious", path,
                               library_version(), strsignal(signal)));
}

[[noreturn]] void throw_no_progress(const std::string& path, double seconds) {
  throw Failure(fmt::format(
      "{}: {} made no progress for {} s while it read the structure of this file: the file system "
      "does not answer, or the file is damaged",
      path, library_version(), seconds));
}

/// A child process, with the end of its pipe that this process reads.
class Child {
 public:
  /// Throws Failure if the process cannot be started.
  Child(std::vector<std::string> command_line, std::size_t first, std::size_t count)
      : first_(first), count_(count) {
    int ends[2] = {-1, -1};
    const bool made = ::pipe2(ends, O_CLOEXEC) == 0;
    ensure(made, "a pipe to another process cannot be created: {}", std::strerror(errno));
    descriptor_ = ends[0];
    const ChildDescriptor report{ends[1], report_descriptor};
    try {
      process_ = start_child(command_line, {&report, 1}, "to read the structure of HDF5 files");
    } catch (...) {
      for (const int end : ends) ::close(end);
      throw;
    }
    ::close(ends[1]);
    last_check_ = monotonic_seconds();
  }
  ~Child() {
    ::close(descriptor_);
    if (process_ < 0) return;
    ::kill(process_, SIGKILL);
    while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int descriptor() const { return descriptor_; }
  bool is_done() const { return done_ == count_; }
  /// Returns the number of the file that the child reads now.
  std::size_t current() const { return first_ + done_; }

  /// Reads the bytes in the pipe. Calls `finish(file, report, kind, text)` for each file that is
  /// complete. `kind` and `text`: of its last record. Returns false at the end of the pipe, and for
  /// bytes that no child writes.
  template <class Finish>
  bool read(Finish&& finish) {
    char piece[1 << 16];
    const ssize_t got = ::read(descriptor_, piece, sizeof piece);
    if (got < 0 && errno == EINTR) return true;
    if (got <= 0) return false;
    idle_seconds_ = 0;
    bytes_.append(piece, static_cast<std::size_t>(got));
    std::size_t used = 0;
    while (bytes_.size() - used >= record_head_bytes && !is_done()) {
      std::uint64_t length = 0;
      std::memcpy(&length, bytes_.data() + used + 1, sizeof length);
      const char kind = bytes_[used];
      const bool known = kind == object_record || kind == end_record || kind == error_record ||
                         kind == failure_record;
      is_invalid_ =
          !known || length > detail::max_report_bytes || report_.size() > detail::max_report_bytes;
      if (is_invalid_) return false;
      if (bytes_.size() - used - record_head_bytes < length) break;
      const std::string_view content(bytes_.data() + used + record_head_bytes, length);
      used += record_head_bytes + length;
      if (kind == object_record) {
        report_.append(reinterpret_cast<const char*>(&length), sizeof length).append(content);
        continue;
      }
      const std::size_t file = current();
      ++done_;
      finish(file, std::exchange(report_, {}), kind, printable(content, 600));
    }
    bytes_.erase(0, is_done() ? bytes_.size() : used);
    return true;
  }

  /// Returns whether the process has neither computed nor reported for so long. Called again and
  /// again: time in which this process was suspended itself does not count.
  bool is_idle(double seconds) {
    clockid_t clock{};
    timespec used{};
    double processor = processor_seconds_;
    if (::clock_getcpuclockid(process_, &clock) == 0 && ::clock_gettime(clock, &used) == 0)
      processor = static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
    const double now = monotonic_seconds();
    // A wait itself costs a little.
    if (processor > processor_seconds_ + 0.01) {
      processor_seconds_ = processor;
      idle_seconds_ = 0;
    } else {
      constexpr double longest_round = 2;  // of a caller that is not suspended
      idle_seconds_ += std::min(now - last_check_, longest_round);
    }
    last_check_ = now;
    return idle_seconds_ > seconds;
  }

  /// Throws the error of the file that the process did not finish, after the end of its pipe. Waits
  /// for the end of the process, at most for so long.
  [[noreturn]] void throw_failure(std::span<const std::string> paths,
                                  std::span<const std::int64_t> sizes, double idle_seconds) {
    const std::string& path = paths[current()];
    validate(!is_invalid_,
             "{}: the report about it is wrong, or its structure exceeds {} MiB: the file is "
             "damaged or malicious",
             path, detail::max_report_bytes >> 20);
    int status = 0;
    for (;;) {
      const pid_t ended = ::waitpid(process_, &status, WNOHANG);
      if (ended == process_) break;
      if (is_idle(idle_seconds)) throw_no_progress(path, idle_seconds);
      constexpr useconds_t ten_milliseconds = 10'000;
      ::usleep(ten_milliseconds);
    }
    process_ = -1;
    throw_child_failure(status, path, sizes[current()]);
  }

 private:
  std::size_t first_, count_, done_ = 0;
  int descriptor_ = -1;
  pid_t process_ = -1;
  std::string bytes_;        ///< bytes of the pipe that are not a whole record yet
  std::string report_;       ///< objects of the current file
  bool is_invalid_ = false;  ///< the pipe has something that no child writes
  double last_check_ = 0, idle_seconds_ = 0, processor_seconds_ = 0;
};

/// Runs the children for a list of files.
class Indexing {
 public:
  Indexing(std::span<const std::string> paths,
           const std::function<void(std::size_t, Hdf5Index)>& take)
      : paths_(paths), take_(take), first_fault_(paths.size()) {}

  void run(const std::vector<std::string>& words, double idle_seconds) {
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      sizes_.push_back(-1);
      guard(i, [&] { sizes_.back() = size_of_file(paths_[i]); });
      if (sizes_.back() < 0) break;
    }
    const std::size_t files = std::min(sizes_.size(), first_fault_);
    if (words.empty())
      run_here(files);
    else
      run_children(files, words, idle_seconds);
    if (fault_) std::rethrow_exception(fault_);
  }

 private:
  /// Runs the body for file i. Keeps its error if no earlier file has one.
  template <class Body>
  void guard(std::size_t i, Body&& body) {
    try {
      body();
    } catch (...) {
      if (i >= first_fault_) return;
      first_fault_ = i;
      fault_ = std::current_exception();
    }
  }

  void take_report(std::size_t i, std::string report, char kind, const std::string& text) {
    guard(i, [&] {
      validate(kind != error_record, "{}: {}", paths_[i], text);
      ensure(kind != failure_record, "{}",
             text.starts_with(paths_[i]) ? text : paths_[i] + ": " + text);
      take_(i, Hdf5Index(paths_[i], sizes_[i], std::move(report)));
    });
  }

  void run_here(std::size_t files) {
    for (std::size_t i = 0; i < files && !fault_; ++i)
      guard(i, [&] { take_(i, index_own_hdf5(paths_[i])); });
  }

  void run_children(std::size_t files, const std::vector<std::string>& words, double idle_seconds) {
    const std::size_t at_once =
        static_cast<std::size_t>(std::min(max_processes, available_cores()));
    // Few files are shared among the children, too.
    const std::size_t batch =
        std::clamp<std::size_t>((files + at_once - 1) / at_once, 1, max_paths_per_process);
    std::list<Child> children;
    std::size_t next = 0;
    for (;;) {
      // 1. Start children, unless a file in front of the next one is at fault.
      for (; children.size() < at_once && next < std::min(files, first_fault_); next += batch) {
        const std::size_t count = std::min(batch, files - next);
        std::vector<std::string> command_line = words;
        for (const std::string& path : paths_.subspan(next, count))
          command_line.push_back(path.starts_with('-') ? "./" + path : path);  // not an option
        children.emplace_back(std::move(command_line), next, count);
      }
      if (children.empty()) return;
      // 2. Wait for reports.
      std::vector<pollfd> pipes;
      for (const Child& child : children) pipes.push_back({child.descriptor(), POLLIN, 0});
      constexpr int one_second = 1000;
      ::poll(pipes.data(), pipes.size(), one_second);
      // 3. Read them. Drop the children that are finished, make no progress, or read files behind
      //    one that is at fault.
      auto child = children.begin();
      for (const pollfd& pipe : pipes) {
        const bool more = pipe.revents == 0 || child->read([&](std::size_t i, std::string report,
                                                               char kind, const std::string& text) {
          take_report(i, std::move(report), kind, text);
        });
        if (!child->is_done() && !more) {
          guard(child->current(), [&] { child->throw_failure(paths_, sizes_, idle_seconds); });
        } else if (!child->is_done() && child->is_idle(idle_seconds)) {
          guard(child->current(),
                [&] { throw_no_progress(paths_[child->current()], idle_seconds); });
        } else if (!child->is_done() && child->current() < first_fault_) {
          ++child;
          continue;
        }
        child = children.erase(child);
      }
    }
  }

  std::span<const std::string> paths_;
  const std::function<void(std::size_t, Hdf5Index)>& take_;
  std::vector<std::int64_t> sizes_;
  std::size_t first_fault_;
  std::exception_ptr fault_;
};

}  // namespace

void set_hdf5_index_command(std::vector<std::string> words, double idle_seconds) {
  const std::lock_guard lock(command().mutex);
  command().words = std::move(words);
  command().idle_seconds = idle_seconds;
}

void index_hdf5(std::span<const std::string> paths,
                const std::function<void(std::size_t, Hdf5Index)>& take) {
  std::vector<std::string> words;
  double idle_seconds = 0;
  {
    const std::lock_guard lock(command().mutex);
    words = command().words;
    idle_seconds = command().idle_seconds;
  }
  Indexing(paths, take).run(words, idle_seconds);
}

Hdf5Index index_hdf5(const std::string& path) {
  std::optional<Hdf5Index> found;
  index_hdf5({&path, 1}, [&](std::size_t, Hdf5Index index) { found = std::move(index); });
  return std::move(*found);
}

Hdf5Index index_own_hdf5(const std::string& path) {
  const std::int64_t bytes = size_of_file(path);
  std::string report;
  try {
    detail::scan_hdf5(path, [&](const std::string& object) {
      ByteWriter record;
      record.put_string(object);
      report += record.take();
    });
  } catch (const InputError& error) {
    throw InputError(path + ": " + error.what());
  }
  return Hdf5Index(path, bytes, std::move(report));
}

}  // namespace trireme::io
