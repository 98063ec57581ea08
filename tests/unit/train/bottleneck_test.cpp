// SPDX-License-Identifier: Apache-2.0
//
// The part of a step that limits the speed, and the choice of reader threads.

#include "trireme/train/supervision/bottleneck.hpp"

#include <string>

#include <gtest/gtest.h>

#include "train/run/reader_threads.hpp"

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

TEST(Bottleneck, IsTheLargestPartOfTheStep) {
  const auto largest_of = [](const StepTimes& times) { return diagnose(times).largest; };
  EXPECT_EQ(largest_of(times_of(0.01, 0.1)), Bottleneck::compute);
  EXPECT_EQ(largest_of(times_of(0.065, 0)), Bottleneck::compute);
  EXPECT_EQ(largest_of(times_of(0.3, 0.2)), Bottleneck::compute);
  EXPECT_EQ(largest_of(times_of(0.5, 0.2)), Bottleneck::reading);
  EXPECT_EQ(largest_of(times_of(0.2, 0.5)), Bottleneck::communication);
  StepTimes decoding = times_of(0.6, 0);
  decoding.readers = {.read = 0.2, .decode = 0.15, .augment = 0.1};
  EXPECT_EQ(largest_of(decoding), Bottleneck::decoding);
  decoding.readers = {.read = 0.2, .decode = 0.15, .augment = 0.3, .colors = 0.14};
  EXPECT_EQ(largest_of(decoding), Bottleneck::scaling);
  decoding.readers.colors = 0.16;
  EXPECT_EQ(largest_of(decoding), Bottleneck::colors);
  decoding.readers.verify = 0.3;
  EXPECT_EQ(largest_of(decoding), Bottleneck::reading);
  EXPECT_EQ(largest_of(times_of(0.01, 0.01, 0.9)), Bottleneck::transfer);
  EXPECT_EQ(largest_of(times_of(0.01, 0.01, 0.5, 0.6)), Bottleneck::nothing);
  EXPECT_EQ(largest_of(StepTimes()), Bottleneck::compute);
}

TEST(Bottleneck, AWaitGainsNoMoreThanTheOtherOneLeaves) {
  EXPECT_FALSE(diagnose(times_of(0.01, 0.04)).wait);
  const Diagnosis reading = diagnose(times_of(0.065, 0.05));
  EXPECT_EQ(reading.wait, Bottleneck::reading);
  EXPECT_DOUBLE_EQ(reading.gain, 0.065);
  EXPECT_EQ(diagnose(times_of(0.1, 0.2)).wait, Bottleneck::communication);
  // The wait that limits the speed leaves the other one.
  EXPECT_EQ(diagnose(times_of(0.6, 0.1)).wait, Bottleneck::communication);
  EXPECT_FALSE(diagnose(times_of(0.6, 0.01)).wait);
}

TEST(Bottleneck, TheLineOfAnEpochNamesSharesAndRemedy) {
  const auto line_of = [](double data) {
    StepTimes sums;
    for (int step = 0; step < 4; ++step) sums += times_of(data, 0);
    return describe_epochs(3, 3, 4, sums);
  };
  EXPECT_EQ(line_of(0.625),
            "epoch 3: 4 steps of 1 s; data 62.5 %, communication 0.0 %, compute 37.5 %: bound by "
            "reading: raise data.workers while cores are free, or copy the shards to local disks");
  EXPECT_EQ(line_of(0.0625),
            "epoch 3: 4 steps of 1 s; data 6.2 %, communication 0.0 %, compute 93.8 %: bound by "
            "compute; reading can gain 6.2 %: raise data.workers while cores are free, or copy the "
            "shards to local disks");
  EXPECT_EQ(line_of(0),
            "epoch 3: 4 steps of 1 s; data 0.0 %, communication 0.0 %, compute 100.0 %: bound by "
            "compute");
}

TEST(Bottleneck, TheRemedyFitsTheWorkOfTheReaders) {
  const auto remedy_of = [](const data::ReadTimes& readers, data::Decoding decode) {
    StepTimes times = times_of(0.6, 0);
    times.readers = readers;
    const std::string line = describe_epochs(1, 1, 1, times, decode);
    return line.substr(line.find("bound by"));
  };
  using data::Decoding;
  EXPECT_EQ(remedy_of({.decode = 1}, Decoding::exact),
            "bound by decoding: raise data.workers while cores are free, store smaller images "
            "(shard --resize) or pixels (--encode raw), or use data.decode = \"fast\" (JPEG files "
            "and random_resized_crop)");
  EXPECT_EQ(remedy_of({.decode = 1}, Decoding::fast),
            "bound by decoding: raise data.workers while cores are free, or store smaller images "
            "(shard --resize) or pixels (--encode raw)");
  // Neither pixels nor fast decoding would help.
  EXPECT_EQ(remedy_of({.decode = 0.1, .augment = 1}, Decoding::exact),
            "bound by scaling: raise data.workers while cores are free, or store smaller images "
            "(shard --resize)");
  EXPECT_EQ(remedy_of({.decode = 0.1, .augment = 1, .colors = 0.9}, Decoding::exact),
            "bound by changes of colors: raise data.workers while cores are free, or use smaller "
            "images or fewer operations (color_jitter, rand_augment)");
}

TEST(EpochSummary, ALineEndsWithAnEpochAndHasAtLeastASecond) {
  const auto step_of = [](double seconds) {
    StepTimes times;
    times.total = times.forward = seconds;
    return times;
  };
  const auto begins = [](const std::string& line, const std::string& text) {
    return line.substr(0, text.size()) == text;
  };
  // Epochs of two steps of 0.2 s: the third one reaches a second.
  EpochSummary epochs(4);
  std::string line;
  for (std::int64_t step = 1; step <= 6; ++step) {
    EXPECT_EQ(line, "") << step;
    line = epochs.add({4 + step / 2, step % 2}, step_of(0.2));
  }
  EXPECT_TRUE(begins(line, "epochs 5 to 7: 6 steps of 0.2 s")) << line;
  EXPECT_EQ(epochs.rest(), "");
  // A long step in the middle of an epoch waits for its end.
  EXPECT_EQ(epochs.add({7, 1}, step_of(5)), "");
  line = epochs.add({8, 0}, step_of(5));
  EXPECT_TRUE(begins(line, "epoch 8: 2 steps of 5 s")) << line;
  EXPECT_EQ(epochs.add({8, 1}, step_of(0.1)), "");
  line = epochs.rest();
  EXPECT_TRUE(begins(line, "epoch 9: 1 step of 0.1 s")) << line;
  EXPECT_EQ(epochs.rest(), "");
  // Steps past the end of an epoch go on in the next one.
  EpochSummary continued(0);
  EXPECT_TRUE(begins(continued.add({1, 3}, step_of(2)), "epoch 1: 1 step"));
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
