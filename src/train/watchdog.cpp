// The watchdog thread of each rank: sends heartbeats to rank 0 over UDP, checks for lost ranks, and
// ends the job with exit code 77 if one is lost. The main thread only notes phases and steps.
//
// run() is the loop: receive a message or time out, send the own heartbeat when it is due, check.
// The thread never blocks in MPI or on the device. Timeline in watchdog.hpp; design in
// docs/design/decisions/0010.
#include "trireme/train/watchdog.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <limits>
#include <system_error>
#include <thread>

#include <unistd.h>

#include "trireme/base/clock.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/comm/datagrams.hpp"
#include "trireme/device/device.hpp"
#include "trireme/monitor/metrics.hpp"

namespace trireme::train {
namespace {

enum class MessageKind : std::int64_t {
  heartbeat,
  farewell,  // The sender ends normally.
  exit       // From rank 0: a rank is lost, all ranks exit.
};

struct Message {
  MessageKind kind = MessageKind::heartbeat;
  RankHeartbeat heartbeat;
};
static_assert(sizeof(Message) <= comm::Datagrams::max_bytes);

// Heartbeats per minimum deadline: several may be lost in the network.
constexpr double heartbeats_per_deadline = 12;
constexpr double max_period_seconds = 1;
// Limit for writing the report, because a disk or terminal may hang.
constexpr int exit_timeout_seconds = 20;
// Rank 0's MPI_Abort should end the other ranks; they exit by themselves after this time.
constexpr int grace_seconds = 2;
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
        min_deadline_seconds(options_in.min_deadline_seconds * oversubscription(environment_in)),
        activity(min_deadline_seconds, monotonic_seconds()),
        datagrams(environment_in.world()),
        heartbeat_monitor(
            ranks, min_deadline_seconds + std::min(max_stagger_seconds, stagger_seconds * rank),
            monotonic_seconds()) {}

  void run();
  /// Handles a received message; rank 0 answers a heartbeat with its own.
  void handle(const Message& message, int from, double now);
  Message own_heartbeat(double now) const;
  /// Writes log lines, exit.json and an event row.
  void record_loss(const HeartbeatMonitor::LostRank& lost, double now);
  /// Reports a lost rank and ends the job.
  [[noreturn]] void end_job(const HeartbeatMonitor::LostRank& lost, double now);
  [[noreturn]] void exit_without_launcher(double now);
  void send_to_all(MessageKind kind);

  const Options options;
  comm::Environment& environment;
  const comm::Engine& engine;
  Log& log;
  const int rank, ranks;
  const double min_deadline_seconds;
  MainThreadActivity activity;
  comm::Datagrams datagrams;
  HeartbeatMonitor heartbeat_monitor;
  std::atomic<bool> ending{false};
  std::thread thread;
};

Message Watchdog::State::own_heartbeat(double now) const {
  Message message;
  message.heartbeat = activity.heartbeat(now);
  message.heartbeat.waiting = engine.waiting() ? 1 : 0;
  set_text(message.heartbeat.host, environment.host());
  const std::vector<std::string> requests = engine.describe();
  // The oldest request: the rank waits for it now, or will wait for it first.
  if (!requests.empty()) set_text(message.heartbeat.operation, requests.front());
  return message;
}

void Watchdog::State::handle(const Message& message, int from, double now) {
  if (message.kind == MessageKind::farewell) {
    heartbeat_monitor.stop_monitoring(from);
  } else if (message.kind == MessageKind::exit) {
    std::this_thread::sleep_for(std::chrono::seconds(grace_seconds));
    exit_now();
  } else {
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
      std::min(max_period_seconds, min_deadline_seconds / heartbeats_per_deadline);
  double woke = monotonic_seconds(), due = woke;
  while (!ending) {
    Message message;
    const std::optional<int> from = datagrams.receive(
        std::as_writable_bytes(std::span(&message, 1)), std::max(0.001, due - woke));
    const double now = monotonic_seconds();
    // The whole process was paused: its main thread is not to blame.
    if (now - woke > min_deadline_seconds / 2) activity.exclude_pause(now - woke);
    woke = now;
    if (from) handle(message, *from, now);
    if (now >= due) {
      due = now + period;
      if (environment.launcher_gone()) exit_without_launcher(now);
      const Message own = own_heartbeat(now);
      if (rank == 0)
        heartbeat_monitor.record(0, own.heartbeat, now);
      else
        datagrams.send(0, std::as_bytes(std::span(&own, 1)));
    }
    if (const std::optional<HeartbeatMonitor::LostRank> lost =
            heartbeat_monitor.find_lost_rank(now))
      end_job(*lost, now);
  }
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

void Watchdog::State::record_loss(const HeartbeatMonitor::LostRank& lost, double now) {
  const std::int64_t finished = activity.last_finished_step();
  try {
    if (rank != 0) log.open_file(options.run_folder + "/log.txt");
    log.error("{}: the job ends with code {}; submit the same command again to resume",
              lost.description, static_cast<int>(ExitCode::rank_lost));
    for (const std::string& line : heartbeat_monitor.last_known_states(now)) log.info("{}", line);
    const std::int64_t newest = activity.newest_checkpoint();
    const std::string name = newest < 0 ? "" : checkpoint::step_file_name(newest);
    checkpoint::write_exit_record(options.run_folder, {.start = options.start_time,
                                                       .code = ExitCode::rank_lost,
                                                       .reason = lost.description,
                                                       .step = finished,
                                                       .checkpoint = name});
    monitor::MetricsRow row("event");
    row.add("step", finished).add("event", "rank_lost").add("detail", lost.description);
    monitor::Metrics(options.run_folder + "/metrics.jsonl").write(row);
    log.flush();
  } catch (const std::exception& error) {  // A failed write must not delay the exit.
    log.error("{}", error.what());
  }
}

void Watchdog::State::end_job(const HeartbeatMonitor::LostRank& lost, double now) {
  start_exit_timer();
  // If the network is split, each part misses the other. Rank 0's report overwrites any other;
  // another rank reports only if no exit.json exists yet.
  std::error_code ignored;
  if (rank == 0 || !std::filesystem::exists(options.run_folder + "/exit.json", ignored))
    record_loss(lost, now);
  if (rank == 0) send_to_all(MessageKind::exit);
  // MPI_Abort also ends ranks that are stopped or on other nodes. It may be called from this thread
  // only with MPI_THREAD_MULTIPLE; otherwise the launcher ends the other ranks when this one exits.
  if (environment.thread_multiple()) environment.abort(ExitCode::rank_lost);
  exit_now();
}

/// Exits if the launcher is gone: some launchers leave running ranks behind.
void Watchdog::State::exit_without_launcher(double now) {
  start_exit_timer();
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
  state_->send_to_all(MessageKind::farewell);
}

void Watchdog::enter_phase(const std::string& phase, std::int64_t step) {
  state_->activity.enter_phase(phase, step, monotonic_seconds());
}
void Watchdog::begin_step(std::int64_t step, std::int64_t newest_checkpoint) {
  state_->activity.begin_step(step, newest_checkpoint);
}

}  // namespace trireme::train
