// SPDX-License-Identifier: Apache-2.0
//
// The progress line on a terminal (a pseudo-terminal) and in a file.

#include "trireme/monitor/progress.hpp"
#include "trireme/base/clock.hpp"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scratch_folder.hpp"

namespace trireme::monitor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Redirects stderr to another descriptor during its lifetime.
class Redirected {
 public:
  explicit Redirected(int target) : saved_(::dup(STDERR_FILENO)) {
    std::fflush(stderr);
    ::dup2(target, STDERR_FILENO);
  }
  ~Redirected() {
    std::fflush(stderr);
    ::dup2(saved_, STDERR_FILENO);
    ::close(saved_);
  }

 private:
  int saved_;
};

Progress::State at(std::int64_t step, std::int64_t total) {
  Progress::State state;
  state.step = step;
  state.total_steps = total;
  state.epoch = 0.85;
  state.total_epochs = 10;
  state.loss = 0.40123;
  state.accuracy = 0.8531;
  state.per_second = 1203.4;
  state.seconds_left = 725;
  return state;
}

/// Returns the lines that Progress writes if stderr is a file.
std::vector<std::string> lines_of(std::int64_t every, std::int64_t first, std::int64_t total,
                                  bool enabled = true) {
  const ScratchFolder folder;
  const int file = ::open((folder / "stderr").c_str(), O_WRONLY | O_CREAT, 0600);
  {
    const Redirected redirected(file);
    Log log;
    Progress progress(log, enabled, every);
    for (std::int64_t step = first; step <= total; ++step) progress.show(at(step, total));
    progress.clear();
  }
  ::close(file);
  std::vector<std::string> lines;
  std::istringstream text(contents(folder / "stderr"));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

TEST(Progress, LineHasTheKnownValues) {
  EXPECT_EQ(
      progress_line(at(400, 4680)),
      "step 400/4680, epoch 0.85/10, loss 0.4012, accuracy 85.31 %, 1203 images/s, 12:05 left");
  Progress::State known = at(400, 4680);
  known.flops_per_s = 41.23e12;
  EXPECT_EQ(progress_line(known), progress_line(at(400, 4680)) + ", 41.23 TFLOP/s a rank");
  known.mfu = 0.4512;
  EXPECT_EQ(progress_line(known),
            progress_line(at(400, 4680)) + ", 41.23 TFLOP/s a rank, MFU 45.1 %");
  Progress::State state = at(7, 0);
  state.total_epochs = 0;
  state.accuracy = state.seconds_left = -1;
  state.tokens = true;
  state.per_second = 9.84;
  EXPECT_EQ(progress_line(state), "step 7, epoch 0.85, loss 0.4012, 9.8 tokens/s");
}

TEST(Progress, InAFileOnePlainLineEverySoManySteps) {
  const std::vector<std::string> lines = lines_of(10, 1, 35);
  ASSERT_EQ(lines.size(), 4u) << "steps 10, 20, 30 and the last";
  EXPECT_EQ(lines[0], progress_line(at(10, 35)));
  EXPECT_EQ(lines[3], progress_line(at(35, 35)));
  for (const std::string& line : lines) {
    for (const char c : line)
      EXPECT_FALSE(std::iscntrl(static_cast<unsigned char>(c)))
          << "a control character in: " << line;
  }
}

TEST(Progress, AfterARestartTheSameStepsHaveLines) {
  const std::vector<std::string> whole = lines_of(10, 1, 35), resumed = lines_of(10, 18, 35);
  EXPECT_THAT(resumed, ElementsAre(whole.at(1), whole.at(2), whole.at(3)));
}

TEST(Progress, OtherRanksSayNothing) { EXPECT_TRUE(lines_of(1, 1, 5, false).empty()); }

TEST(Progress, OnATerminalOneLineMovesAtMostTenTimesASecond) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0)
    GTEST_SKIP() << "no pseudo-terminal here";
  const int its_end = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(its_end, 0);
  const double start = monotonic_seconds();
  double seconds = 0;
  {
    const Redirected redirected(its_end);
    Log log;
    Progress progress(log, true, 1);
    for (std::int64_t step = 1; step <= 20; ++step) progress.show(at(step, 20));
    seconds = monotonic_seconds() - start;
    log.info("a line of the log");
    progress.clear();
  }
  std::string text;
  pollfd ready{terminal, POLLIN, 0};
  while (::poll(&ready, 1, 100) == 1) {  // a terminal delivers its data in pieces
    char piece[4096];
    const ssize_t got = ::read(terminal, piece, sizeof piece);
    ASSERT_GT(got, 0);
    text.append(piece, static_cast<std::size_t>(got));
  }
  ::close(its_end);
  ::close(terminal);
  const std::string to_start = "\r\033[K";
  EXPECT_EQ(text.rfind(to_start + progress_line(at(1, 20)), 0), 0u);
  EXPECT_THAT(text, HasSubstr(to_start + progress_line(at(20, 20))));
  std::size_t shown = 0;
  for (std::size_t at = text.find("step "); at != std::string::npos;
       at = text.find("step ", at + 1))
    ++shown;
  EXPECT_LE(shown, 2 + static_cast<std::size_t>(seconds / 0.1))
      << "the first, the last, and ten a second between";
  EXPECT_THAT(text, HasSubstr(to_start + "a line of the log"))
      << "the log clears the moving line first";
  EXPECT_EQ(text.substr(text.size() - to_start.size()), to_start)
      << "nothing is left of the line at its end";
}

}  // namespace
}  // namespace trireme::monitor
