// SPDX-License-Identifier: Apache-2.0
//
// Logs which HDF5 files a process opens. Loaded by LD_PRELOAD in tests/system.
//
// The log's path is that of TRIREME_TEST_OPEN_LOG, "." and the process number. Without the variable
// nothing is logged. Lines of the log:
//
//   process RANK WORD WORD...   the first line: rank in the job (0 outside one) and command line
//   H5Fopen FLAGS PATH          a call of HDF5, before it is made
//   open PATH                   a file whose name ends in .h5, after it was opened
//   close PATH                  the same file, before it is closed
//
// So at least as many files are open at a line as `open` lines above it lack their `close`. A child
// that is started by posix_spawn has a log of its own.

// The inline functions that checked builds have in place of open() cannot be defined again.
#undef _FORTIFY_SOURCE

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

namespace {

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

using Open = int (*)(const char*, int, ...);
using OpenAt = int (*)(int, const char*, int, ...);
using Close = int (*)(int);

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string words{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  for (char& letter : words)
    if (letter == '\0') letter = ' ';
  return words;
}

const char* rank_in_job() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(name)) return rank;
  return "0";
}

class OpenLog {
 public:
  /// Never destroyed: files are closed until the process ends.
  static OpenLog& instance() {
    static auto* const log = new OpenLog;
    return *log;
  }

  void write(const std::string& line) const {
    const std::string text = line + "\n";
    // One call for each line, so that lines of threads do not mix.
    if (file_ >= 0 && ::write(file_, text.data(), text.size()) < 0) std::abort();
  }

  void record_open(int file, const char* path) {
    if (file < 0 || !std::string_view(path).ends_with(".h5")) return;
    const std::lock_guard lock(mutex_);
    paths_[file] = path;
    write(std::string("open ") + path);
  }

  void record_close(int file) {
    const std::lock_guard lock(mutex_);
    const auto entry = paths_.find(file);
    if (entry == paths_.end()) return;
    write("close " + entry->second);
    paths_.erase(entry);
  }

 private:
  OpenLog() {
    const char* begin = std::getenv("TRIREME_TEST_OPEN_LOG");
    if (begin == nullptr) return;
    const std::string path = std::string(begin) + "." + std::to_string(::getpid());
    file_ = real<Open>("open")(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    write(std::string("process ") + rank_in_job() + " " + command_line());
  }

  int file_ = -1;
  std::mutex mutex_;
  std::map<int, std::string> paths_;  // of open files, by descriptor
};

// A process that opens nothing has a log too.
__attribute__((constructor)) void begin_log() { OpenLog::instance(); }

/// Returns the third argument of open(), which only some calls have.
mode_t mode_of(int flags, std::va_list& arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

#define TRIREME_OPEN(name)                                         \
  int name(const char* path, int flags, ...) {                     \
    static const Open next = real<Open>(#name);                    \
    std::va_list arguments;                                        \
    va_start(arguments, flags);                                    \
    const int file = next(path, flags, mode_of(flags, arguments)); \
    va_end(arguments);                                             \
    OpenLog::instance().record_open(file, path);                   \
    return file;                                                   \
  }
#define TRIREME_OPEN_AT(name)                                              \
  int name(int folder, const char* path, int flags, ...) {                 \
    static const OpenAt next = real<OpenAt>(#name);                        \
    std::va_list arguments;                                                \
    va_start(arguments, flags);                                            \
    const int file = next(folder, path, flags, mode_of(flags, arguments)); \
    va_end(arguments);                                                     \
    OpenLog::instance().record_open(file, path);                           \
    return file;                                                           \
  }

extern "C" {

TRIREME_OPEN(open)
TRIREME_OPEN(open64)
TRIREME_OPEN(__open_2)
TRIREME_OPEN(__open64_2)
TRIREME_OPEN_AT(openat)
TRIREME_OPEN_AT(openat64)

int close(int file) {
  static const auto next = real<Close>("close");
  OpenLog::instance().record_close(file);
  return next(file);
}

/// Declared here, so that the counter needs no header of HDF5: hid_t has 64 bits since HDF5 1.10.
std::int64_t H5Fopen(const char* path, unsigned flags, std::int64_t access) {
  static const auto next = real<decltype(&H5Fopen)>("H5Fopen");
  OpenLog::instance().write("H5Fopen " + std::to_string(flags) + " " + path);
  return next(path, flags, access);
}

}  // extern "C"
