// SPDX-License-Identifier: Apache-2.0
//
// The watchdog thread of each rank: sends heartbeats to rank 0 over UDP, checks for lost ranks, and
// ends the job with exit code 77 if one is lost. The main thread only notes phases and steps.
//
// run() is the loop: receive a message or time out, print a report if SIGUSR2 asks for one, send
// the own heartbeat when it is due, check. Without a deadline it only prints reports. The thread
// never blocks in MPI or on the device. Timeline in watchdog.hpp; design in
// docs/design/decisions/0010.
#include "watchdog.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <unistd.h>

#include "request_report.hpp"

#include "report_signal.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/comm/datagrams/datagrams.hpp"
#include "trireme/device/device.hpp"
#include "trireme/monitor/metrics.hpp"
#include "trireme/monitor/run_folder.hpp"

namespace trireme::train {
namespace {

enum class MessageKind : std::int64_t {
  heartbeat,
  farewell,  // The sender ends normally.
  exit,      // From rank 0: a rank is lost, all ranks exit.
  question,  // From rank 0: the receiver answers with its outstanding requests.
  request    // The answer: one of these requests in `operation`.
};

struct Message {
  MessageKind kind = MessageKind::heartbeat;
  // In an answer: the number of outstanding requests, and the index of this one, oldest first.
  std::int64_t request_count = 0, request_index = 0;
  RankHeartbeat heartbeat;
};
static_assert(sizeof(Message) <= comm::Datagrams::max_bytes);

// Heartbeats per minimum deadline: several may be lost in the network.
constexpr double heartbeats_per_deadline = 12;
constexpr double max_period_seconds = 1;
// Without heartbeats the thread only waits for signals and for its end.
constexpr double idle_period_seconds = 3600;
// Limit for writing the report, because a disk or terminal may hang.
constexpr int exit_timeout_seconds = 20;
// Rank 0's MPI_Abort should end the other ranks; they exit by themselves after this time.
constexpr int grace_seconds = 2;
// Limit for waiting until a checkpoint is published, because its disk may hang.
constexpr double publication_seconds = 2;
// Number of ranks whose requests the report lists, and the time in which they must answer.
// Questions are repeated, because messages may be lost.
constexpr std::size_t max_inspected_ranks = 8;
constexpr double answer_seconds = 0.5, question_period_seconds = 0.1;
// Each rank tolerates a longer silence of rank 0 than the rank before it. So one rank reports for
// all, and rank 0 reports first if the network is split.
constexpr double stagger_seconds = 0.25, max_stagger_seconds = 5;

/// Returns the factor by which deadlines grow if ranks and their threads share cores (at least 1).
double oversubscription(const comm::Environment& environment) {
  const double cores = std::max(1U, std::thread::hardware_concurrency());
  return std::max(1.0, environment.local_size() * KokkosScope::threads() / cores);
}

[[noreturn]] void exit_now() { _exit(static_cast<int>(ExitCode::rank_lost)); }

/// Starts a thread that ends the process after 20 s, in case writing the report hangs.
void start_exit_timer() {
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(exit_timeout_seconds));
    exit_now();
  }).detach();
}

/// Writes lines to standard error at once, because a lock of the log or of stdio may be held by a
/// thread that hangs.
void print(const std::vector<std::string>& lines) {
  // Clears a progress line.
  std::string text = ::isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "";
  for (const std::string& line : lines) text += line + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) return;
    done += static_cast<std::size_t>(std::max<ssize_t>(0, written));
  }
}

}  // namespace

struct Watchdog::State {
  State(const Options& options_in, comm::Environment& environment_in, const comm::Engine& engine_in,
        Log& log_in)
      : options(options_in),
        environment(environment_in),
        engine(engine_in),
        log(log_in),
        rank(environment_in.world().rank()),
        ranks(environment_in.world().size()),
        is_monitoring(options_in.min_deadline_seconds.has_value()),
        min_deadline_seconds(options_in.min_deadline_seconds.value_or(idle_period_seconds) *
                             oversubscription(environment_in)),
        activity(min_deadline_seconds, monotonic_seconds()),
        datagrams(is_monitoring ? environment_in.world() : comm::Communicator()),
        heartbeat_monitor(
            ranks, min_deadline_seconds + std::min(max_stagger_seconds, stagger_seconds * rank),
            monotonic_seconds()) {}

  void run();
  /// Sends the heartbeat that is due and checks for a lost rank.
  void monitor(double now, bool heartbeat_is_due);
  /// Handles a received message; rank 0 answers a heartbeat with its own.
  void handle(const Message& message, int from, double now);
  Message own_heartbeat(double now) const;
  /// Prints the report of this rank: step and phase first, because the requests may be locked by a
  /// thread that hangs.
  void print_report(double now) const;
  RequestReport own_requests() const { return RequestReport(engine.describe()); }
  /// Sends the outstanding requests of this rank to rank 0, one in each message.
  void send_requests();
  /// Returns report lines with the outstanding requests of the ranks that explain a loss. Rank 0
  /// asks them; another rank knows only its own.
  std::vector<std::string> collect_requests(const HeartbeatMonitor::LostRank& lost);
  /// Ends the progress of this rank: see Watchdog::wait_if_lost().
  void end_progress();
  void wait_if_lost() const {
    while (is_lost) std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  /// Writes log lines, exit.json and an event row.
  void record_loss(const HeartbeatMonitor::LostRank& lost, double now);
  /// Reports a lost rank and ends the job.
  [[noreturn]] void end_job(const HeartbeatMonitor::LostRank& lost, double now);
  [[noreturn]] void exit_without_launcher(double now);
  void send_to_all(MessageKind kind);

  const Options options;
  const monitor::RunFolder folder{options.run_folder};
  comm::Environment& environment;
  const comm::Engine& engine;
  Log& log;
  const int rank, ranks;
  const bool is_monitoring;  ///< false: the deck switches the watchdog off
  const double min_deadline_seconds;
  MainThreadActivity activity;
  comm::Datagrams datagrams;
  HeartbeatMonitor heartbeat_monitor;
  std::atomic<bool> ending{false};
  std::atomic<bool> is_lost{false};  ///< A lost rank was found; never reset.
  std::timed_mutex publication;      ///< Held while a checkpoint is published.
  std::thread thread;
};

Message Watchdog::State::own_heartbeat(double now) const {
  Message message;
  message.heartbeat = activity.heartbeat(now, PhasePart::current());
  set_text(message.heartbeat.host, environment.host());
  std::optional<comm::PeerWait> wait = engine.current_wait();
  if (!wait) wait = comm::current_blocking_call();
  if (wait) {
    message.heartbeat.state =
        wait->is_queued ? MainThreadState::waiting_for_queued : MainThreadState::blocked_on_peers;
    message.heartbeat.waiting_seconds = wait->seconds;
    set_text(message.heartbeat.operation, wait->operation);
  } else if (const std::vector<std::string> requests = engine.describe(); !requests.empty()) {
    set_text(message.heartbeat.operation, requests.front());
  }
  return message;
}

void Watchdog::State::print_report(double now) const {
  const RankHeartbeat place = activity.heartbeat(now, PhasePart::current());
  const std::string& host = environment.host();
  print({fmt::format("rank {} on {}: step {}, phase {} for {:.1f} s", rank, host, place.step,
                     place.phase.data(), place.stalled_seconds)});
  std::vector<std::string> lines = own_requests().lines(rank, host);
  lines.insert(lines.begin(), fmt::format("rank {} on {}: {}", rank, host,
                                          describe_state(own_heartbeat(now).heartbeat)));
  print(lines);
}

void Watchdog::State::send_requests() {
  const RequestReport report = own_requests();
  Message message;
  message.kind = MessageKind::request;
  message.request_count = report.count();
  const auto send = [&] { datagrams.send(0, std::as_bytes(std::span(&message, 1))); };
  if (report.count() == 0) send();
  for (const auto& [index, request] : report.oldest()) {
    message.request_index = index;
    set_text(message.heartbeat.operation, request);
    send();
  }
}

std::vector<std::string> Watchdog::State::collect_requests(const HeartbeatMonitor::LostRank& lost) {
  if (rank != 0) return own_requests().lines(rank, environment.host());
  const std::vector<int> inspected = heartbeat_monitor.ranks_to_inspect(lost, max_inspected_ranks);
  std::map<int, RequestReport> reports;
  for (const int other : inspected) reports[other] = other == 0 ? own_requests() : RequestReport{};
  const auto is_complete = [](const auto& entry) { return entry.second.is_complete(); };
  // 1. Ask, again and again, and take the answers.
  const double end = monotonic_seconds() + answer_seconds;
  double ask_at = 0;
  for (double now = 0; !std::all_of(reports.begin(), reports.end(), is_complete) &&
                       (now = monotonic_seconds()) < end;) {
    if (now >= ask_at) {
      ask_at = now + question_period_seconds;
      Message question;
      question.kind = MessageKind::question;
      for (const auto& [other, report] : reports)
        if (!report.is_complete()) datagrams.send(other, std::as_bytes(std::span(&question, 1)));
    }
    Message answer;
    const std::optional<int> from =
        datagrams.receive(std::as_writable_bytes(std::span(&answer, 1)), ask_at - now);
    if (!from || answer.kind != MessageKind::request || !reports.contains(*from)) continue;
    answer.heartbeat.operation.back() = '\0';
    reports[*from].add(answer.request_count, answer.request_index,
                       answer.heartbeat.operation.data());
  }
  // 2. List them, the lost rank first.
  std::vector<std::string> lines;
  for (const int other : inspected)
    for (std::string& line : reports[other].lines(other, heartbeat_monitor.host_of(other)))
      lines.push_back(std::move(line));
  return lines;
}

void Watchdog::State::handle(const Message& message, int from, double now) {
  if (message.kind == MessageKind::farewell) {
    heartbeat_monitor.stop_monitoring(from);
  } else if (message.kind == MessageKind::exit) {
    end_progress();
    std::this_thread::sleep_for(std::chrono::seconds(grace_seconds));
    exit_now();
  } else if (message.kind == MessageKind::question) {
    send_requests();
  } else if (message.kind == MessageKind::heartbeat) {
    RankHeartbeat heartbeat = message.heartbeat;
    // Deadlines of rank 0 are checked by rank 0 itself; other ranks only check that its
    // heartbeats arrive.
    if (rank != 0) heartbeat.deadline_seconds = std::numeric_limits<double>::infinity();
    heartbeat_monitor.record(from, heartbeat, now);
    if (rank != 0) return;
    const Message answer = own_heartbeat(now);
    datagrams.send(from, std::as_bytes(std::span(&answer, 1)));
  }
}

void Watchdog::State::run() {
  const double period =
      is_monitoring ? std::min(max_period_seconds, min_deadline_seconds / heartbeats_per_deadline)
                    : idle_period_seconds;
  double woke = monotonic_seconds(), due = woke;
  while (!ending) {
    Message message;
    const std::optional<int> from =
        datagrams.receive(std::as_writable_bytes(std::span(&message, 1)),
                          std::max(0.001, due - woke), report_descriptor());
    const double now = monotonic_seconds();
    // The whole process was paused: its main thread is not to blame.
    if (is_monitoring && now - woke > min_deadline_seconds / 2) activity.exclude_pause(now - woke);
    woke = now;
    if (take_report_request()) print_report(now);
    if (from) handle(message, *from, now);
    const bool is_due = now >= due;
    if (is_due) due = now + period;
    if (is_monitoring) monitor(now, is_due);
  }
}

void Watchdog::State::monitor(double now, bool heartbeat_is_due) {
  if (heartbeat_is_due) {
    if (environment.launcher_gone()) exit_without_launcher(now);
    const Message own = own_heartbeat(now);
    if (rank == 0)
      heartbeat_monitor.record(0, own.heartbeat, now);
    else
      datagrams.send(0, std::as_bytes(std::span(&own, 1)));
  }
  if (const std::optional<HeartbeatMonitor::LostRank> lost = heartbeat_monitor.find_lost_rank(now))
    end_job(*lost, now);
}

void Watchdog::State::send_to_all(MessageKind kind) {
  Message message;
  message.kind = kind;
  constexpr int times = 3;  // Messages may be lost.
  for (int i = 0; i < times; ++i) {
    if (rank != 0) datagrams.send(0, std::as_bytes(std::span(&message, 1)));
    for (int to = 1; rank == 0 && to < ranks; ++to)
      datagrams.send(to, std::as_bytes(std::span(&message, 1)));
  }
}

void Watchdog::State::end_progress() {
  is_lost = true;
  // A checkpoint that is being published is part of the report.
  std::unique_lock lock(publication, std::defer_lock);
  (void)lock.try_lock_for(std::chrono::duration<double>(publication_seconds));
}

void Watchdog::State::record_loss(const HeartbeatMonitor::LostRank& lost, double now) {
  const std::int64_t finished = activity.last_finished_step();
  try {
    // Rank 0 has the file open and reports before it reads from a disk that may hang.
    if (rank != 0 && options.may_write()) log.open_file(folder.log());
    log.error("{}: the job ends with code {}; submit the same command again to resume",
              lost.description, static_cast<int>(ExitCode::rank_lost));
    for (const std::string& line : heartbeat_monitor.last_known_states(now)) log.report("{}", line);
    if (!options.may_write()) return;
    checkpoint::write_exit_record(folder.path(), {.start = options.start_time,
                                                  .code = ExitCode::rank_lost,
                                                  .reason = lost.description,
                                                  .step = finished});
    monitor::MetricsRow row("event");
    row.add("step", finished).add("event", "rank_lost").add("detail", lost.description);
    monitor::Metrics(folder.metrics()).write(row);
    // Last, because a driver that hangs may block the list of requests.
    for (const std::string& line : collect_requests(lost)) log.report("{}", line);
    log.flush();
  } catch (const std::exception& error) {  // A failed write must not delay the exit.
    log.error("{}", error.what());
  }
}

void Watchdog::State::end_job(const HeartbeatMonitor::LostRank& lost, double now) {
  start_exit_timer();
  end_progress();
  // If the network is split, each part misses the other. Rank 0's report overwrites any other;
  // another rank reports only if no exit.json exists yet.
  std::error_code ignored;
  if (rank == 0 || !std::filesystem::exists(folder.exit_record(), ignored)) record_loss(lost, now);
  if (rank == 0) send_to_all(MessageKind::exit);
  // MPI_Abort also ends ranks that are stopped or on other nodes. It may be called from this thread
  // only with MPI_THREAD_MULTIPLE; otherwise the launcher ends the other ranks when this one exits.
  if (environment.thread_multiple()) environment.abort(ExitCode::rank_lost);
  exit_now();
}

/// Exits if the launcher is gone: some launchers leave running ranks behind.
void Watchdog::State::exit_without_launcher(double now) {
  start_exit_timer();
  end_progress();
  if (rank == 0)
    record_loss({rank, fmt::format("the launcher, or its part on {}, is gone", environment.host())},
                now);
  else
    std::this_thread::sleep_for(std::chrono::seconds(grace_seconds));
  exit_now();
}

Watchdog::Watchdog(const Options& options, comm::Environment& environment,
                   const comm::Engine& engine, Log& log)
    : state_(std::make_unique<State>(options, environment, engine, log)) {
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Watchdog::~Watchdog() {
  state_->ending = true;
  state_->datagrams.stop_receiving();
  state_->thread.join();
  if (state_->is_monitoring) state_->send_to_all(MessageKind::farewell);
}

void Watchdog::enter_phase(const std::string& phase, std::int64_t step) {
  state_->activity.enter_phase(phase, step, monotonic_seconds());
}
void Watchdog::scale_steps(double factor) { state_->activity.scale_steps(factor); }

void Watchdog::begin_step(std::int64_t step) {
  wait_if_lost();
  state_->activity.begin_step(step);
}

void Watchdog::wait_if_lost() const { state_->wait_if_lost(); }

void Watchdog::publish(const std::function<void()>& body) {
  {
    const std::lock_guard lock(state_->publication);
    if (!state_->is_lost) return body();
  }
  state_->wait_if_lost();
}

}  // namespace trireme::train
