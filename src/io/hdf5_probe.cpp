// Checks untrusted HDF5 files in a separate process with limits of memory and time.
//
//   this process                              probe process (run_hdf5_probe)
//   start it with a pipe and up to 256 paths  set limits
//   read the pipe until it closes             read file 1, write one byte to the pipe
//        |                                    read file 2, write one byte to the pipe
//        |                                    read file 3: crash, or a limit is reached
//   got 2 bytes: file 3 is at fault
//   throw InputError with the path of file 3
//
// Files that passed are remembered by size and time. probe_hdf5() is called before every open of a
// shard, and of a checkpoint without a seal.

#include "trireme/io/hdf5_probe.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <span>
#include <stdexcept>
#include <utility>

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hdf5_detail.hpp"

#include "trireme/base/check.hpp"
#include "trireme/io/versions.hpp"

namespace trireme::io {
namespace {

// The paths of one process must fit on a command line.
constexpr std::size_t max_paths_per_process = 256;
// Limits of the probe process. An honest file needs far less, because its large datasets are not
// read completely.
constexpr rlim_t max_memory_bytes = rlim_t{448} << 20, min_seconds = 4, max_seconds = 60;
// Time limit: one second for each 4 MiB, the speed on a slow machine for a file that contains only
// objects.
constexpr std::int64_t min_bytes_per_second = std::int64_t{4} << 20;
// Ratio of the wall-clock limit to the processor-time limit, for a busy machine.
constexpr unsigned wall_clock_factor = 15;
// At most this many bytes of values are read from each end of a dataset.
constexpr std::int64_t max_value_bytes = std::int64_t{16} << 20;

struct FileStamp {
  std::int64_t bytes = -1, seconds = 0, nanoseconds = 0;
  bool operator==(const FileStamp&) const = default;
};

/// State of probe_hdf5(). One per process, like HDF5's own state.
struct Probe {
  std::mutex mutex;
  std::vector<std::string> command;
  std::map<std::string, FileStamp> accepted_files;
};

Probe& probe() {
  static Probe one;
  return one;
}

/// Returns size and modification time; a default FileStamp for anything that is not a regular file,
/// whose error the reader of the file reports.
FileStamp stamp_of(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return {static_cast<std::int64_t>(status.st_size), status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

class Pipe {
 public:
  Pipe() {
    ensure(::pipe2(ends_, O_CLOEXEC) == 0, "a pipe cannot be created: {}", std::strerror(errno));
  }
  ~Pipe() {
    close_write();
    ::close(ends_[0]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int write_end() const { return ends_[1]; }
  void close_write() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }
  /// Returns the number of bytes written until all writers have closed the pipe. Blocks until then.
  std::size_t count() const {
    std::size_t bytes = 0;
    char buffer[max_paths_per_process];
    for (;;) {
      const ssize_t got = ::read(ends_[0], buffer, sizeof buffer);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return bytes;
      bytes += static_cast<std::size_t>(got);
    }
  }

 private:
  int ends_[2] = {-1, -1};
};

pid_t spawn_probe(const std::vector<std::string>& command_line, const Pipe& pipe) {
  std::vector<char*> arguments;
  for (const std::string& word : command_line) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe.write_end(), STDOUT_FILENO);
  // Discards the C library's messages about a crash.
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  // mpirun sends signals to the whole process group of a rank. These would end the child, which has
  // no handlers, and the file would look damaged.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  sigaddset(&blocked, SIGUSR2);
  posix_spawnattr_setsigmask(&attributes, &blocked);
  pid_t child = -1;
  const int error =
      ::posix_spawn(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  ensure(error == 0, "{}: cannot be started to check untrusted HDF5 files: {}", command_line[0],
         std::strerror(error));
  return child;
}

int wait_for_exit(pid_t child) {
  int status = 0;
  pid_t ended = -1;
  do ended = ::waitpid(child, &status, 0);
  while (ended < 0 && errno == EINTR);
  ensure(ended == child, "the process that checks untrusted HDF5 files is lost: {}",
         std::strerror(errno));
  return status;
}

/// Returns whether a process causes this signal itself by crashing.
bool is_crash_signal(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGABRT || signal == SIGFPE ||
         signal == SIGILL || signal == SIGSYS || signal == SIGTRAP;
}

std::string library_version() { return "HDF5 " + hdf5_version(); }

/// Throws the error for the exit status of a probe process that ended at file `path`: InputError if
/// the file is at fault, Failure if the process was killed from outside.
void throw_probe_failure(int status, const std::string& path) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::wrong_input)) {
    throw InputError(
        fmt::format("{}: its metadata exceed {} MiB of memory: the file is damaged or malicious",
                    path, max_memory_bytes >> 20));
  }
  // A build with AddressSanitizer exits with this code after a memory error.
  if (WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::failure)) {
    throw InputError(fmt::format("{}: {} crashes on this file: it is damaged or malicious", path,
                                 library_version()));
  }
  ensure(WIFSIGNALED(status),
         "{}: the process that checks untrusted HDF5 files exited with code {}", path,
         WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  if (signal == SIGXCPU || signal == SIGALRM)
    throw InputError(
        fmt::format("{}: {} does not finish reading this file: it is damaged or malicious", path,
                    library_version()));
  ensure(is_crash_signal(signal),
         "{}: the process that checks untrusted HDF5 files was killed by signal {}", path, signal);
  throw InputError(fmt::format("{}: {} crashes on this file ({}): it is damaged or malicious", path,
                               library_version(), strsignal(signal)));
}

void probe_batch(const std::vector<std::string>& command, std::span<const std::string> paths) {
  std::vector<std::string> command_line = command;
  for (const std::string& path : paths)
    command_line.push_back(path.starts_with('-') ? "./" + path : path);  // not an option
  Pipe pipe;
  const pid_t child = spawn_probe(command_line, pipe);
  pipe.close_write();
  const std::size_t passed = pipe.count();
  const int status = wait_for_exit(child);
  if (passed < paths.size()) throw_probe_failure(status, paths[passed]);
}

// The functions below run in the probe process.

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

/// Returns whether this process may have reached its memory limit. HDF5 treats a failed allocation
/// like any other error, so the probe may survive, but a reader without the limit would allocate
/// the memory. A buffer that doubles its size fails when a third of the limit is in use; an honest
/// file needs less than a quarter.
bool is_near_limit(const MemoryUse& start) {
  return MemoryUse::measure().peak_resident > start.peak_resident + max_memory_bytes / 3;
}

/// Limits the processor time from now on, and the wall-clock time, since a corrupted heap can leave
/// a process waiting for its own lock.
void limit_time(std::int64_t file_bytes) {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const rlim_t seconds = std::clamp<rlim_t>(
      static_cast<rlim_t>(std::max<std::int64_t>(file_bytes, 0) / min_bytes_per_second),
      min_seconds, max_seconds);
  set_limit(RLIMIT_CPU,
            static_cast<rlim_t>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + 1 + seconds);
  ::alarm(static_cast<unsigned>(seconds) * wall_clock_factor);
}

/// Runs the body and ignores InputError: readers of the file report such errors themselves.
template <class Body>
void ignore_input_errors(Body&& body) {
  try {
    body();
  } catch (const InputError&) {
  }
}

/// Reads values at both ends of a dataset, so that conversions, chunks and filters run.
void scan_values(const Hdf5Dataset& dataset) {
  const Hdf5Description& description = dataset.description();
  const bool number = description.kind == Hdf5Description::Kind::integer ||
                      description.kind == Hdf5Description::Kind::real;
  if (!number || description.bytes == 0) return;
  if (description.shape.empty()) {
    double value = 0;
    return dataset.read_all(Hdf5Number::float64, &value);
  }
  std::int64_t row = 1;
  for (std::size_t i = 1; i < description.shape.size(); ++i) row *= description.shape[i];
  const auto item = static_cast<std::int64_t>(sizeof(double));
  if (row > max_value_bytes / item) return;
  const std::int64_t rows = std::min(description.shape[0], max_value_bytes / item / row);
  std::vector<std::int64_t> start(description.shape.size(), 0), count = description.shape;
  count[0] = rows;
  std::vector<double> values(static_cast<std::size_t>(rows * row));
  for (const std::int64_t first : {std::int64_t{0}, description.shape[0] - rows}) {
    start[0] = first;
    ignore_input_errors([&] { dataset.read(start, count, Hdf5Number::float64, values.data()); });
  }
}

// Readers look up these names directly. A lookup by name takes another path through HDF5 than a
// listing, and may succeed where the listing fails.
constexpr const char* known_attributes[] = {
    "format", "version", "kind",   "complete",   "step",      "epoch",   "epoch_samples", "samples",
    "deck",   "updates", "digest", "vocabulary", "tokenizer", "classes", "block"};
constexpr const char* known_objects[] = {"model",   "buffers",   "ema",      "optimizer", "state",
                                         "classes", "images",    "labels",   "bytes",     "offsets",
                                         "tokens",  "documents", "checksums"};

void scan_attribute(const Hdf5File& file, const std::string& object, const std::string& name) {
  ignore_input_errors([&] {
    if (file.has_attribute(object, name)) file.attribute(object, name);
  });
  ignore_input_errors([&] {
    if (file.has_attribute(object, name)) file.attribute_strings(object, name);
  });
}

void scan_object(const Hdf5File& file, const std::string& object) {
  for (const char* name : known_attributes) scan_attribute(file, object, name);
  ignore_input_errors([&] {
    for (const std::string& name : file.attribute_names(object)) scan_attribute(file, object, name);
  });
  if (file.is_group(object)) return;
  const Hdf5Dataset dataset = file.dataset(object);
  if (dataset.description().kind == Hdf5Description::Kind::text) file.read_strings(object);
  scan_values(dataset);
}

void scan_file(const std::string& path) {
  const Hdf5File file = Hdf5File::open(path);
  constexpr std::size_t max_depth = 18, most = 1'000'000;  // readers refuse deeper or larger files
  std::vector<std::pair<std::string, std::size_t>> pending{{"/", 0}};
  for (const char* name : known_objects) pending.emplace_back(std::string("/") + name, 1);
  std::size_t seen = 0;
  while (!pending.empty() && seen < most) {
    const auto [object, depth] = pending.back();
    pending.pop_back();
    ++seen;
    ignore_input_errors([&] { scan_object(file, object); });
    if (depth == max_depth) continue;
    ignore_input_errors([&] {
      if (!file.is_group(object)) return;
      for (const std::string& name : file.list(object))
        pending.emplace_back(object == "/" ? "/" + name : object + "/" + name, depth + 1);
    });
  }
}

}  // namespace

void set_hdf5_probe_command(std::vector<std::string> command) {
  const std::lock_guard lock(probe().mutex);
  probe().command = std::move(command);
}

void probe_hdf5(const std::vector<std::string>& paths) {
  const std::lock_guard lock(probe().mutex);
  if (probe().command.empty()) return;
  std::vector<std::string> open;
  std::vector<FileStamp> stamps;
  for (const std::string& path : paths) {
    const FileStamp stamp = stamp_of(path);
    if (stamp == FileStamp{}) continue;
    const auto known = probe().accepted_files.find(path);
    if (known != probe().accepted_files.end() && known->second == stamp) continue;
    open.push_back(path);
    stamps.push_back(stamp);
  }
  for (std::size_t first = 0; first < open.size(); first += max_paths_per_process) {
    const std::size_t count = std::min(max_paths_per_process, open.size() - first);
    probe_batch(probe().command, std::span(open).subspan(first, count));
    for (std::size_t i = first; i < first + count; ++i) probe().accepted_files[open[i]] = stamps[i];
  }
}

ExitCode run_hdf5_probe(const std::vector<std::string>& paths) {
  const MemoryUse start = MemoryUse::measure();
  set_limit(RLIMIT_CORE, 0);
// AddressSanitizer reserves terabytes of address space.
#if !defined(__SANITIZE_ADDRESS__)
  set_limit(RLIMIT_DATA, start.data + max_memory_bytes);
#endif
  for (const std::string& path : paths) {
    limit_time(stamp_of(path).bytes);
    try {
      ignore_input_errors([&] { scan_file(path); });
    } catch (const std::bad_alloc&) {
      return ExitCode::wrong_input;
    } catch (const std::length_error&) {
      return ExitCode::wrong_input;
    }
    if (is_near_limit(start)) return ExitCode::wrong_input;
    if (::write(STDOUT_FILENO, ".", 1) != 1) return ExitCode::failure;
  }
  return ExitCode::done;
}

void initialize_hdf5() {
  const Hdf5Lock lock;
  H5dont_atexit();
  detail::hdf5_try<Failure>(H5open(), "HDF5 cannot be initialized");
}

}  // namespace trireme::io
