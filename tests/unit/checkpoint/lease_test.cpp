// SPDX-License-Identifier: Apache-2.0
//
// The lease of a run folder: held by one job at a time, taken over only if its holder has certainly
// exited. Forked children play holders that renew the lease; edited files play holders on other
// hosts.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "example.hpp"
#include "support/stand_in_programs.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/io/file.hpp"

namespace trireme::checkpoint {
namespace {

using testing::HasSubstr;

namespace fs = std::filesystem;

struct LeaseFixture : testing::Test {
  ScratchFolder folder;
  Log log{false};
  std::string path = folder / "run.lock";
  LeaseTimes times{.stale_seconds = 60, .renewal_seconds = 0.5};

  /// Acquires and releases the lease. Returns the error message; "" if it succeeds.
  std::string refusal() {
    try {
      const Lease lease(comm::Communicator(), folder.path(), log, times);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }
  nlohmann::json held() { return nlohmann::json::parse(io::read_text_file(path)); }
  /// Leaves a lease behind, with changed fields, as another holder would.
  void leave(const nlohmann::json& changes) {
    nlohmann::json json;
    {
      const Lease lease(comm::Communicator(), folder.path(), log);
      json = held();
    }
    json.update(changes);
    std::ofstream(path) << json;
  }
  /// Starts a process that renews the lease until end(). Its clock is ahead by `ahead_seconds`.
  pid_t renewed(double ahead_seconds = 0) {
    nlohmann::json json = held();
    const pid_t child = ::fork();
    while (child == 0) {
      ::usleep(200'000);
      json["heartbeat"] = wall_seconds() + ahead_seconds;
      std::ofstream(path + ".new") << json;
      ::rename((path + ".new").c_str(), path.c_str());
    }
    return child;
  }
  static void end(pid_t child) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
};

TEST_F(LeaseFixture, BelongsToOneAtATimeAndIsGivenBack) {
  {
    const Lease lease(comm::Communicator(), folder.path(), log);
    const std::string words = refusal();
    EXPECT_THAT(words, HasSubstr(std::to_string(::getpid())));
    EXPECT_TRUE(fs::exists(path));
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(refusal(), "");
}

TEST_F(LeaseFixture, IsTakenOverAtOnceFromAProcessThatIsGone) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  leave({{"pid", child}});
  EXPECT_EQ(refusal(), "");
}

TEST_F(LeaseFixture, IsTakenOverWhereThePidBelongsToAnotherProcessNow) {
  leave({{"process_start", "1"}});
  EXPECT_EQ(refusal(), "");
}

TEST_F(LeaseFixture, IsTakenOverFromAnotherHostOnceTheHeartbeatIsOld) {
  leave({{"host", "another-host"}, {"heartbeat", wall_seconds() - 61}});
  EXPECT_EQ(refusal(), "");
}

TEST_F(LeaseFixture, WaitsForTheRestOfTheMinuteOfAnotherHost) {
  const double began = monotonic_seconds();
  leave({{"host", "another-host"}, {"heartbeat", wall_seconds() - 58.5}});
  EXPECT_EQ(refusal(), "");
  EXPECT_GT(monotonic_seconds() - began, 1.0);
}

TEST_F(LeaseFixture, IsTakenOverAtOnceWhereTheBatchSystemSaysThatTheJobIsOver) {
  const test::StandInPrograms programs;
  const auto squeue_prints = [&](const std::string& state) {
    programs.add("squeue", "echo " + state);
  };
  squeue_prints("NODE_FAIL");
  leave({{"host", "another-host"}, {"job", "slurm 4711"}});
  const double began = monotonic_seconds();
  EXPECT_EQ(refusal(), "");
  EXPECT_LT(monotonic_seconds() - began, 50);  // a fresh heartbeat alone would take a minute
  squeue_prints("RUNNING");
  const double begin = monotonic_seconds();
  leave({{"host", "another-host"}, {"job", "slurm 4711"}, {"heartbeat", wall_seconds() - 58.9}});
  EXPECT_EQ(refusal(), "");
  EXPECT_GT(monotonic_seconds() - begin, 0.5);  // the rest of the minute was waited for
}

TEST_F(LeaseFixture, IsRefusedWhenAnotherHostRenewsIt) {
  leave({{"host", "another-host"},
         {"job", "4711"},
         // The holder has a minute to renew it.
         {"heartbeat", wall_seconds()}});
  const pid_t holder = renewed();
  const std::string words = refusal();
  end(holder);
  EXPECT_THAT(words, HasSubstr("another-host"));
  EXPECT_THAT(words, HasSubstr("4711"));
  EXPECT_EQ(held()["host"], "another-host");  // the file is unchanged
}

TEST_F(LeaseFixture, OfAProcessThatCannotBeToldGoesByItsHeartbeat) {
  for (const nlohmann::json& changes :
       {nlohmann::json{{"process_start", ""}}, nlohmann::json{{"pid", 0}}}) {
    leave(changes);
    nlohmann::json json = held();
    json["heartbeat"] = wall_seconds() - 59.5;
    std::ofstream(path) << json;
    EXPECT_EQ(refusal(), "") << changes;
  }
  leave({{"process_start", ""}, {"heartbeat", wall_seconds()}});
  const pid_t holder = renewed();
  EXPECT_NE(refusal(), "");  // alive, although /proc does not show it
  end(holder);
}

TEST_F(LeaseFixture, OfAHostWhoseClockIsSetBackIsRefused) {
  times.renewal_seconds = 40;  // the heartbeat is watched for a minute
  for (const double set_back : {10.0, 1e6}) {
    leave({{"host", "another-host"}, {"heartbeat", wall_seconds() - 100}});
    const pid_t holder = renewed(-100 - set_back);
    EXPECT_NE(refusal(), "");
    end(holder);
    fs::remove(path);
  }
}

TEST_F(LeaseFixture, OfAContainerOfThisHostGoesByItsHeartbeat) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);  // in the container this pid may be alive
  leave({{"pid", child}, {"system", "this boot, and other numbers of processes"}});
  const pid_t holder = renewed();
  EXPECT_NE(refusal(), "");
  end(holder);
}

TEST_F(LeaseFixture, AHeartbeatThatCannotBeWrittenForAWhileIsNoReasonToStop) {
  const auto log_contains = [&](const std::string& words) {
    return io::read_text_file(folder / "log.txt").find(words) != std::string::npos;
  };
  const auto wait_for = [](const auto& condition) {
    for (const double until = monotonic_seconds() + 300;
         !condition() && monotonic_seconds() < until;)
      ::usleep(10'000);
    return condition();
  };
  Log file_log(true);
  file_log.open_file(folder / "log.txt");
  times.renewal_seconds = 0.05;
  const std::string run = folder / "run";
  fs::create_directory(run);
  const Lease lease(comm::Communicator(), run, file_log, times);
  const std::string blocking_path =
      run + "/run.lock" + std::string(io::StagedFile::default_suffix) + std::to_string(::getpid());
  // The file of a heartbeat that is being written may have this name.
  std::error_code taken;
  EXPECT_TRUE(wait_for([&] {
    return fs::create_directory(blocking_path, taken) || fs::is_directory(blocking_path, taken);
  }));
  EXPECT_TRUE(wait_for([&] { return log_contains("is not renewed"); }));
  EXPECT_NO_THROW(lease.check());
  fs::remove(blocking_path);
  EXPECT_TRUE(wait_for([&] { return log_contains("written again"); }));
  EXPECT_NO_THROW(lease.check());
  fs::rename(run, folder / "moved");
  const auto stops = [&] {
    try {
      lease.check();
    } catch (const Failure&) {
      return true;
    }
    return false;
  };
  EXPECT_TRUE(wait_for(stops));
}

/// Waits until a condition holds; only a defect reaches the limit.
template <class Condition>
bool comes_true(const Condition& condition) {
  for (const double until = monotonic_seconds() + 300; !condition() && monotonic_seconds() < until;)
    ::usleep(5'000);
  return condition();
}

TEST_F(LeaseFixture, IsCreatedAgainWhenItsFileIsRemoved) {
  times.look_seconds = 0.02;
  const Lease lease(comm::Communicator(), folder.path(), log, times);
  for (int i = 0; i < 2; ++i) {
    fs::remove(path);
    EXPECT_TRUE(comes_true([&] { return fs::exists(path); }));
  }
  fs::remove(path);
  EXPECT_TRUE(lease.confirm()) << "looks at once";
  EXPECT_EQ(held()["pid"], ::getpid());
  EXPECT_NE(refusal(), "");
}

TEST_F(LeaseFixture, IsWrittenAgainWhenItsFileCannotBeRead) {
  times.look_seconds = 0.02;
  const Lease lease(comm::Communicator(), folder.path(), log, times);
  for (const char* content : {"", "{}", "no lease"}) {
    std::ofstream(path) << content;
    EXPECT_TRUE(comes_true([&] {
      return io::read_text_file(path).find("pid") != std::string::npos;
    })) << content;
    EXPECT_TRUE(lease.is_held());
  }
}

TEST_F(LeaseFixture, IsLostToAnotherHolder) {
  const std::string log_path = folder / "log.txt";
  for (const bool looks : {false, true}) {
    Log file_log(true);
    file_log.open_file(log_path);
    times.look_seconds = looks ? 3600 : 0.02;
    const Lease lease(comm::Communicator(), folder.path(), file_log, times);
    EXPECT_TRUE(lease.is_held());
    nlohmann::json json = held();
    json["pid"] = 1;
    io::replace_file(path, json.dump());
    if (looks)
      EXPECT_FALSE(lease.confirm()) << "at once, though the thread has not looked";
    else
      EXPECT_TRUE(comes_true([&] { return !lease.is_held(); }));
    EXPECT_THROW(lease.check(), Failure);
    EXPECT_FALSE(lease.confirm()) << "it stays lost";
    const std::string before = io::read_text_file(log_path);
    file_log.warn("of a job without its lease");
    EXPECT_EQ(io::read_text_file(log_path), before);
    EXPECT_EQ(held()["pid"], 1);
    fs::remove(path);
    EXPECT_FALSE(lease.confirm()) << "also when the other has gone";
    EXPECT_FALSE(fs::exists(path));
  }
}

TEST_F(LeaseFixture, NoLineFollowsTheMomentInWhichItsLossIsSeen) {
  const std::string log_path = folder / "log.txt";
  times.look_seconds = 1e-4;
  times.renewal_seconds = 3600;
  const double end = monotonic_seconds() + 60;
  for (int i = 0; i < 300; ++i) {
    Log file_log(true);
    file_log.open_file(log_path);
    const Lease lease(comm::Communicator(), folder.path(), file_log, times);
    nlohmann::json json = held();
    json["pid"] = 1;
    io::replace_file(path, json.dump());
    while (lease.is_held()) ASSERT_LT(monotonic_seconds(), end);
    file_log.record_error("of a job without its lease");
    ASSERT_EQ(io::read_text_file(log_path), "") << "attempt " << i;
    fs::remove(path);
  }
}

TEST_F(LeaseFixture, IsLostWhenAnotherJobHasEndedMeanwhile) {
  times.look_seconds = 3600;
  const Lease lease(comm::Communicator(), folder.path(), log, times);
  fs::remove(path);
  write_exit_record(folder.path(), {.start = "", .reason = ""});
  EXPECT_FALSE(lease.confirm());
  EXPECT_FALSE(fs::exists(path));
}

/// A process that was stopped finds out before its thread has looked.
TEST_F(LeaseFixture, IsLookedAtByItsOwnerAfterAPause) {
  times.look_seconds = times.renewal_seconds = 0.2;
  const Lease lease(comm::Communicator(), folder.path(), log, times);
  const pid_t child = ::fork();
  if (child == 0) {
    ::usleep(100'000);
    nlohmann::json json = held();
    json["pid"] = 1;
    io::replace_file(path, json.dump());
    ::usleep(1'500'000);
    ::kill(::getppid(), SIGCONT);
    ::_exit(0);
  }
  ::kill(::getpid(), SIGSTOP);
  EXPECT_FALSE(lease.is_held());
  ::waitpid(child, nullptr, 0);
}

TEST_F(LeaseFixture, RemovedFromARunningJobIsWaitedFor) {
  times.look_seconds = 0.4;
  const comm::Communicator self;
  const auto seconds = [&] {
    const double start = monotonic_seconds();
    wait_for_removed_lease(self, folder.path(), log, times);
    return monotonic_seconds() - start;
  };
  EXPECT_LT(seconds(), 0.4) << "a new folder";
  std::ofstream(folder / "log.txt") << "log";
  EXPECT_GE(seconds(), 0.8) << "nobody creates it";
  std::ofstream(folder / "exit.json") << "{}";
  EXPECT_LT(seconds(), 0.4) << "the last job has ended";
  fs::remove(folder / "exit.json");
  const Lease lease(self, folder.path(), log, times);
  EXPECT_LT(seconds(), 0.4) << "it is there";
  fs::remove(path);
  wait_for_removed_lease(self, folder.path(), log, times);
  EXPECT_NE(refusal(), "") << "the running job has created it again";
}

TEST_F(LeaseFixture, IsNotMadeWhereSomethingElseIs) {
  fs::create_symlink(folder / "nowhere", path);
  EXPECT_THAT(refusal(), HasSubstr("is a link, but the lease"));
  std::ofstream(folder / "nowhere") << "precious";
  EXPECT_THAT(refusal(), HasSubstr("is a link, but the lease"));
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_THAT(refusal(), HasSubstr("is a folder, but the lease"));
}

TEST_F(LeaseFixture, MovesWithItsOwner) {
  std::optional<Lease> first(std::in_place, comm::Communicator(), folder.path(), log);
  Lease second = std::move(*first);
  first.reset();
  EXPECT_TRUE(fs::exists(path));
  second.check();
  second.release();
  EXPECT_FALSE(fs::exists(path));
  second.release();
}

TEST_F(LeaseFixture, OfAnotherIsNotRemoved) {
  std::optional<Lease> lease(std::in_place, comm::Communicator(), folder.path(), log);
  nlohmann::json json = held();
  json["host"] = "another-host";
  std::ofstream(path) << json;
  lease.reset();
  EXPECT_TRUE(fs::exists(path));
}

}  // namespace
}  // namespace trireme::checkpoint
