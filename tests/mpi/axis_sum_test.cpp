// SPDX-License-Identifier: Apache-2.0
//
// AxisSum for any number of ranks, all of them in one process:
// - its bits are those of recursive halving along one axis after the other (base/tree.hpp);
// - the number of steps grows with the logarithm of the ranks, and few messages leave a node.

#include "comm/sums/axis_sum.hpp"

#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/base/philox.hpp"
#include "trireme/base/tree.hpp"

namespace trireme::comm {
namespace {

using Axes = std::vector<RankAxis>;
constexpr std::int64_t count = 3;

/// Messages under way, by sender and receiver.
using Messages = std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>>;

/// Executes the calls of one rank. Receives are carried out at the end of the step.
class RankCalls final : public Calls {
 public:
  RankCalls(int rank, Messages& messages) : rank_(rank), under_way_(messages) {}
  void send(std::span<const std::byte> data, int to) override {
    under_way_[{rank_, to}].emplace_back(data.begin(), data.end());
    sent_to.push_back(to);
  }
  void receive(std::span<std::byte> data, int from) override { receives_.push_back({data, from}); }
  void end_step() {
    for (const auto& [data, from] : receives_) {
      std::deque<std::vector<std::byte>>& waiting = under_way_[{from, rank_}];
      ASSERT_FALSE(waiting.empty()) << from << " has sent nothing to " << rank_;
      ASSERT_EQ(waiting.front().size(), data.size());
      std::memcpy(data.data(), waiting.front().data(), data.size());
      waiting.pop_front();
    }
    receives_.clear();
  }
  void add(const double* from, double* to, std::int64_t n) override {
    for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
  }
  void all_reduce(float*, std::int64_t) override { FAIL(); }
  void add(const float*, float*, std::int64_t) override { FAIL(); }
  void add(const BFloat16*, float*, std::int64_t) override { FAIL(); }
  void copy(const float*, float*, std::int64_t) override { FAIL(); }
  void narrow(const float*, BFloat16*, std::int64_t) override { FAIL(); }
  void widen(const BFloat16*, float*, std::int64_t) override { FAIL(); }

  std::vector<int> sent_to;

 private:
  int rank_;
  Messages& under_way_;
  std::vector<std::pair<std::span<std::byte>, int>> receives_;
};

/// Numbers of every rank whose sum depends on the order of the additions.
std::vector<std::vector<double>> numbers_of(int ranks) {
  std::vector<std::vector<double>> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<double>& part = parts.emplace_back();
    for (std::int64_t i = 0; i < count; ++i)
      part.push_back(normal_at(random_key(3, std::to_string(rank)), static_cast<std::uint64_t>(i)));
  }
  return parts;
}

/// Adds along one axis after the other on this process.
std::vector<std::vector<double>> expected_sums(std::vector<std::vector<double>> values,
                                               const Axes& axes) {
  for (const RankAxis& axis : axes) {
    const std::vector<std::vector<double>> before = values;
    for (int rank = 0; rank < std::ssize(values); ++rank) {
      const int first = rank - rank / axis.stride % axis.size * axis.stride;
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<double> column;
        for (int position = 0; position < axis.size; ++position)
          column.push_back(before[static_cast<std::size_t>(first + position * axis.stride)][i]);
        values[static_cast<std::size_t>(rank)][i] = tree_sum(std::span<const double>(column));
      }
    }
  }
  return values;
}

struct Result {
  std::vector<std::vector<double>> sums;  ///< By rank.
  std::vector<std::vector<int>> sent_to;  ///< The receivers of the rank's messages.
  int steps = 0;
};

Result sum_of(std::vector<std::vector<double>> parts, const Axes& axes) {
  const auto ranks = static_cast<int>(parts.size());
  std::vector<std::vector<double>> scratch(parts.size(), std::vector<double>(count));
  Messages messages;
  std::vector<AxisSum> sums;
  std::vector<RankCalls> calls;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    sums.emplace_back(rank, axes, parts[at].data(), scratch[at].data(), count);
    calls.emplace_back(rank, messages);
  }
  for (int step = 0; step < sums[0].steps(); ++step) {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) sums[rank].post(calls[rank], step);
    for (RankCalls& of_rank : calls) of_rank.end_step();
    for (std::size_t rank = 0; rank < parts.size(); ++rank) sums[rank].complete(calls[rank], step);
  }
  for (const auto& [route, waiting] : messages)
    EXPECT_TRUE(waiting.empty()) << route.first << " sent more to " << route.second;
  Result result{std::move(parts), {}, sums[0].steps()};
  for (const RankCalls& of_rank : calls) result.sent_to.push_back(of_rank.sent_to);
  return result;
}

TEST(AxisSum, OfOneAxisHasTheBitsOfHalving) {
  for (int ranks = 1; ranks <= 40; ++ranks) {
    SCOPED_TRACE(ranks);
    const std::vector<std::vector<double>> parts = numbers_of(ranks);
    const Axes axes{{ranks, 1}};
    const Result result = sum_of(parts, axes);
    EXPECT_EQ(result.sums, expected_sums(parts, axes));
    const int levels = std::bit_width(static_cast<unsigned>(ranks - 1));
    EXPECT_EQ(result.steps,
              std::has_single_bit(static_cast<unsigned>(ranks)) ? levels : 2 * levels);
  }
}

TEST(AxisSum, OfSeveralAxesAddsAlongOneAfterTheOther) {
  for (const int data : {1, 2, 3, 4, 6}) {
    for (const int tensor : {1, 2, 3}) {
      for (const int pipeline : {1, 2, 5}) {
        const Axes axes{{data, tensor}, {tensor, 1}, {pipeline, data * tensor}};
        const std::vector<std::vector<double>> parts = numbers_of(data * tensor * pipeline);
        EXPECT_EQ(sum_of(parts, axes).sums, expected_sums(parts, axes))
            << data << " x " << tensor << " x " << pipeline;
      }
    }
  }
}

/// Of the messages of a rank, those to ranks of its own simulated node are the first ones.
TEST(AxisSum, SendsFewMessagesBetweenNodes) {
  for (const int ranks : {4, 16, 64, 512}) {
    for (const int ranks_per_node : {2, 4}) {
      const Result result = sum_of(numbers_of(ranks), {{ranks, 1}});
      const int levels = std::bit_width(static_cast<unsigned>(ranks)) - 1;
      for (int rank = 0; rank < ranks; ++rank) {
        int between_nodes = 0;
        for (const int to : result.sent_to[static_cast<std::size_t>(rank)])
          between_nodes += to / ranks_per_node != rank / ranks_per_node;
        ASSERT_EQ(std::ssize(result.sent_to[static_cast<std::size_t>(rank)]), levels);
        ASSERT_EQ(between_nodes, levels - (std::bit_width(unsigned(ranks_per_node)) - 1));
      }
    }
  }
}

}  // namespace
}  // namespace trireme::comm
