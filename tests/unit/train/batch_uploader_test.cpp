// SPDX-License-Identifier: Apache-2.0
//
// Copies of micro-batches to the device: which memory they use again, and how long they take.
#include "train/step/batch_uploader.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "support/replica.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::train {
namespace {

class BatchUploaderTest : public testing::TestWithParam<DeviceKind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, BatchUploaderTest,
                         testing::Values(DeviceKind::cpu, DeviceKind::emulated),
                         [](const auto& info) { return to_string({info.param, 0}).substr(0, 3); });

/// The number of micro-batches per step is not a multiple of the number of buffers.
/// - Micro-batches between forward and backward keep their content.
/// - On a device the next upload goes to a free buffer.
/// - Every second step uses the same buffers.
TEST_P(BatchUploaderTest, KeptBatchesStayBesideTheNext) {
  const Device device{GetParam(), 0};
  const bool separate_memory = !in_host_memory(device.kind);
  ReplicaOptions options = test::small_resnet();
  constexpr int per_step = 5, steps = 4;
  options.accumulation = per_step;
  for (const int kept : {1, 2, 3}) {
    Arena memory(device, "batches", 1 << 20);
    const OwnedStream compute(device);
    BatchUploader arrivals(options, device, separate_memory, false, kept, memory);
    Allocation pinned({}, static_cast<std::size_t>(options.micro) * sizeof(std::int32_t), "labels",
                      Pages::pinned);
    data::MicroBatch batch;
    batch.labels = {pinned.data(), DType::int32, DeviceKind::cpu, {options.micro}};
    Event copied(device);
    batch.copy_done = &copied;
    std::vector<const void*> places;
    for (int step = 0; step < steps; ++step) {
      arrivals.begin_step();
      for (int number = 0; number < per_step; ++number) {
        copied.wait();
        std::fill_n(reinterpret_cast<std::int32_t*>(pinned.data()), options.micro,
                    100 * step + number);
        arrivals.upload(compute, batch, number);
        places.push_back(arrivals.retained(number).labels.data);
        for (int old = std::max(0, number - kept + 1); old <= number; ++old) {
          std::vector<std::int32_t> labels(static_cast<std::size_t>(options.micro));
          copy_bytes(compute, labels.data(), arrivals.retained(old).labels.data,
                     labels.size() * sizeof(std::int32_t));
          EXPECT_EQ(labels, std::vector<std::int32_t>(labels.size(), 100 * step + old));
        }
      }
    }
    const auto together = static_cast<std::ptrdiff_t>(kept + (separate_memory ? 1 : 0));
    for (auto step = places.begin(); step != places.end(); step += per_step) {
      for (auto first = step; first + together <= step + per_step; ++first)
        EXPECT_EQ(std::set<const void*>(first, first + together).size(),
                  static_cast<std::size_t>(together))
            << "kept " << kept;
    }
    for (std::size_t i = 2 * per_step; i < places.size(); ++i)
      EXPECT_EQ(places[i], places[i - 2 * per_step]) << "kept " << kept;
  }
}

/// Copies to a device are measured in the step that makes them. On the CPU nothing is copied to a
/// device.
TEST_P(BatchUploaderTest, TheClockCountsTheCopiesOfItsStep) {
  const Device device{GetParam(), 0};
  const bool separate_memory = !in_host_memory(device.kind);
  const ReplicaOptions options = test::small_resnet();
  test::ReplicaFixture fixture(options);
  Arena memory(device, "batches", 1 << 20);
  const OwnedStream compute(device);
  BatchUploader uploader(options, device, separate_memory, true, 1, memory);
  TransferClock clock(device, 2 * BatchUploader::max_copies);
  const double before = monotonic_seconds();
  const DeviceMoment moment(device);
  for (int step = 0; step < 2; ++step) {
    uploader.begin_step();
    clock.reset();
    EXPECT_EQ(clock.seconds(), 0);
    uploader.upload(compute, fixture.batch(0), 0, &clock);
    uploader.release_inputs(compute);
    const double one = clock.seconds();
    EXPECT_EQ(one > 0, separate_memory);
    uploader.upload(compute, fixture.batch(1), 1, &clock);
    uploader.release_inputs(compute);
    const double two = clock.seconds();
    EXPECT_EQ(two > one, separate_memory);
    // An evaluation has no clock.
    uploader.upload(compute, fixture.batch(2), 2);
    EXPECT_EQ(clock.seconds(), two);
    synchronize(compute);
    // The copies in the time of the host: one after the other, and together the seconds above.
    double sum = 0, end = before;
    for (const TransferClock::Copy& copy : clock.copies(moment)) {
      EXPECT_LE(end, copy.begin);
      end = copy.end;
      sum += copy.end - copy.begin;
    }
    EXPECT_LE(end, monotonic_seconds());
    EXPECT_NEAR(sum, two, 1e-9);
  }
}

}  // namespace
}  // namespace trireme::train
