#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "trireme/base/batch_job.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/host.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/io/file.hpp"

namespace trireme::checkpoint {
namespace {

// Ranks outlive a launcher that was killed by a second or two: so long a restart at once waits for
// them.
constexpr double exit_wait_seconds = 5;

struct Holder {
  std::string host, job;
  std::string pid_scope;  ///< where a pid means something: hosts and containers of one name differ
  std::int64_t pid = 0;
  std::string process_start;  ///< clock ticks since boot: a number of another process that has the
                              ///< same pid differs
  double heartbeat = 0;       ///< wall seconds

  bool same_process(const Holder& other) const {
    return host == other.host && pid_scope == other.pid_scope && pid == other.pid &&
           process_start == other.process_start;
  }
};

/// The beginning of a small file of /proc; empty where there is none.
std::string read_proc_file(const std::string& path) {
  std::string text;
  if (std::FILE* file = std::fopen(path.c_str(), "r")) {
    char buffer[4096];
    text.assign(buffer, std::fread(buffer, 1, sizeof buffer, file));
    std::fclose(file);
  }
  return text;
}

/// This boot of the host, and whose process numbers are seen here.
const std::string& pid_scope_name() {
  static const std::string name = [] {
    std::string boot = read_proc_file("/proc/sys/kernel/random/boot_id");
    boot.resize(std::min(boot.size(), boot.find('\n')));
    std::error_code ignored;
    return boot + " " + std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
  }();
  return name;
}

/// Field 22 of /proc/<pid>/stat; empty where there is no such process, or only its entry waits for
/// a parent to ask.
std::string process_start(std::int64_t pid) {
  const std::string text = read_proc_file(fmt::format("/proc/{}/stat", pid));
  std::size_t at =
      text.rfind(')');  // the name before it may hold spaces; the field after it is the third
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

Holder this_process() {
  static const std::vector<BatchJob> jobs =
      batch_jobs();  // asked once: Flux tells its job's number by a command
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

/// None where the file is gone; a holder without host where it cannot be read (its age still
/// counts).
std::optional<Holder> read_holder(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  Holder holder;
  try {
    const nlohmann::json json = nlohmann::json::parse(io::read_text_file(path, 1 << 16));
    holder.host = json.at("host").get<std::string>();
    holder.pid_scope = json.value("system", "");
    holder.pid = json.at("pid").get<std::int64_t>();
    holder.process_start = json.at("process_start").get<std::string>();
    holder.job = json.at("job").get<std::string>();
    holder.heartbeat = json.at("heartbeat").get<double>();
  } catch (const std::exception&) {
    if (!std::filesystem::exists(path, error)) return std::nullopt;
    holder = {};
    holder.heartbeat =
        wall_seconds();  // unreadable: waited for as for a fresh one, then taken over
  }
  return holder;
}

/// Whether this host can tell if the process runs; else only its heartbeat can.
bool runs_on_this_host(const Holder& holder) {
  return holder.host == host_name() && holder.pid_scope == pid_scope_name() && holder.pid > 0 &&
         !holder.process_start.empty();
}

bool has_exited(const Holder& holder) {
  return runs_on_this_host(holder) && process_start(holder.pid) != holder.process_start;
}

[[noreturn]] void throw_lease_held(const std::string& path, const Holder& holder, double age) {
  throw InputError(
      fmt::format("{}: this run folder is in use by process {} on host {}{} (heartbeat {:.0f} s "
                  "ago); one run folder belongs to one job at a time: wait for it, "
                  "stop it, or give another run.folder",
                  path, holder.pid, holder.host.empty() ? "(unknown)" : holder.host,
                  holder.job.empty() ? "" : ", " + holder.job, std::max(0.0, age)));
}

/// Waits until the holder is surely gone; throws where it is alive.
void wait_until_abandoned(const std::string& path, const Holder& first, const LeaseTimes& times,
                          Log& log) {
  if (runs_on_this_host(first)) {
    const double until = monotonic_seconds() + exit_wait_seconds;
    while (!has_exited(first) && monotonic_seconds() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (!has_exited(first)) throw_lease_held(path, first, wall_seconds() - first.heartbeat);
    log.info("{}: process {} on this host is gone; its lease is taken over", path, first.pid);
    return;
  }
  if (const std::optional<BatchJob> job = BatchJob::parse(first.job); job && has_ended(*job)) {
    log.info("{}: {} is over; the lease of its process {} on {} is taken over", path, job->title(),
             first.pid, first.host);
    return;
  }
  // Clocks of hosts differ, and are set while a job runs: a heartbeat that looks old is watched for
  // longer than the next one takes, none for longer than the full time.
  const double age = wall_seconds() - first.heartbeat;
  const double wait =
      std::clamp(times.stale_seconds - age,
                 std::min(1.5 * times.renewal_seconds, times.stale_seconds), times.stale_seconds);
  const std::string host = first.host.empty() ? "an unknown host" : first.host;
  log.info("{}: held by process {} on {}{}; waiting {:.0f} s for a sign of life", path, first.pid,
           host, first.job.empty() ? "" : ", " + first.job, wait);
  for (const double until = monotonic_seconds() + wait; monotonic_seconds() < until;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const std::optional<Holder> now = read_holder(path);
    if (!now) return;
    if (!now->host.empty() && (!now->same_process(first) || now->heartbeat != first.heartbeat))
      throw_lease_held(path, *now, wall_seconds() - now->heartbeat);
  }
  log.warn("{}: the heartbeat of process {} on {} has stopped; its lease is taken over", path,
           first.pid, host);
}

/// Beside the file, and of this process alone: numbers of processes are, like names of hosts, the
/// same in several containers.
std::string unique_name(const std::string& path, const char* suffix) {
  return fmt::format("{}.{}.{}.{:08x}.{}", path, host_name(), ::getpid(), std::random_device{}(),
                     suffix);
}

/// Where the file system knows no second names: only one job makes the name, but whoever reads at
/// that moment may see less than the text.
bool create_exclusively(const std::string& path, const std::string& text) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  ensure(descriptor >= 0 || error == EEXIST, "{}: the lease cannot be made: {}", path,
         std::strerror(error));
  if (descriptor < 0) return false;
  try {
    io::replace_file(path, text);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
  return true;
}

/// A name that appears whole or not at all: written aside, then linked. False where somebody else
/// was first.
bool create_atomically(const std::string& path, const std::string& text) {
  const std::string temporary = unique_name(path, "tmp");
  try {
    io::File file(temporary, io::File::Mode::create);
    file.write_at(0, text.data(), static_cast<std::int64_t>(text.size()));
    file.close();
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const int result = ::link(temporary.c_str(), path.c_str());
  const int error = errno;
  ::unlink(temporary.c_str());
  if (result != 0 && io::links_unsupported(error)) return create_exclusively(path, text);
  ensure(result == 0 || error == EEXIST, "{}: the lease cannot be made: {}", path,
         std::strerror(error));
  return result == 0;
}

/// Takes the old file away under a name of its own, so that of two that take over only one does it.
void remove_old_lease(const std::string& path, const Holder& old) {
  const std::string aside = unique_name(path, "old");
  if (::rename(path.c_str(), aside.c_str()) != 0) return;
  const std::optional<Holder> taken = read_holder(aside);
  const bool other =
      taken && !taken->same_process(old);  // of two that cannot be read one is as good as the other
  if (other)
    (void)create_atomically(
        path,
        io::read_text_file(aside));  // somebody had just taken it over: given back
  ::unlink(aside.c_str());
  if (other) throw_lease_held(path, *taken, wall_seconds() - taken->heartbeat);
}

/// A link that leads nowhere can neither be read nor made, and a folder not be taken over: no lease
/// of ours.
void check_lease_path(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(path, ignored);
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(path, ignored)))
    validate(
        std::filesystem::exists(there),
        "{}: is a symbolic link that leads nowhere, where the lease of a job is meant; remove it",
        path);
  const bool free = !std::filesystem::exists(there);
  validate(free || std::filesystem::is_regular_file(there),
           "{}: is no file, where the lease of a job is meant; remove it", path);
}

void acquire_lease(const std::string& path, const LeaseTimes& times, Log& log) {
  check_lease_path(path);
  constexpr int max_attempts = 100;
  for (int attempt = 0; attempt < max_attempts; ++attempt) {
    if (create_atomically(path, text_of(this_process()))) return;
    const std::optional<Holder> holder = read_holder(path);
    if (!holder) continue;
    wait_until_abandoned(path, *holder, times, log);
    remove_old_lease(path, *holder);
  }
  throw Failure(path + ": the lease changes hands all the time");
}

}  // namespace

/// The thread that renews the heartbeat; what ends the run is thrown by check().
struct Lease::Renewer {
  Renewer(std::string path_in, const LeaseTimes& times_in, Log& log_in)
      : path(std::move(path_in)),
        times(times_in),
        log(log_in),
        thread([this] { renew_periodically(); }) {}
  ~Renewer() {
    {
      const std::lock_guard lock(mutex);
      stop_requested = true;
    }
    wake.notify_all();
    thread.join();
  }

  void renew_periodically() {
    std::unique_lock lock(mutex);
    while (fatal_error.empty() &&
           !wake.wait_for(lock, std::chrono::duration<double>(times.renewal_seconds),
                          [this] { return stop_requested; })) {
      lock.unlock();  // a disk that does not answer holds up this thread, and no step
      const std::string found = renew_once();
      lock.lock();
      fatal_error = found;
    }
  }

  /// What ends the run; empty where nothing does.
  std::string renew_once() {
    try {
      const std::optional<Holder> holder = read_holder(path);
      if (holder && !holder->host.empty() && !holder->same_process(this_process()))
        return fmt::format(
            "{}: this job's lease was taken over by process {} on host {}: another job writes in "
            "this run folder; this one stops",
            path, holder->pid, holder->host);
      io::replace_file(path, text_of(this_process()));
      if (std::exchange(last_renewal_failed, false))
        log.info("{}: the heartbeat is written again", path);
      return "";
    } catch (const std::exception& error) {
      return handle_failure(error.what());
    }
  }

  /// A folder that is gone ends the run. A disk that is full, or fails for a while, may pass, and
  /// another job that takes the lease meanwhile is seen then.
  std::string handle_failure(const std::string& why) {
    std::error_code error;
    if (!std::filesystem::exists(std::filesystem::path(path).parent_path(), error) && !error)
      return why;
    if (!std::exchange(last_renewal_failed, true))
      log.warn(
          "{}; the heartbeat of this job stands still meanwhile, it is tried again every {:.0f} s",
          why, times.renewal_seconds);
    return "";
  }

  std::string path, fatal_error;
  LeaseTimes times;
  Log& log;
  bool stop_requested = false;
  bool last_renewal_failed = false;  ///< of the thread alone
  mutable std::mutex mutex;
  std::condition_variable wake;
  std::thread thread;
};

Lease::Lease() = default;

Lease::Lease(const comm::Communicator& world, const std::string& run_folder, Log& log,
             const LeaseTimes& times) {
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    const std::string path = run_folder + "/run.lock";
    acquire_lease(path, times, log);
    renewer_ = std::make_unique<Renewer>(path, times, log);
  });
}

Lease::~Lease() {
  try {
    release();
  } catch (const std::exception&) {  // the next start sees that this process is gone
  }
}

Lease::Lease(Lease&&) noexcept = default;
Lease& Lease::operator=(Lease&&) noexcept = default;

void Lease::check() const {
  if (renewer_ == nullptr) return;
  const std::lock_guard lock(renewer_->mutex);
  ensure(renewer_->fatal_error.empty(), "{}", renewer_->fatal_error);
}

void Lease::release() {
  if (renewer_ == nullptr) return;
  const std::string path = renewer_->path;
  renewer_.reset();
  const std::optional<Holder> holder = read_holder(path);
  if (holder && holder->same_process(this_process())) ::unlink(path.c_str());
}

}  // namespace trireme::checkpoint
