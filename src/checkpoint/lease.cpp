// SPDX-License-Identifier: Apache-2.0
//
// Lease: exclusive ownership of a folder, held in the file run.lock. Runs hold their run folder,
// `trireme shard` its staging folder.
//
// Acquiring, on rank 0:
//   1. create run.lock with this process as holder; done if no such file existed
//   2. otherwise read its holder and wait until it has certainly exited; refuse if it is alive
//   3. rename the old file to a private name, check that it is still the one of step 2, remove it
//   4. repeat from 1: another process may be faster
//
// While the lease is held, a thread looks at run.lock every look_seconds and rewrites the heartbeat
// every renewal_seconds. A removed file is created again, unless another job has done so, or has
// left an exit record.
// Lease::check(), once a step, throws if the lease was found lost.
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

#include <fcntl.h>
#include <unistd.h>

#include "lease_holder.hpp"
#include "trireme/base/batch_job.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/expect.hpp"
#include "trireme/base/host.hpp"
#include "trireme/base/plain_file.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/run_names.hpp"

namespace trireme::checkpoint {
namespace {

namespace names = io::run_names;

// A restart waits this long for ranks to exit: they may outlive a killed launcher by 2 s.
constexpr double exit_wait_seconds = 5;

/// Throws InputError: the lease is held.
[[noreturn]] void throw_lease_held(const std::string& path, const Holder& holder, double age,
                                   const LeaseWords& words) {
  throw InputError(fmt::format(
      "{}: this {} is in use by process {} on host {}{} (heartbeat {:.0f} s ago); one "
      "{} belongs to one job at a time: wait for it, stop it, or {}",
      path, words.folder, holder.pid, holder.host.empty() ? "(unknown)" : holder.host,
      holder.job.empty() ? "" : ", " + holder.job, std::max(0.0, age), words.folder, words.remedy));
}

/// Waits until the holder has certainly exited, and returns true; false if its file is gone or
/// names another process. Throws InputError if it is alive. Waits up to 5 s for a process of this
/// host, else up to stale_seconds.
bool wait_until_abandoned(const std::string& path, const Holder& first, const LeaseTimes& times,
                          const LeaseWords& words, Log& log) {
  // 1. A process of this host: /proc is certain.
  if (runs_on_this_host(first)) {
    const double until = monotonic_seconds() + exit_wait_seconds;
    const auto is_released = [&] {
      const std::optional<Holder> now = read_holder(path);
      return !now || (!now->host.empty() && !now->same_process(first));
    };
    while (!has_exited(first) && monotonic_seconds() < until) {
      if (is_released()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    if (is_released()) return false;  // just before the process exited
    if (!has_exited(first)) throw_lease_held(path, first, wall_seconds() - first.heartbeat, words);
    log.info("{}: process {} on this host is gone; its lease is taken over", path, first.pid);
    return true;
  }
  // 2. A process of a batch job: ask the scheduler.
  if (const std::optional<BatchJob> job = BatchJob::parse(first.job); job && has_ended(*job)) {
    log.info("{}: {} is over; the lease of its process {} on {} is taken over", path, job->title(),
             first.pid, first.host);
    return true;
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
    if (!now) return false;
    if (!now->host.empty() && (!now->same_process(first) || now->heartbeat != first.heartbeat))
      throw_lease_held(path, *now, wall_seconds() - now->heartbeat, words);
  }
  log.warn("{}: the heartbeat of process {} on {} has stopped; its lease is taken over", path,
           first.pid, host);
  return true;
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
  if (other) (void)create_atomically(path, io::read_own_text_file(aside, max_holder_bytes));
  ::unlink(aside.c_str());
  if (other) throw_lease_held(path, *taken, wall_seconds() - taken->heartbeat, words);
}

/// Throws InputError if something else than a regular file is there: it cannot hold a lease.
void check_lease_path(const std::string& path) {
  const std::string kind = other_kind_of_file(path);
  validate(kind.empty(), "{}: is {}, but the lease of a job must be a regular file; remove it",
           path, kind);
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
    if (wait_until_abandoned(path, *holder, times, words, log))
      remove_old_lease(path, *holder, words);
  }
  throw Failure(path + ": the lease could not be acquired: other jobs keep taking it");
}

}  // namespace

/// The lease of one rank. On rank 0 a thread renews the heartbeat.
struct Lease::State {
  State(std::string path_in, Holder holder_in, const LeaseTimes& times_in, Log& log_in)
      : path(std::move(path_in)), holder(std::move(holder_in)), times(times_in), log(log_in) {}
  ~State() {
    {
      const std::lock_guard lock(mutex);
      stop_requested = true;
    }
    wake.notify_all();
    if (thread.joinable()) thread.join();
  }

  void start_thread() {
    thread = std::thread([this] { look_periodically(); });
  }
  bool is_owner() const { return thread.joinable(); }
  double period_seconds() const { return std::min(times.look_seconds, times.renewal_seconds); }

  /// The loop of the thread: looks until the destructor runs or the lease is lost.
  void look_periodically() {
    std::unique_lock lock(mutex);
    while (fatal_error.empty() &&
           !wake.wait_for(lock, std::chrono::duration<double>(period_seconds()),
                          [this] { return stop_requested; })) {
      // A disk that hangs delays only this thread, not check() in the training step.
      lock.unlock();
      look(Look::by_version);
      lock.lock();
    }
  }

  /// How to look at run.lock. `by_version`: reads it only if it is another version than the last
  /// one with this job as holder.
  enum class Look : std::uint8_t { by_version, by_content };

  /// Looks at run.lock once and renews the heartbeat if that is due. Returns whether the lease is
  /// held. Rank 0 only; any thread.
  bool look(Look how) {
    {
      const std::lock_guard lock(mutex);
      look_began = monotonic_seconds();
    }
    const std::lock_guard looking(look_mutex);
    if (is_lost()) return false;
    // A pause of the process during the look makes what it has seen old.
    const double began = monotonic_seconds();
    const bool renewal_is_due = monotonic_seconds() - last_renewal >= times.renewal_seconds;
    const std::optional<FileVersion> version = version_of(path.c_str());
    std::string found;
    if (how == Look::by_content || renewal_is_due || !version || version != own_version) {
      own_version.reset();
      found = look_once(renewal_is_due, version);
    }
    // First: who reads the error may log it, and the file belongs to another job.
    if (!found.empty()) log.close_file();
    {
      const std::lock_guard lock(mutex);
      last_look = began;
      fatal_error = found;
    }
    return found.empty();
  }

  bool is_lost() const {
    const std::lock_guard lock(mutex);
    return !fatal_error.empty();
  }

  /// Returns whether the lease is held. Looks if the thread has not done so for several periods, as
  /// after a pause of the process. A look that the thread has just begun is waited for; one that
  /// hangs is not.
  bool is_held() {
    if (!is_late()) return !is_lost();
    std::unique_lock looking(look_mutex, std::defer_lock);
    if (!looking.try_lock_for(std::chrono::duration<double>(seconds_to_wait()))) return !is_lost();
    looking.unlock();
    return is_late() ? look(Look::by_content) : !is_lost();
  }

  /// Returns whether the last look began several periods ago.
  bool is_late() const {
    const std::lock_guard lock(mutex);
    return monotonic_seconds() - last_look > 3 * period_seconds();
  }

  /// Returns what is left of a period since a look began.
  double seconds_to_wait() const {
    const std::lock_guard lock(mutex);
    return std::max(0.0, look_began + period_seconds() - monotonic_seconds());
  }

  /// Returns the error that must end the run, else "". `version`: that of the file now.
  std::string look_once(bool renewal_is_due, const std::optional<FileVersion>& version) {
    try {
      std::optional<Holder> found = read_holder(path);
      if (!found) {
        // A running job has no exit record: another one has begun and ended meanwhile.
        if (is_there(std::filesystem::path(path).parent_path() / names::exit_record))
          return fmt::format(
              "{}: this job's lease was removed, and another job has ended in this folder; this "
              "one stops",
              path);
        if (create_atomically(path, text_of(this_process()))) {
          log.warn("{}: was removed; this job has created it again", path);
          return "";
        }
        found = read_holder(path);
      }
      // A file that another process creates may be empty at the first look.
      const bool readable = found && !found->host.empty();
      const bool first_time = !readable && !was_unreadable;
      was_unreadable = !readable;
      if (readable && !found->same_process(holder))
        return fmt::format(
            "{}: this job's lease was taken over by process {} on host {}: another job writes in "
            "this folder; this one stops",
            path, found->pid, found->host);
      if (first_time || (readable && !renewal_is_due)) {
        if (readable && version_of(path.c_str()) == version) own_version = version;
        return "";
      }
      io::replace_file(path, text_of(this_process()));
      last_renewal = monotonic_seconds();
      if (std::exchange(was_unreadable, false))
        log.warn("{}: could not be read; this job has written it again", path);
      if (std::exchange(last_renewal_failed, false))
        log.info("{}: the heartbeat is written again", path);
      return "";
    } catch (const std::exception& error) {
      return handle_failure(error.what());
    }
  }

  /// Handles a failed renewal. A missing folder must end the run. A full or failing disk may
  /// recover, so it causes one warning. If another job takes the lease meanwhile, the next look
  /// notices.
  std::string handle_failure(const std::string& why) {
    std::error_code error;
    if (!std::filesystem::exists(std::filesystem::path(path).parent_path(), error) && !error)
      return why;
    if (!std::exchange(last_renewal_failed, true))
      log.warn("{}; the heartbeat of this job is not renewed; retrying every {:.0f} s", why,
               period_seconds());
    return "";
  }

  const std::string path;
  const Holder holder;
  const LeaseTimes times;
  Log& log;
  /// Held during a look; guards the next five members.
  std::timed_mutex look_mutex;
  double last_renewal = monotonic_seconds();
  std::optional<FileVersion> own_version;  ///< of run.lock when this job was read in it
  bool last_renewal_failed = false;
  bool was_unreadable = false;  ///< at the last look
  /// Guards the next four members. Never held while a file is read or written.
  mutable std::mutex mutex;
  std::string fatal_error;                 ///< the error that must end the run
  double last_look = monotonic_seconds();  ///< the beginning of the last one that has ended
  double look_began = 0;
  bool stop_requested = false;
  std::condition_variable wake;
  std::thread thread;
};

Lease::Lease() = default;

Lease::Lease(const comm::Communicator& world, const std::string& folder, Log& log,
             const LeaseTimes& times, const LeaseWords& words) {
  const std::string path = folder + "/" + names::lease;
  comm::together(world, [&] {
    if (world.rank() == 0) acquire_lease(path, times, words, log);
  });
  const std::optional<Holder> holder = parse_holder(world.broadcast(text_of(this_process()), 0));
  TRIREME_EXPECT(holder);
  state_ = std::make_unique<State>(path, *holder, times, log);
  if (world.rank() == 0) state_->start_thread();
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
  if (is_held()) return;
  const std::lock_guard lock(state_->mutex);
  throw Failure(state_->fatal_error);
}

bool Lease::is_held() const {
  if (state_ == nullptr || !state_->is_owner()) return true;
  return state_->is_held();
}

bool Lease::confirm() const {
  if (state_ == nullptr) return true;
  if (state_->is_owner()) return state_->look(State::Look::by_content);
  const std::optional<Holder> found = read_holder(state_->path);
  return found && found->same_process(state_->holder);
}

void Lease::release() {
  if (state_ == nullptr) return;
  const bool is_owner = state_->is_owner();
  const std::string path = state_->path;
  state_.reset();
  if (!is_owner) return;
  const std::optional<Holder> holder = read_holder(path);
  if (holder && holder->same_process(this_process())) ::unlink(path.c_str());
}

void wait_for_removed_lease(const comm::Communicator& world, const std::string& run_folder,
                            Log& log, const LeaseTimes& times) {
  comm::together(world, [&] {
    const std::string path = run_folder + "/" + names::lease;
    std::error_code ignored;
    const auto has = [&](const std::string& name) {
      return std::filesystem::exists(name, ignored);
    };
    if (world.rank() != 0 || has(path) || has(run_folder + "/" + names::exit_record) ||
        !has(run_folder + "/" + names::log))
      return;
    const double wait = 2 * times.look_seconds;
    log.info("{}: missing, and so is {} of the last job: waiting {:.0f} s in case that it runs",
             path, names::exit_record, wait);
    for (const double until = monotonic_seconds() + wait;
         !has(path) && monotonic_seconds() < until;)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
}

}  // namespace trireme::checkpoint
