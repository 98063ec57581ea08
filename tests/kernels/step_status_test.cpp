// Packing and reduction of rank statuses against sums in the order of the tree (base/tree.hpp).
// A rank's status holds the tree sum of its micro-batches, and the sums over ranks follow the tree.
// Both together have the bits of one tree for 1, 2, 4 and 8 replicas. Meta counts the same work.

#include "trireme/ops/step_status.hpp"

#include <cmath>
#include <span>
#include <vector>

#include "kernels/reference.hpp"
#include "trireme/base/tree.hpp"

namespace trireme::test {
namespace {

using ops::SampleSums;
using ops::StepStatus;

/// Returns numbers whose sum depends on the order of the additions.
std::vector<SampleSums> random_sums(std::int64_t count) {
  std::vector<SampleSums> sums(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto number = [&](std::uint64_t column) { return std::exp(6 * normal_at(column, i)); };
    sums[i] = {number(1), number(2), number(3), number(4)};
  }
  return sums;
}

template <class T>
T read(OpsFixture& f, const T* from) {
  T value;
  copy_bytes(f.context.stream(), &value, from, sizeof value);
  return value;
}

void expect_equal(const SampleSums& found, const SampleSums& expected) {
  EXPECT_EQ(found.loss, expected.loss);
  EXPECT_EQ(found.count, expected.count);
  EXPECT_EQ(found.top1, expected.top1);
  EXPECT_EQ(found.top5, expected.top5);
}

TEST(Agree, ARankTellsTheTreeOfItsMicroBatches) {
  OpsFixture f;
  for (const std::int64_t count : {0, 1, 2, 3, 7, 8, 9, 64, 1000, 1031}) {
    const std::vector<SampleSums> sums = random_sums(count);
    StepStatus* const message =
        const_cast<StepStatus*>(f.placed(std::vector<StepStatus>{{.sums = {1, 2, 3, 4}}}));
    ops::pack_status(f.context, {.sums = count > 0 ? f.placed(sums) : nullptr,
                                 .count = count,
                                 .stop_requests = 5,
                                 .busy_seconds = 0.25,
                                 .status = message});
    const StepStatus told = read(f, message);
    expect_equal(told.sums, tree_sum(std::span<const SampleSums>(sums)));
    EXPECT_EQ(told.stop_requests, 5u);
    EXPECT_EQ(told.busy_seconds, 0.25);
    EXPECT_EQ(told.gradient_squares, 0);
    ops::pack_status(f.context,
                     {.gradient_squares = f.placed(std::vector<double>{2.5}), .status = message});
    EXPECT_EQ(read(f, message).gradient_squares, 2.5);
  }
}

TEST(Agree, TheSumsOfSomeRanksAreJoinedInTheOrderOfTheTree) {
  OpsFixture f;
  for (const std::int64_t count : {1, 2, 5, 8, 100}) {
    for (const std::int64_t step : {1, 3}) {
      const std::int64_t first = 2 * step;
      const std::vector<SampleSums> sums = random_sums(first + count * step);
      std::vector<StepStatus> messages;
      std::vector<SampleSums> chosen;
      for (const SampleSums& own : sums) messages.push_back({own, 7, 9});
      for (std::int64_t i = 0; i < count; ++i)
        chosen.push_back(sums[static_cast<std::size_t>(first + i * step)]);
      SampleSums* const joined = const_cast<SampleSums*>(f.placed(std::vector<SampleSums>(1)));
      ops::reduce_status(f.context, {.statuses = f.placed(messages),
                                     .first = first,
                                     .step = step,
                                     .count = count,
                                     .sums = joined});
      expect_equal(read(f, joined), tree_sum(std::span<const SampleSums>(chosen)));
    }
  }
}

/// A replica's sum is a subtree of the whole, so the loss has the same bits with 1, 2, 4 and 8
/// replicas.
TEST(Agree, RanksAndMicroBatchesMakeOneTree) {
  OpsFixture f;
  constexpr std::int64_t all = 48;
  const std::vector<SampleSums> sums = random_sums(all);
  const SampleSums* const placed = f.placed(sums);
  for (const std::int64_t ranks : {1, 2, 4, 8}) {
    const std::int64_t own = all / ranks;
    StepStatus* const messages =
        const_cast<StepStatus*>(f.placed(std::vector<StepStatus>(static_cast<std::size_t>(ranks))));
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      ops::pack_status(f.context,
                       {.sums = placed + rank * own, .count = own, .status = messages + rank});
    SampleSums* const joined = const_cast<SampleSums*>(f.placed(std::vector<SampleSums>(1)));
    ops::reduce_status(f.context, {.statuses = messages, .count = ranks, .sums = joined});
    expect_equal(read(f, joined), tree_sum(std::span<const SampleSums>(sums)));
  }
}

TEST(Agree, OneInvalidRankMakesTheLossNotANumber) {
  OpsFixture f;
  for (const std::int64_t ranks : {1, 3, 8, 17}) {
    for (std::int64_t invalid = -1; invalid < ranks; ++invalid) {
      std::vector<StepStatus> messages(static_cast<std::size_t>(ranks), {{1, 2, 3, 4}, 8, 0});
      if (invalid >= 0) messages[static_cast<std::size_t>(invalid)].stop_requests |= 16;
      SampleSums* const joined = const_cast<SampleSums*>(f.placed(std::vector<SampleSums>(1)));
      // Only the last rank has sums, as with a pipeline.
      ops::reduce_status(f.context, {.statuses = f.placed(messages),
                                     .first = ranks - 1,
                                     .count = 1,
                                     .sums = joined,
                                     .ranks = ranks,
                                     .invalid = 16});
      const SampleSums sums = read(f, joined);
      EXPECT_EQ(std::isnan(sums.loss), invalid >= 0) << invalid << " of " << ranks;
      EXPECT_EQ(sums.count, 2);
      EXPECT_EQ(sums.top5, 4);
    }
  }
}

TEST(Agree, MetaCountsWhatEveryDeviceCounts) {
  OpsFixture here, meta(DeviceKind::meta);
  const std::vector<SampleSums> sums = random_sums(3);
  const std::vector<StepStatus> messages(4);
  for (OpsFixture* f : {&here, &meta}) {
    ops::pack_status(f->context, {.sums = f->placed(sums),
                                  .count = 3,
                                  .status = const_cast<StepStatus*>(f->placed(messages))});
    ops::reduce_status(f->context, {.statuses = f->placed(messages),
                                    .count = 4,
                                    .sums = const_cast<SampleSums*>(f->placed(sums))});
  }
  EXPECT_GT(here.context.counters().bytes, 0);
  EXPECT_EQ(meta.context.counters().bytes, here.context.counters().bytes);
}

}  // namespace
}  // namespace trireme::test
