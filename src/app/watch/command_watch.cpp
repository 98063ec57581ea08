// SPDX-License-Identifier: Apache-2.0
//
// `trireme watch`: follows a run in a terminal, or as lines in a log.
//
// A loop reads the new rows of metrics.jsonl, run.lock and exit.json, and shows them. It writes
// nothing into the run folder and takes no lock, so it cannot disturb the run. Runs on one process.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/commands.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/plain_file.hpp"
#include "trireme/base/text.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/io/file.hpp"
#include "trireme/monitor/run_folder.hpp"
#include "trireme/train/run/run.hpp"
#include "watch_text.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

struct WatchOptions {
  std::string run;
  double every = 2;
  bool once = false;
};

/// Reads run.stop and the context of the run's deck; nothing if the deck cannot be read, as one of
/// another version.
RunStatus status_of(const monitor::RunFolder& folder) {
  const std::string path = folder / io::run_names::deck;
  try {
    const deck::Deck deck = deck::parse_stored(io::read_text_file(path), path).deck;
    return RunStatus(deck.run.stop, train::context_length(deck));
  } catch (const InputError&) {
    return RunStatus(std::nullopt);
  }
}

/// A run folder that is looked at again and again.
class WatchedRun {
 public:
  explicit WatchedRun(const std::string& path) : folder_(path), status_(status_of(folder_)) {
    open();
  }

  /// Reads what is new.
  void read() {
    if (identity() != identity_) {  // a new run, or the first row of this one
      status_ = status_of(folder_);
      open();
    }
    while (reader_->next()) status_.add(*reader_);
  }

  RunLife life() const {
    RunLife life{.name = printable(fs::path(folder_.path()).filename().string(), 80)};
    std::error_code error;
    const auto renewed = fs::last_write_time(folder_ / io::run_names::lease, error);
    life.is_held = !error;
    if (life.is_held)
      life.heartbeat_age =
          std::chrono::duration<double>(fs::file_time_type::clock::now() - renewed).count();
    try {
      if (const auto record = folder_.read_exit_record()) {
        const auto code = record->find("code"), reason = record->find("reason");
        if (code != record->end() && code->is_number_integer()) life.exit_code = code->get<int>();
        if (reason != record->end() && reason->is_string())
          life.exit_reason = printable(reason->get<std::string>(), 200);
      }
    } catch (const InputError&) {  // being replaced, or damaged
    }
    return life;
  }

  const RunStatus& status() const { return status_; }

 private:
  void open() {
    identity_ = identity();
    reader_.emplace(folder_.metrics(), RunStatus::keys());
  }

  /// Returns what changes if another file takes the place of metrics.jsonl.
  std::optional<std::uint64_t> identity() const {
    struct stat file{};
    if (::stat(folder_.metrics().c_str(), &file) != 0) return std::nullopt;
    return file.st_ino;
  }

  monitor::RunFolder folder_;
  RunStatus status_;
  std::optional<std::uint64_t> identity_;
  std::optional<monitor::MetricsReader> reader_;
};

/// Shows views on a terminal, each in the place of the one before.
class Screen {
 public:
  void show(const RunStatus& status, const RunLife& life) {
    winsize size{};
    const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20;
    std::vector<std::string> lines =
        view_of(status, life, wall_seconds(), known ? size.ws_col - 1u : 79u);
    if (known && size.ws_row > 2 && lines.size() + 1 > size.ws_row) lines.resize(size.ws_row - 1u);
    std::string text = shown_ > 0 ? fmt::format("\033[{}A", shown_) : "";
    for (const std::string& line : lines) text += "\r\033[K" + line + "\n";
    for (std::size_t i = lines.size(); i < shown_; ++i) text += "\r\033[K\n";
    shown_ = std::max(shown_, lines.size());
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

 private:
  std::size_t shown_ = 0;  ///< lines
};

/// Prints a line for each new state, and each event once.
class Lines {
 public:
  void show(const RunStatus& status, const RunLife& life) {
    const std::int64_t fresh = status.event_count() - std::exchange(events_, status.event_count());
    const auto& events = status.events();
    const auto count = std::min<std::int64_t>(fresh, std::ssize(events));
    for (auto event = events.end() - count; event != events.end(); ++event)
      fmt::print("step {} {}\n", event->step, event->text);
    if (const std::string line = line_of(status); status.value("step") && line != line_)
      fmt::print("{}\n", line_ = line);
    const std::string ended = life.is_held ? "" : describe_life(life);
    if (!ended.empty() && ended != ended_) fmt::print("{}\n", ended);
    ended_ = ended;
    std::fflush(stdout);
  }

 private:
  std::int64_t events_ = 0;
  std::string line_, ended_;
};

/// Returns whether no other start follows by itself: a chain goes on after these two codes.
bool has_ended(const RunLife& life) {
  return !life.is_held && life.exit_code &&
         *life.exit_code != static_cast<int>(ExitCode::stopped_early) &&
         *life.exit_code != static_cast<int>(ExitCode::rank_lost);
}

ExitCode watch_command(const WatchOptions& options) {
  validate(fs::is_directory(options.run), "{}: no such folder; name the folder of a run",
           options.run);
  validate(monitor::RunFolder(options.run).has_run(),
           "{}: is no run folder: it has neither checkpoints/ nor metrics.jsonl", options.run);
  validate(options.every >= 0.1 && options.every <= 3600, "--every {}: must be 0.1 to 3600 seconds",
           options.every);
  WatchedRun run(options.run);
  const bool on_terminal = ::isatty(STDOUT_FILENO) == 1;
  Screen screen;
  Lines lines;
  while (true) {
    // The end is looked for first, so that no row after the look is missed.
    const RunLife life = run.life();
    run.read();
    if (options.once) {
      for (const std::string& line : view_of(run.status(), life, wall_seconds(), 100))
        fmt::print("{}\n", line);
      return ExitCode::done;
    }
    if (on_terminal)
      screen.show(run.status(), life);
    else
      lines.show(run.status(), life);
    if (has_ended(life)) return ExitCode::done;
    std::this_thread::sleep_for(std::chrono::duration<double>(options.every));
  }
}

}  // namespace

void add_watch(CommandLine& line) {
  Command command = line.add("watch", "Follow a run in a terminal, or as lines in a log");
  const auto options = std::make_shared<WatchOptions>();
  command.option("RUN", options->run, "The folder of the run").required();
  command.option("--every", options->every, "Seconds between two looks").default_shown();
  command.flag("--once", options->once, "Show the run as it is now, and end");
  command.footer("Example:\n  trireme watch runs/fashion");
  command.set_single_rank_action([options] { return watch_command(*options); });
}

}  // namespace trireme::app
