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

enum class Kind : std::int64_t {
  sign,
  farewell,  // the sender ends in good order
  leave      // from rank 0: a rank is lost, all go
};

struct Message {
  Kind kind = Kind::sign;
  Sign sign;
};
static_assert(sizeof(Message) <= comm::Datagrams::max_bytes);

// Signs within the shortest deadline: several may be lost on the way.
constexpr double signs_a_deadline = 12;
constexpr double longest_period = 1;
// A disk or a terminal that hangs must not keep the finder from leaving.
constexpr int report_seconds = 20;
// Rank 0's MPI_Abort ends the others; where it does not, they go by themselves after this.
constexpr int grace_seconds = 2;
// So much later than the rank before it a rank notices that rank 0 is lost: then the first speaks
// for all, and before it rank 0 where a network broke in two.
constexpr double turn_seconds = 0.25, longest_turn = 5;

/// Deadlines grow where ranks and their threads share cores: each then waits for its turn on one.
double crowding(const comm::Environment& environment) {
  const double cores = std::max(1U, std::thread::hardware_concurrency());
  return std::max(1.0, environment.local_size() * KokkosScope::threads() / cores);
}

[[noreturn]] void go() { _exit(static_cast<int>(ExitCode::rank_lost)); }

/// However long what this thread still has to say takes.
void go_in_any_case() {
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(report_seconds));
    go();
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
        shortest(options_in.shortest_seconds * crowding(environment_in)),
        activity(shortest, monotonic_seconds()),
        datagrams(environment_in.world()),
        watch(ranks, shortest + std::min(longest_turn, turn_seconds * rank), monotonic_seconds()) {}

  void run();
  void take(const Message& message, int from, double now);
  Message own_sign(double now) const;
  void speak(const Watch::Lost& lost, double now);
  [[noreturn]] void report(const Watch::Lost& lost, double now);
  [[noreturn]] void leave_the_launcher(double now);
  void send_to_all(Kind kind);

  const Options options;
  comm::Environment& environment;
  const comm::Engine& engine;
  Log& log;
  const int rank, ranks;
  const double shortest;
  Activity activity;
  comm::Datagrams datagrams;
  Watch watch;
  std::atomic<bool> ending{false};
  std::thread thread;
};

Message Watchdog::State::own_sign(double now) const {
  Message message;
  message.sign = activity.sign(now);
  message.sign.waiting = engine.waiting() ? 1 : 0;
  set_text(message.sign.host, environment.host());
  const std::vector<std::string> requests = engine.describe();
  if (!requests.empty())
    set_text(message.sign.operation,
             requests.front());  // the oldest: what the rank waits for, or will first
  return message;
}

void Watchdog::State::take(const Message& message, int from, double now) {
  if (message.kind == Kind::farewell) {
    watch.left(from);
  } else if (message.kind == Kind::leave) {
    std::this_thread::sleep_for(std::chrono::seconds(grace_seconds));
    go();
  } else {
    Sign sign = message.sign;
    if (rank != 0)
      sign.allowed_seconds = std::numeric_limits<double>::infinity();  // rank 0 judges that itself,
                                                                       // as long as it gives signs
    watch.heard(from, sign, now);
    if (rank != 0) return;
    const Message answer = own_sign(now);
    datagrams.send(from, std::as_bytes(std::span(&answer, 1)));
  }
}

void Watchdog::State::run() {
  const double period = std::min(longest_period, shortest / signs_a_deadline);
  double woke = monotonic_seconds(), due = woke;
  while (!ending) {
    Message message;
    const std::optional<int> from = datagrams.receive(
        std::as_writable_bytes(std::span(&message, 1)), std::max(0.001, due - woke));
    const double now = monotonic_seconds();
    if (now - woke > shortest / 2) activity.forgive(now - woke);
    woke = now;
    if (from) take(message, *from, now);
    if (now >= due) {
      due = now + period;
      if (environment.launcher_gone()) leave_the_launcher(now);
      const Message own = own_sign(now);
      if (rank == 0)
        watch.heard(0, own.sign, now);
      else
        datagrams.send(0, std::as_bytes(std::span(&own, 1)));
    }
    if (const std::optional<Watch::Lost> lost = watch.look(now)) report(*lost, now);
  }
}

void Watchdog::State::send_to_all(Kind kind) {
  Message message;
  message.kind = kind;
  constexpr int times = 3;  // some may be lost
  for (int i = 0; i < times; ++i) {
    if (rank != 0) datagrams.send(0, std::as_bytes(std::span(&message, 1)));
    for (int to = 1; rank == 0 && to < ranks; ++to)
      datagrams.send(to, std::as_bytes(std::span(&message, 1)));
  }
}

void Watchdog::State::speak(const Watch::Lost& lost, double now) {
  const std::int64_t finished = activity.finished();
  try {
    if (rank != 0) log.open_file(options.run_folder + "/log.txt");
    log.error("{}: the job ends with code {}; submit the same command again to go on", lost.what,
              static_cast<int>(ExitCode::rank_lost));
    for (const std::string& line : watch.last_known(now)) log.info("{}", line);
    const std::int64_t newest = activity.checkpoint();
    const std::string name = newest < 0 ? "" : checkpoint::step_file_name(newest);
    checkpoint::write_exit_record(options.run_folder, {.start = options.start,
                                                       .code = ExitCode::rank_lost,
                                                       .reason = lost.what,
                                                       .step = finished,
                                                       .checkpoint = name});
    monitor::MetricsRow row("event");
    row.add("step", finished).add("event", "rank_lost").add("detail", lost.what);
    monitor::Metrics(options.run_folder + "/metrics.jsonl").write(row);
    log.flush();
  } catch (const std::exception& error) {  // what cannot be written keeps nobody here
    log.error("{}", error.what());
  }
}

void Watchdog::State::report(const Watch::Lost& lost, double now) {
  go_in_any_case();
  // Where a network breaks in two, each part misses the other: rank 0's part has the last word,
  // another's the first where nobody has spoken yet.
  std::error_code ignored;
  if (rank == 0 || !std::filesystem::exists(options.run_folder + "/exit.json", ignored))
    speak(lost, now);
  if (rank == 0) send_to_all(Kind::leave);
  // MPI_Abort also ends ranks that a stopped process or another node holds; without
  // MPI_THREAD_MULTIPLE this thread may not call it, and the launcher does that.
  if (environment.thread_multiple()) environment.abort(ExitCode::rank_lost);
  go();
}

/// Some launchers take their ranks along, some leave those behind that are at work: nobody would
/// end these.
void Watchdog::State::leave_the_launcher(double now) {
  go_in_any_case();
  if (rank == 0)
    speak({rank, fmt::format("the launcher, or its part on {}, is gone", environment.host())}, now);
  else
    std::this_thread::sleep_for(std::chrono::seconds(grace_seconds));
  go();
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
  state_->send_to_all(Kind::farewell);
}

void Watchdog::enter(const std::string& phase, std::int64_t step) {
  state_->activity.enter(phase, step, monotonic_seconds());
}
void Watchdog::step_begins(std::int64_t step, std::int64_t newest_checkpoint) {
  state_->activity.step_begins(step, newest_checkpoint);
}

}  // namespace trireme::train
