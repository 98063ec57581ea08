// SPDX-License-Identifier: Apache-2.0
//
// The time of a start by its phases.

#include "trireme/train/records/time_account.hpp"

#include <thread>

#include <gtest/gtest.h>

#include "trireme/base/clock.hpp"

namespace trireme::train {
namespace {

using Part = monitor::StartPart;

double part(const TimeAccount& account, Part name) {
  return account.seconds()[static_cast<std::size_t>(name)];
}

TEST(TimeAccount, BeginsWithTheProcess) {
  const double before = wall_seconds();
  const TimeAccount account;
  EXPECT_LT(account.launched(), before);
  EXPECT_GT(account.launched(), before - 3600);
  EXPECT_GT(part(account, Part::launch), 0);
  EXPECT_NEAR(account.launched() + account.total(), wall_seconds(), 0.5);
}

TEST(TimeAccount, PhasesAreParts) {
  TimeAccount account;
  double now = monotonic_seconds();
  const auto spend = [&](const char* phase, double seconds) {
    account.enter(phase, now);
    now += seconds;
  };
  spend("mpi", 1);
  spend("inputs", 2);
  spend("allocate", 3);
  spend("restore", 4);
  spend("step", 5);
  spend("step", 6);
  spend("checkpoint-begin", 7);
  spend("checkpoint-write", 8);
  spend("step", 9);
  spend("evaluation", 10);
  spend("evaluation", 11);
  spend("checkpoint-read", 12);  // a rollback
  spend("step", 13);
  spend("row", 14);  // the next row of batch.ramp
  spend("allocate", 15);
  spend("step", 16);
  spend("step", 17);
  spend("end", 0);
  EXPECT_NEAR(part(account, Part::mpi), 1, 1e-9);
  EXPECT_NEAR(part(account, Part::inputs), 2 + 14, 1e-9);
  EXPECT_NEAR(part(account, Part::allocate), 3 + 15, 1e-9);
  EXPECT_NEAR(part(account, Part::restore), 4 + 12, 1e-9);
  EXPECT_NEAR(part(account, Part::first_step), 5 + 16, 1e-9);
  EXPECT_NEAR(part(account, Part::train), 6 + 9 + 13 + 17, 1e-9);
  EXPECT_NEAR(part(account, Part::checkpoint), 7 + 8, 1e-9);
  EXPECT_NEAR(part(account, Part::evaluate), 10 + 11, 1e-9);
}

TEST(TimeAccount, OtherThreadsDoNotChangeThePart) {
  const TimeAccount account;
  enter_phase("evaluation");
  std::thread([] { enter_phase("checkpoint-write"); }).join();
  EXPECT_EQ(part(account, Part::checkpoint), 0);
  EXPECT_GT(part(account, Part::evaluate), 0);
}

TEST(TimeAccount, IsNotTheOnlyObserver) {
  int seen = 0;
  const TimeAccount account;
  {
    const PhaseObserver other([&](const char*) { ++seen; });
    enter_phase("evaluation");
  }
  enter_phase("end");
  EXPECT_EQ(seen, 1);
  EXPECT_GT(part(account, Part::evaluate), 0);
}

}  // namespace
}  // namespace trireme::train
