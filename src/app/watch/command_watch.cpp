// SPDX-License-Identifier: Apache-2.0
//
// `trireme watch`: follows a run in a terminal, or as lines in a log.
//
// A loop reads the new rows of metrics.jsonl, run.lock and exit.json, and shows them. It writes
// nothing into the run folder and takes no lock, so it cannot disturb the run. Runs on one process.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
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

/// A run folder that is looked at again and again.
class WatchedRun {
 public:
  explicit WatchedRun(const std::string& path) : folder_(path) { open(); }

  /// Reads what is new. Calls `print` with a line for each row of kind train and each event. Throws
  /// InputError if the folder is gone.
  void read(const std::function<void(const std::string&)>& print) {
    validate(fs::is_directory(folder_.path()), "{}: the folder of the run is gone", folder_.path());
    if (identity() != identity_) open();
    read_deck();
    while (reader_->next())
      if (const auto line = status_.add(*reader_); line && print) print(*line);
  }

  train::RunLife life() const {
    train::RunLife life = train::read_life(folder_);
    if (const std::string skipped = reader_->skipped(); life.trouble.empty() && !skipped.empty())
      life.trouble = printable(folder_.metrics() + ": " + skipped, 200);
    return life;
  }

  const RunStatus& status() const { return status_; }

 private:
  /// Begins with the first row of metrics.jsonl, which may be another file than before.
  void open() {
    identity_ = identity();
    status_ = {};
    deck_time_.reset();
    reader_.emplace(folder_.metrics(), RunStatus::keys());
  }

  /// Reads run.stop and the context of the deck if it has changed, as by another start. A deck that
  /// cannot be read, as one of another version, has no end.
  void read_deck() {
    const std::string path = folder_ / io::run_names::deck;
    std::error_code error;
    const auto time = fs::last_write_time(path, error);
    if (error || time == deck_time_) return;
    deck_time_ = time;
    try {
      const deck::Deck deck = deck::parse_stored(io::read_text_file(path), path).deck;
      status_.set_stop(deck.run.stop, train::context_length(deck));
    } catch (const InputError&) {
      status_.set_stop(std::nullopt, 0);
    }
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
  std::optional<fs::file_time_type> deck_time_;
  std::optional<monitor::MetricsReader> reader_;
};

/// Writes to standard output. Throws Failure if that is closed or full.
void write_out(const std::string& text) {
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  ensure(is_written && std::fflush(stdout) == 0, "standard output cannot be written");
}

/// Shows views on a terminal, each in the place of the one before.
class Screen {
 public:
  void show(const RunStatus& status, const train::RunLife& life) {
    winsize size{};
    const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    const std::size_t columns = known ? size.ws_col : 80, rows = known ? size.ws_row : 24;
    std::vector<std::string> lines =
        view_of(status, life, wall_seconds(), std::max<std::size_t>(columns, 2) - 1);
    // The cursor is in the line below the view.
    lines.resize(std::min(lines.size(), std::max<std::size_t>(rows, 2) - 1));
    const std::size_t above = std::min(shown_, std::max<std::size_t>(rows, 1) - 1);
    std::string text = above > 0 ? fmt::format("\033[{}A\r\033[J", above) : "\r\033[J";
    if (rows == 1)
      text += lines.front();
    else
      for (const std::string& line : lines) text += line + "\n";
    shown_ = rows == 1 ? 0 : lines.size();
    write_out(text);
  }

 private:
  std::size_t shown_ = 0;  ///< lines
};

/// Returns whether no other start follows by itself: a chain goes on after these two codes.
bool has_ended(const train::RunLife& life) {
  return life.exit_code && *life.exit_code != static_cast<int>(ExitCode::stopped_early) &&
         *life.exit_code != static_cast<int>(ExitCode::rank_lost);
}

/// Follows a run as lines, to its end: what is there at first as a summary, then each new row.
void follow_as_lines(WatchedRun& run, double every) {
  std::string said;
  for (bool is_first = true;; is_first = false) {
    // The end is looked for first, so that no row after the look is missed.
    const train::RunLife life = run.life();
    if (is_first)
      run.read({});
    else
      run.read([](const std::string& line) { write_out(line + "\n"); });
    if (is_first) {
      for (const RunStatus::Note& event : run.status().events()) write_out(line_of(event) + "\n");
      if (run.status().value("step")) write_out(line_of(run.status()) + "\n");
    }
    const std::string ended = life.is_running() ? "" : train::describe(life);
    // The age of a heartbeat changes.
    const std::string kind = ended.substr(0, ended.find_first_of(":,"));
    if (!ended.empty() && kind != said) write_out(ended + "\n");
    said = kind;
    if (has_ended(life)) return;
    std::this_thread::sleep_for(std::chrono::duration<double>(every));
  }
}

void follow_on_terminal(WatchedRun& run, double every) {
  Screen screen;
  while (true) {
    const train::RunLife life = run.life();
    run.read({});
    screen.show(run.status(), life);
    if (has_ended(life)) return;
    std::this_thread::sleep_for(std::chrono::duration<double>(every));
  }
}

ExitCode watch_command(const WatchOptions& options) {
  monitor::RunFolder(options.run).check_is_run();
  validate(options.every >= 0.1 && options.every <= 3600, "--every {}: must be 0.1 to 3600 seconds",
           options.every);
  WatchedRun run(options.run);
  if (options.once) {
    run.read({});
    for (const std::string& line : view_of(run.status(), run.life(), wall_seconds(), 100))
      write_out(line + "\n");
  } else if (::isatty(STDOUT_FILENO) == 1) {
    follow_on_terminal(run, options.every);
  } else {
    follow_as_lines(run, options.every);
  }
  return ExitCode::done;
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
