// The part of a step that limits the speed, and the choice of reader threads.

#include "trireme/train/bottleneck.hpp"

#include <string>

#include <gtest/gtest.h>

#include "trireme/train/reader_threads.hpp"

namespace trireme::train {
namespace {

/// Returns times of a step of 1 second that computes in the time that is left.
StepTimes times_of(double data, double communication, double transfer = 0, double host = 0) {
  StepTimes times;
  times.data = data;
  times.comm_exposed = communication;
  times.transfer = transfer;
  times.total = 1;
  times.forward = 1 - data - communication - host;
  return times;
}

TEST(Bottleneck, IsThePartThatTheStepsWaitFor) {
  EXPECT_EQ(find_bottleneck(times_of(0.01, 0.1)), Bottleneck::compute);
  EXPECT_EQ(find_bottleneck(times_of(0.05, 0.1)), Bottleneck::reading);
  EXPECT_EQ(find_bottleneck(times_of(0.05, 0.2)), Bottleneck::communication);
  EXPECT_EQ(find_bottleneck(times_of(0.3, 0.2)), Bottleneck::reading);
  StepTimes decoding = times_of(0.1, 0);
  decoding.readers = {.read = 0.2, .decode = 0.15, .augment = 0.1};
  EXPECT_EQ(find_bottleneck(decoding), Bottleneck::decoding);
  EXPECT_EQ(find_bottleneck(times_of(0.01, 0.01, 0.9)), Bottleneck::transfer);
  EXPECT_EQ(find_bottleneck(times_of(0.01, 0.01, 0.5, 0.3)), Bottleneck::nothing);
}

TEST(Bottleneck, TheLineOfAnEpochNamesSharesAndRemedy) {
  StepTimes sums;
  for (int step = 0; step < 4; ++step) sums += times_of(0.25, 0);
  EXPECT_EQ(describe_epoch(3, 4, sums),
            "epoch 3: 4 steps of 1 s; data 25.0 %, communication 0.0 %, compute 75.0 %: bound by "
            "reading: raise data.workers while cores are free, or copy the shards to local disks");
}

TEST(ReaderThreads, AreTheCoresThatComputationLeaves) {
  EXPECT_EQ(choose_reader_threads(16, 8, 1), 1) << "8 ranks with one core more each";
  EXPECT_EQ(choose_reader_threads(16, 1, 1), 4) << "at most 4";
  EXPECT_EQ(choose_reader_threads(4, 1, 2), 2);
  EXPECT_EQ(choose_reader_threads(2, 1, 2), 1) << "at least 1";
  EXPECT_EQ(choose_reader_threads(2, 4, 1), 1);
}

}  // namespace
}  // namespace trireme::train
