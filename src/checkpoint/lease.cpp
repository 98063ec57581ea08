#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

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

constexpr double stale_seconds = 60, renewal_seconds = 10;
// Ranks outlive a launcher that was killed by a second or two: so long a restart at once waits for them.
constexpr double leaving_seconds = 5;

struct Holder {
  std::string host, job;
  std::int64_t pid = 0;
  std::string process_start;  ///< clock ticks since boot: a number of another process that has the same pid differs
  double heartbeat = 0;       ///< wall seconds

  bool same_process(const Holder& other) const { return host == other.host && pid == other.pid && process_start == other.process_start; }
};

/// Field 22 of /proc/<pid>/stat; empty where there is no such process, or only its entry waits for a parent to ask.
std::string process_start(std::int64_t pid) {
  const std::string path = fmt::format("/proc/{}/stat", pid);
  std::string text;
  if (std::FILE* file = std::fopen(path.c_str(), "r")) {
    char buffer[4096];
    text.assign(buffer, std::fread(buffer, 1, sizeof buffer, file));
    std::fclose(file);
  }
  std::size_t at = text.rfind(')');  // the name before it may hold spaces; the field after it is the third
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
  static const std::vector<BatchJob> jobs = batch_jobs();  // asked once: Flux tells its job's number by a command
  return {host_name(), jobs.empty() ? "" : jobs.front().text(), ::getpid(), process_start(::getpid()), wall_seconds()};
}

std::string text_of(const Holder& holder) {
  const nlohmann::ordered_json json{
      {"host", holder.host}, {"pid", holder.pid}, {"process_start", holder.process_start}, {"job", holder.job}, {"heartbeat", holder.heartbeat}};
  return json.dump() + "\n";
}

/// None where the file is gone; a holder without host where it cannot be read (its age still counts).
std::optional<Holder> read_holder(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  Holder holder;
  try {
    const nlohmann::json json = nlohmann::json::parse(io::read_text_file(path, 1 << 16));
    holder.host = json.at("host").get<std::string>();
    holder.pid = json.at("pid").get<std::int64_t>();
    holder.process_start = json.at("process_start").get<std::string>();
    holder.job = json.at("job").get<std::string>();
    holder.heartbeat = json.at("heartbeat").get<double>();
  } catch (const std::exception&) {
    if (!std::filesystem::exists(path, error)) return std::nullopt;
    holder = {};
    holder.heartbeat = wall_seconds();  // unreadable: waited for as for a fresh one, then taken over
  }
  return holder;
}

/// Whether this host can tell if the process runs; else only its heartbeat can.
bool is_known_here(const Holder& holder) { return holder.host == host_name() && holder.pid > 0 && !holder.process_start.empty(); }

bool is_gone(const Holder& holder) { return is_known_here(holder) && process_start(holder.pid) != holder.process_start; }

[[noreturn]] void refuse(const std::string& path, const Holder& holder, double age) {
  throw InputError(fmt::format(
      "{}: this run folder is in use by process {} on host {}{} (heartbeat {:.0f} s ago); one run folder belongs to one job at a time: wait for it, "
      "stop it, or give another run.folder",
      path, holder.pid, holder.host.empty() ? "(unknown)" : holder.host, holder.job.empty() ? "" : ", " + holder.job, age));
}

/// Waits until the holder is surely gone; throws where it is alive.
void wait_out(const std::string& path, const Holder& first, Log& log) {
  if (is_known_here(first)) {
    const double until = monotonic_seconds() + leaving_seconds;
    while (!is_gone(first) && monotonic_seconds() < until) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (!is_gone(first)) refuse(path, first, wall_seconds() - first.heartbeat);
    log.info("{}: process {} on this host is gone; its lease is taken over", path, first.pid);
    return;
  }
  // A clock of another host may be ahead: no wait is longer than the full time from now on.
  const double until = std::min(first.heartbeat, wall_seconds()) + stale_seconds;
  if (until > wall_seconds()) {
    if (const std::optional<BatchJob> job = BatchJob::of(first.job); job && is_over(*job)) {
      log.info("{}: {} is over; the lease of its process {} on {} is taken over", path, job->title(), first.pid, first.host);
      return;
    }
    log.info("{}: held by process {} on {}{}; waiting {:.0f} s for a sign of life", path, first.pid, first.host.empty() ? "an unknown host" : first.host,
             first.job.empty() ? "" : ", " + first.job, until - wall_seconds());
  }
  while (wall_seconds() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const std::optional<Holder> now = read_holder(path);
    if (!now) return;
    if (!now->host.empty() && (!now->same_process(first) || now->heartbeat > first.heartbeat)) refuse(path, *now, wall_seconds() - now->heartbeat);
  }
  log.warn("{}: the heartbeat of process {} on {} has stopped; its lease is taken over", path, first.pid, first.host.empty() ? "an unknown host" : first.host);
}

/// A name that appears whole or not at all: written aside, then linked. False where somebody else was first.
bool create_whole(const std::string& path, const std::string& text) {
  const std::string temporary = fmt::format("{}.{}.{}.tmp", path, host_name(), ::getpid());
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
  ensure(result == 0 || error == EEXIST, "{}: the lease cannot be made: {}", path, std::strerror(error));
  return result == 0;
}

/// Takes the old file away under a name of its own, so that of two that take over only one does it.
void take_away(const std::string& path, const Holder& old) {
  const std::string aside = fmt::format("{}.{}.{}.old", path, host_name(), ::getpid());
  if (::rename(path.c_str(), aside.c_str()) != 0) return;
  const std::optional<Holder> taken = read_holder(aside);
  const bool other = taken && !taken->host.empty() && !taken->same_process(old);
  if (other) (void)create_whole(path, io::read_text_file(aside));  // somebody had just taken it over: given back
  ::unlink(aside.c_str());
  if (other) refuse(path, *taken, wall_seconds() - taken->heartbeat);
}

/// A link that leads nowhere can neither be read nor made, and a folder not be taken over: no lease of ours.
void check_place(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(path, ignored);
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(path, ignored)))
    validate(std::filesystem::exists(there), "{}: is a symbolic link that leads nowhere, where the lease of a job is meant; remove it", path);
  const bool free = !std::filesystem::exists(there);
  validate(free || std::filesystem::is_regular_file(there), "{}: is no file, where the lease of a job is meant; remove it", path);
}

void acquire(const std::string& path, Log& log) {
  check_place(path);
  constexpr int most_attempts = 100;
  for (int attempt = 0; attempt < most_attempts; ++attempt) {
    if (create_whole(path, text_of(this_process()))) return;
    const std::optional<Holder> holder = read_holder(path);
    if (!holder) continue;
    wait_out(path, *holder, log);
    take_away(path, *holder);
  }
  throw Failure(path + ": the lease changes hands all the time");
}

}  // namespace

/// The thread that renews the heartbeat; what it finds wrong is thrown by check().
struct Lease::Heart {
  explicit Heart(std::string path_in) : path(std::move(path_in)), thread([this] { beat(); }) {}
  ~Heart() {
    {
      const std::lock_guard lock(mutex);
      ending = true;
    }
    wake.notify_all();
    thread.join();
  }

  void beat() {
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, std::chrono::duration<double>(renewal_seconds), [this] { return ending; })) {
      try {
        renew(path);
      } catch (const std::exception& error) {
        trouble = error.what();
        return;
      }
    }
  }

  static void renew(const std::string& path) {
    const std::optional<Holder> holder = read_holder(path);
    ensure(!holder || holder->host.empty() || holder->same_process(this_process()),
           "{}: this job's lease was taken over by process {} on host {}: another job writes in this run folder; this one stops", path, holder->pid,
           holder->host);
    io::replace_file(path, text_of(this_process()));
  }

  std::string path, trouble;
  bool ending = false;
  mutable std::mutex mutex;
  std::condition_variable wake;
  std::thread thread;
};

Lease::Lease() = default;

Lease::Lease(const comm::Communicator& world, const std::string& run_folder, Log& log) {
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    const std::string path = run_folder + "/run.lock";
    acquire(path, log);
    heart_ = std::make_unique<Heart>(path);
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
  if (heart_ == nullptr) return;
  const std::lock_guard lock(heart_->mutex);
  ensure(heart_->trouble.empty(), "{}", heart_->trouble);
}

void Lease::release() {
  if (heart_ == nullptr) return;
  const std::string path = heart_->path;
  heart_.reset();
  const std::optional<Holder> holder = read_holder(path);
  if (holder && holder->same_process(this_process())) ::unlink(path.c_str());
}

}  // namespace trireme::checkpoint
