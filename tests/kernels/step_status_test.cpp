// SPDX-License-Identifier: Apache-2.0
//
// Packing of a rank's status against sums in the order of the tree (base/tree.hpp), and reading of
// the sum of all statuses. The tree of a rank's micro-batches and the tree over ranks together have
// the bits of one tree for 1, 2, 4 and 8 replicas. Meta counts the same work.

#include "trireme/ops/update/step_status.hpp"

#include <cmath>
#include <span>
#include <vector>

#include "reference.hpp"
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

TEST(StepStatus, HoldsTheTreeOfTheMicroBatches) {
  OpsFixture f;
  for (const std::int64_t count : {0, 1, 2, 3, 7, 8, 9, 64, 1000, 1031}) {
    const std::vector<SampleSums> sums = random_sums(count);
    StepStatus* const packed =
        const_cast<StepStatus*>(f.placed(std::vector<StepStatus>{{.sums = {1, 2, 3, 4}}}));
    ops::pack_status(f.context, {.sums = count > 0 ? f.placed(sums) : nullptr,
                                 .count = count,
                                 .stop_requests = 0b10000101,
                                 .status = packed});
    const StepStatus status = read(f, packed);
    expect_equal(status.sums, tree_sum(std::span<const SampleSums>(sums)));
    for (int flag = 0; flag < kernels::num_status_flags; ++flag)
      EXPECT_EQ(status.raised[flag], flag == 0 || flag == 2 || flag == 7 ? 1 : 0) << flag;
    EXPECT_EQ(status.gradient_squares, 0);
    ops::pack_status(f.context,
                     {.gradient_squares = f.placed(std::vector<double>{2.5}), .status = packed});
    EXPECT_EQ(read(f, packed).gradient_squares, 2.5);
  }
}

/// A replica's sum is a subtree of the whole, so the loss has the same bits with 1, 2, 4 and 8
/// replicas.
TEST(StepStatus, OfRanksAndMicroBatchesIsOneTree) {
  OpsFixture f;
  constexpr std::int64_t all = 48;
  const std::vector<SampleSums> sums = random_sums(all);
  const SampleSums* const placed = f.placed(sums);
  StepStatus* const packed = const_cast<StepStatus*>(f.placed(std::vector<StepStatus>(1)));
  for (const std::int64_t ranks : {1, 2, 4, 8}) {
    const std::int64_t own = all / ranks;
    std::vector<SampleSums> of_ranks;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      ops::pack_status(f.context, {.sums = placed + rank * own, .count = own, .status = packed});
      of_ranks.push_back(read(f, packed).sums);
    }
    expect_equal(tree_sum(std::span<const SampleSums>(of_ranks)),
                 tree_sum(std::span<const SampleSums>(sums)));
  }
}

TEST(StepStatus, OneInvalidRankMakesTheLossNotANumber) {
  OpsFixture f;
  for (const double invalid_ranks : {0, 1, 3, 4096}) {
    StepStatus sum{{1, 2, 3, 4}, 5, {}};
    sum.raised[3] = 8;
    sum.raised[4] = invalid_ranks;
    ops::StepTotals* const read_totals =
        const_cast<ops::StepTotals*>(f.placed(std::vector<ops::StepTotals>(1)));
    ops::read_status(
        f.context,
        {.status = f.placed(std::vector<StepStatus>{sum}), .invalid = 16, .totals = read_totals});
    const ops::StepTotals totals = read(f, read_totals);
    EXPECT_EQ(std::isnan(totals.sums.loss), invalid_ranks > 0);
    EXPECT_EQ(totals.stop_requests, invalid_ranks > 0 ? 24u : 8u);
    EXPECT_EQ(totals.sums.count, 2);
    EXPECT_EQ(totals.sums.top5, 4);
    EXPECT_EQ(totals.gradient_squares, 5);
  }
}

TEST(StepStatus, MetaCountsAsEveryDevice) {
  OpsFixture here, meta(DeviceKind::meta);
  const std::vector<SampleSums> sums = random_sums(3);
  const std::vector<StepStatus> status(1);
  const std::vector<ops::StepTotals> totals(1);
  for (OpsFixture* f : {&here, &meta}) {
    ops::pack_status(f->context, {.sums = f->placed(sums),
                                  .count = 3,
                                  .status = const_cast<StepStatus*>(f->placed(status))});
    ops::read_status(f->context, {.status = f->placed(status),
                                  .totals = const_cast<ops::StepTotals*>(f->placed(totals))});
  }
  EXPECT_GT(here.context.counters().bytes, 0);
  EXPECT_EQ(meta.context.counters().bytes, here.context.counters().bytes);
}

}  // namespace
}  // namespace trireme::test
