// SPDX-License-Identifier: Apache-2.0
//
// Communicator at 1 to 4 ranks: every collective and message, errors on all ranks, split, and meta
// groups. The tests of Environment here check the values that it finds inside mpirun.

#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cross_rank_flag.hpp"
#include "support/mpi.hpp"
#include "trireme/base/check.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/versions.hpp"

namespace trireme::comm {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing::ThrowsMessage;

const Communicator& world() { return test_environment().world(); }

TEST(Environment, KnowsItsHost) {
  EXPECT_FALSE(test_environment().host().empty());
  EXPECT_EQ(test_environment().local_size(), world().size()) << "the tests run on one host";
  EXPECT_EQ(test_environment().local_rank(), world().rank());
  EXPECT_FALSE(mpi_version().empty());
  EXPECT_NE(test_environment().launcher(), "none");
  EXPECT_EQ(test_environment().launched_processes(), world().size());
  EXPECT_NE(world().mpi_handle(), nullptr);
  EXPECT_EQ(Communicator().mpi_handle(), nullptr);
}

TEST(Communicator, BroadcastsBytesAndText) {
  for (int root = 0; root < world().size(); ++root) {
    std::vector<int> data(1000, world().rank() == root ? 7 + root : -1);
    world().broadcast(std::as_writable_bytes(std::span(data)), root);
    EXPECT_EQ(data, std::vector<int>(1000, 7 + root));
    // Lengths differ between ranks: the root's counts.
    EXPECT_EQ(
        world().broadcast(std::string(static_cast<std::size_t>(world().rank() * 3), 'x') + "from " +
                              std::to_string(world().rank()),
                          root),
        std::string(static_cast<std::size_t>(root * 3), 'x') + "from " + std::to_string(root));
    EXPECT_EQ(world().broadcast(world().rank() == root ? std::string() : std::string("old"), root),
              "");
  }
}

TEST(Communicator, GathersInRankOrder) {
  const std::vector<std::int64_t> mine{world().rank(), 100 + world().rank()};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(world().size()), -1);
  world().all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (int rank = 0; rank < world().size(); ++rank) {
    EXPECT_EQ(all[2 * static_cast<std::size_t>(rank)], rank);
    EXPECT_EQ(all[2 * static_cast<std::size_t>(rank) + 1], 100 + rank);
  }
  world().all_gather({}, {});
}

TEST(Communicator, GathersTextsOfDifferentLengths) {
  const auto text_of = [](int rank) {
    return std::string(static_cast<std::size_t>(300 * rank), 'x') + std::to_string(rank);
  };
  std::vector<std::string> expected;
  for (int rank = 0; rank < world().size(); ++rank) expected.push_back(text_of(rank));
  EXPECT_EQ(world().all_gather(text_of(world().rank())), expected);
  EXPECT_EQ(world().all_gather(std::string()),
            std::vector<std::string>(static_cast<std::size_t>(world().size())));
}

TEST(Communicator, ReducesEveryTypeAndKind) {
  const int rank = world().rank(), size = world().size();
  const std::int64_t total = std::int64_t{size} * (size - 1) / 2;
  std::vector<double> reals{rank + 0.5, -rank * 1.0};
  world().all_reduce(reals, Reduction::sum);
  EXPECT_EQ(reals, (std::vector<double>{static_cast<double>(total) + 0.5 * size,
                                        -static_cast<double>(total)}));  // small halves: exact
  EXPECT_EQ(world().all_reduce(rank, Reduction::sum), total);
  EXPECT_EQ(world().all_reduce(-rank, Reduction::min), 1 - size);
  EXPECT_EQ(world().all_reduce(rank, Reduction::max), size - 1);
  // One rank has the low value, the others one beyond int64: the comparison must be unsigned.
  const std::uint64_t low = 5, high = ~std::uint64_t{0};
  std::vector<std::uint64_t> most{rank == 0 ? low : high}, least = most;
  world().all_reduce(most, Reduction::max);
  world().all_reduce(least, Reduction::min);
  EXPECT_EQ(most[0], size > 1 ? high : low);
  EXPECT_EQ(least[0], low);
  std::vector<double> none;
  world().all_reduce(none, Reduction::sum);
}

TEST(Communicator, MpiErrorsAreOneLine) {
  const std::byte nothing{};
  EXPECT_THAT([&] { world().send(std::span(&nothing, 1), world().size(), 1); },
              ThrowsMessage<Failure>(Not(HasSubstr("\n"))));
}

TEST(Communicator, PassesMessagesAround) {
  if (world().size() == 1) {
    int value = 0;
    EXPECT_THROW(Communicator().send(std::as_bytes(std::span(&value, 1)), 1, 0), Failure);
    return;
  }
  const int next = (world().rank() + 1) % world().size(),
            before = (world().rank() + world().size() - 1) % world().size();
  int mine = world().rank(), theirs = -1;
  if (world().rank() == 0) {
    world().send(std::as_bytes(std::span(&mine, 1)), next, 3);
    world().receive(std::as_writable_bytes(std::span(&theirs, 1)), before, 3);
  } else {
    world().receive(std::as_writable_bytes(std::span(&theirs, 1)), before, 3);
    world().send(std::as_bytes(std::span(&mine, 1)), next, 3);
  }
  EXPECT_EQ(theirs, before);
}

TEST(Communicator, RefusesAMessageOfAnotherLength) {
  if (world().size() == 1) return;
  std::vector<std::byte> data(8);
  if (world().rank() == 0) world().send(std::span(data).first(4), 1, 5);
  if (world().rank() == 1) {
    EXPECT_THROW(world().receive(data, 0, 5), Failure);
  }
  if (world().rank() == 0) world().send(data, 1, 6);
  if (world().rank() == 1) {
    // MPI's own error must become a Failure.
    EXPECT_THROW(world().receive(std::span(data).first(4), 0, 6), Failure);
  }
}

TEST(Communicator, SplitsByColourOrderedByKey) {
  const int rank = world().rank(), size = world().size();
  const Communicator part = world().split(rank % 2, -rank);  // in reverse order
  const int members = (size + 1 - rank % 2) / 2;
  EXPECT_EQ(part.size(), members);
  EXPECT_EQ(part.rank(), members - 1 - rank / 2);
  EXPECT_EQ(part.all_reduce(rank % 2, Reduction::max), rank % 2);
  EXPECT_EQ(Communicator().split(5, 5).size(), 1);
  const Communicator most = world().split(rank == 0 ? -1 : 7, rank);
  EXPECT_EQ(most.size(), rank == 0 ? 1 : size - 1);
  EXPECT_EQ(most.rank(), rank == 0 ? 0 : rank - 1);
}

// Rank 0 blocks in a barrier, and then in a receive, until another thread has seen it.
TEST(Communicator, NamesTheBlockingCall) {
  if (world().size() == 1) return;
  const Communicator group = world().split(0, world().rank(), "data");
  const auto seen_by_other_thread = [](const CrossRankFlag& seen, auto&& call) {
    std::optional<PeerWait> wait;
    std::thread observer([&] {
      while (!wait) wait = current_blocking_call();
      seen.raise();
    });
    call();
    observer.join();
    EXPECT_FALSE(current_blocking_call());
    return wait->operation;
  };
  const CrossRankFlag in_barrier(world());
  if (world().rank() == 0) {
    EXPECT_THAT(seen_by_other_thread(in_barrier, [&] { group.barrier(); }),
                StartsWith("blocking barrier of group data (world ranks 0, 1"));
  } else {
    in_barrier.wait();
    group.barrier();
  }
  const CrossRankFlag in_receive(world());
  std::int64_t value = world().rank();
  const auto bytes = std::as_writable_bytes(std::span(&value, 1));
  if (world().rank() == 0) {
    EXPECT_EQ(seen_by_other_thread(in_receive, [&] { group.receive(bytes, 1, 3); }),
              "blocking receive with world rank 1 (rank 1 of group data)");
    EXPECT_EQ(value, 1);
  } else if (world().rank() == 1) {
    in_receive.wait();
    group.send(bytes, 0, 3);
  }
}

TEST(Communicator, TogetherThrowsEverywhereWhereOneRankFails) {
  together(world(), [] {});
  for (int failing = 0; failing < world().size(); ++failing) {
    try {
      // Ranks `failing`, failing + 1, ... throw.
      together(world(),
               [&] { validate(world().rank() < failing, "wrong number {}", world().rank()); });
      FAIL() << "rank " << failing << " threw, and this rank heard nothing of it";
    } catch (const InputError& error) {
      const std::string own = "wrong number " + std::to_string(world().rank());
      const std::string first = "rank " + std::to_string(failing) + " of " +
                                std::to_string(world().size()) + ": wrong number " +
                                std::to_string(failing);
      EXPECT_EQ(error.what(), world().rank() < failing ? first : own);
      EXPECT_EQ(error.code(), ExitCode::wrong_input);
    }
  }
  EXPECT_THROW(together(world(), [] { throw std::runtime_error("a library's own"); }), Failure);
  try {
    together(world(), [] { throw Error(ExitCode::diverged, "loss is not finite"); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::diverged);
  }
  EXPECT_EQ(world().all_reduce(1, Reduction::sum), world().size())
      << "the group is in step after all this";
}

TEST(Communicator, MetaCountsAndMovesNothing) {
  const Communicator absent = Communicator::meta(3, 8);
  EXPECT_EQ(absent.rank(), 3);
  EXPECT_EQ(absent.size(), 8);
  std::vector<double> values{1, 2, 3};
  absent.all_reduce(values, Reduction::sum);
  EXPECT_EQ(values, (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(absent.meta_bytes(), 3 * sizeof(double));
  EXPECT_THROW(absent.split(0, 0), Failure);
  const Communicator self;
  self.all_reduce(values, Reduction::sum);
  EXPECT_EQ(self.meta_bytes(), 0);
}

}  // namespace
}  // namespace trireme::comm
