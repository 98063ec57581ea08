// Lease: exclusive ownership of a folder, held in the file run.lock. Runs hold their run folder,
// `trireme shard` its staging folder.
//
// Acquiring, on rank 0:
//   1. create run.lock with this process as holder; done if no such file existed
//   2. otherwise read its holder and wait until it has certainly exited; refuse if it is alive
//   3. rename the old file to a private name, check that it is still the one of step 2, remove it
//   4. repeat from 1: another process may be faster
//
// While the lease is held, a thread rewrites the heartbeat every renewal_seconds. Lease::check(),
// once a step, throws if that thread found the lease lost.
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
#include "trireme/io/json.hpp"

namespace trireme::checkpoint {
namespace {

// Ranks may outlive a killed launcher by a second or two. A restart waits this long for them to
// exit.
constexpr double exit_wait_seconds = 5;

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

/// Returns the holder in the file; none if there is no file. An unreadable file yields a holder
/// without host and with a fresh heartbeat.
std::optional<Holder> read_holder(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  Holder holder;
  try {
    const auto json = io::read_json_file<nlohmann::json>(path, {.bytes = 1 << 16});
    holder.host = json.at("host").get<std::string>();
    holder.pid_scope = json.value("system", "");
    holder.pid = json.at("pid").get<std::int64_t>();
    holder.process_start = json.at("process_start").get<std::string>();
    holder.job = json.at("job").get<std::string>();
    holder.heartbeat = json.at("heartbeat").get<double>();
  } catch (const std::exception&) {
    if (!std::filesystem::exists(path, error)) return std::nullopt;
    holder = {};
    // The caller waits stale_seconds for an unreadable file, then takes it over.
    holder.heartbeat = wall_seconds();
  }
  return holder;
}

/// Returns whether /proc of this host shows if the holder runs. For other holders only the
/// heartbeat does.
bool runs_on_this_host(const Holder& holder) {
  return holder.host == host_name() && holder.pid_scope == pid_scope_name() && holder.pid > 0 &&
         !holder.process_start.empty();
}

/// Returns whether the holder is a process of this host that has exited.
bool has_exited(const Holder& holder) {
  return runs_on_this_host(holder) && process_start(holder.pid) != holder.process_start;
}

/// Throws InputError: the lease is held.
[[noreturn]] void throw_lease_held(const std::string& path, const Holder& holder, double age,
                                   const LeaseWords& words) {
  throw InputError(fmt::format(
      "{}: this {} is in use by process {} on host {}{} (heartbeat {:.0f} s ago); one "
      "{} belongs to one job at a time: wait for it, stop it, or {}",
      path, words.folder, holder.pid, holder.host.empty() ? "(unknown)" : holder.host,
      holder.job.empty() ? "" : ", " + holder.job, std::max(0.0, age), words.folder, words.remedy));
}

/// Waits until the holder has certainly exited. Throws InputError if it is alive. Waits up to 5 s
/// for a process of this host, else up to stale_seconds.
void wait_until_abandoned(const std::string& path, const Holder& first, const LeaseTimes& times,
                          const LeaseWords& words, Log& log) {
  // 1. A process of this host: /proc is certain.
  if (runs_on_this_host(first)) {
    const double until = monotonic_seconds() + exit_wait_seconds;
    while (!has_exited(first) && monotonic_seconds() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (!has_exited(first)) throw_lease_held(path, first, wall_seconds() - first.heartbeat, words);
    log.info("{}: process {} on this host is gone; its lease is taken over", path, first.pid);
    return;
  }
  // 2. A process of a batch job: ask the scheduler.
  if (const std::optional<BatchJob> job = BatchJob::parse(first.job); job && has_ended(*job)) {
    log.info("{}: {} is over; the lease of its process {} on {} is taken over", path, job->title(),
             first.pid, first.host);
    return;
  }
  // 3. Any other process: watch the heartbeat. Clocks of hosts differ and may be set while a job
  //    runs, so an old time alone proves nothing. Wait for at least 1.5 renewals and at most
  //    stale_seconds.
  const double age = wall_seconds() - first.heartbeat;
  const double wait =
      std::clamp(times.stale_seconds - age,
                 std::min(1.5 * times.renewal_seconds, times.stale_seconds), times.stale_seconds);
  const std::string host = first.host.empty() ? "an unknown host" : first.host;
  log.info("{}: held by process {} on {}{}; waiting {:.0f} s for a heartbeat", path, first.pid,
           host, first.job.empty() ? "" : ", " + first.job, wait);
  for (const double until = monotonic_seconds() + wait; monotonic_seconds() < until;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const std::optional<Holder> now = read_holder(path);
    if (!now) return;
    if (!now->host.empty() && (!now->same_process(first) || now->heartbeat != first.heartbeat))
      throw_lease_held(path, *now, wall_seconds() - now->heartbeat, words);
  }
  log.warn("{}: the heartbeat of process {} on {} has stopped; its lease is taken over", path,
           first.pid, host);
}

/// Returns a name beside the file that only this process uses. Host name and pid are not enough:
/// containers may share both.
std::string unique_name(const std::string& path, const char* suffix) {
  return fmt::format("{}.{}.{}.{:08x}.{}", path, host_name(), ::getpid(), std::random_device{}(),
                     suffix);
}

/// Creates the file exclusively, on file systems without hard links. Returns false if it exists. A
/// process that reads at the same moment may see an empty file.
bool create_exclusively(const std::string& path, const std::string& text) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  ensure(descriptor >= 0 || error == EEXIST, "{}: the lease cannot be created: {}", path,
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

/// Creates the file so that it appears complete or not at all: writes a temporary file, then links
/// it to the name. Returns false if the file exists. Throws Failure if it cannot be created.
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
  ensure(result == 0 || error == EEXIST, "{}: the lease cannot be created: {}", path,
         std::strerror(error));
  return result == 0;
}

/// Removes the file of an old holder. Throws InputError if the file meanwhile belongs to another
/// process. Renaming it to a private name first makes this safe for two processes at once:
///
///   process A                      process B
///   reads the old holder: dead     reads the old holder: dead
///   renames run.lock to A.old
///   links a new run.lock
///                                  renames run.lock to B.old
///                                  B.old names A: links it back as run.lock, refuses
void remove_old_lease(const std::string& path, const Holder& old, const LeaseWords& words) {
  const std::string aside = unique_name(path, "old");
  if (::rename(path.c_str(), aside.c_str()) != 0) return;
  const std::optional<Holder> taken = read_holder(aside);
  // Unreadable holders compare equal.
  const bool other = taken && !taken->same_process(old);
  // Another process took the lease over between reading and renaming: restore its file.
  if (other) (void)create_atomically(path, io::read_text_file(aside));
  ::unlink(aside.c_str());
  if (other) throw_lease_held(path, *taken, wall_seconds() - taken->heartbeat, words);
}

/// Throws InputError if the path is a dangling symbolic link or not a regular file: neither can
/// hold a lease.
void check_lease_path(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(path, ignored);
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(path, ignored)))
    validate(
        std::filesystem::exists(there),
        "{}: is a dangling symbolic link, but the lease of a job must be a regular file; remove it",
        path);
  const bool free = !std::filesystem::exists(there);
  validate(free || std::filesystem::is_regular_file(there),
           "{}: is not a regular file, but the lease of a job must be one; remove it", path);
}

/// Acquires the lease; the steps are at the top of this file. Runs on rank 0.
void acquire_lease(const std::string& path, const LeaseTimes& times, const LeaseWords& words,
                   Log& log) {
  check_lease_path(path);
  constexpr int max_attempts = 100;
  for (int attempt = 0; attempt < max_attempts; ++attempt) {
    if (create_atomically(path, text_of(this_process()))) return;
    const std::optional<Holder> holder = read_holder(path);
    if (!holder) continue;
    wait_until_abandoned(path, *holder, times, words, log);
    remove_old_lease(path, *holder, words);
  }
  throw Failure(path + ": the lease could not be acquired: other jobs keep taking it");
}

}  // namespace

/// The thread that renews the heartbeat. Stores the error that must end the run; check() throws it.
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

  /// The loop of the thread: renews until the destructor runs or an error must end the run.
  void renew_periodically() {
    std::unique_lock lock(mutex);
    while (fatal_error.empty() &&
           !wake.wait_for(lock, std::chrono::duration<double>(times.renewal_seconds),
                          [this] { return stop_requested; })) {
      // A disk that hangs delays only this thread, not check() in the training step.
      lock.unlock();
      const std::string found = renew_once();
      lock.lock();
      fatal_error = found;
    }
  }

  /// Renews the heartbeat once. Returns the error that must end the run, else "".
  std::string renew_once() {
    try {
      const std::optional<Holder> holder = read_holder(path);
      if (holder && !holder->host.empty() && !holder->same_process(this_process()))
        return fmt::format(
            "{}: this job's lease was taken over by process {} on host {}: another job writes in "
            "this folder; this one stops",
            path, holder->pid, holder->host);
      io::replace_file(path, text_of(this_process()));
      if (std::exchange(last_renewal_failed, false))
        log.info("{}: the heartbeat is written again", path);
      return "";
    } catch (const std::exception& error) {
      return handle_failure(error.what());
    }
  }

  /// Handles a failed renewal. A missing folder must end the run. A full or failing disk may
  /// recover, so it causes one warning. If another job takes the lease meanwhile, the next renewal
  /// notices.
  std::string handle_failure(const std::string& why) {
    std::error_code error;
    if (!std::filesystem::exists(std::filesystem::path(path).parent_path(), error) && !error)
      return why;
    if (!std::exchange(last_renewal_failed, true))
      log.warn("{}; the heartbeat of this job is not renewed; retrying every {:.0f} s", why,
               times.renewal_seconds);
    return "";
  }

  /// `fatal_error`: the error that must end the run; guarded by `mutex`.
  std::string path, fatal_error;
  LeaseTimes times;
  Log& log;
  bool stop_requested = false;
  bool last_renewal_failed = false;  ///< the last renewal failed; used by the thread only
  mutable std::mutex mutex;
  std::condition_variable wake;
  std::thread thread;
};

Lease::Lease() = default;

Lease::Lease(const comm::Communicator& world, const std::string& folder, Log& log,
             const LeaseTimes& times, const LeaseWords& words) {
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    const std::string path = folder + "/run.lock";
    acquire_lease(path, times, words, log);
    renewer_ = std::make_unique<Renewer>(path, times, log);
  });
}

Lease::~Lease() {
  try {
    release();
  } catch (const std::exception&) {
    // The next start will see that this process has exited.
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
