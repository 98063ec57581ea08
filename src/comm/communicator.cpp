// SPDX-License-Identifier: Apache-2.0
//
// Implements Communicator by delegation to an Implementation: LocalCommunicator here (self and
// meta), MpiCommunicator in mpi_communicator.cpp. Also contains the words of reports for groups and
// ranks, and agree(), the collective half of together().

#include "trireme/comm/communicator.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/ranges.h>

#include "communicator_implementation.hpp"

#include "trireme/base/check.hpp"

namespace trireme::comm {
namespace {

/// Self (one rank), and meta (one rank of a group that does not exist: calls count bytes, and the
/// memory for data of other ranks stays unchanged).
struct LocalCommunicator final : Communicator::Implementation {
  using Implementation::Implementation;

  void barrier() override { report({.kind = Call::Kind::barrier}); }
  void broadcast(std::span<std::byte> data, int root) override {
    count(data.size());
    report({.kind = Call::Kind::broadcast, .bytes = std::ssize(data), .peer = root});
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (!mine.empty())
      std::memmove(all.data() + mine.size() * static_cast<std::size_t>(rank), mine.data(),
                   mine.size());
    count(mine.size() * static_cast<std::size_t>(size - 1));
    report({.kind = Call::Kind::all_gather, .bytes = std::ssize(mine)});
  }
  void all_reduce(void*, std::size_t elements, Element element, Reduction reduction) override {
    const std::size_t carried = elements * sizeof(double);
    count(carried);
    report({.kind = Call::Kind::all_reduce,
            .bytes = static_cast<std::int64_t>(carried),
            .operation = static_cast<int>(element) * num_reductions + static_cast<int>(reduction)});
  }
  void send(std::span<const std::byte> data, int to, int tag) override {
    ensure(size > 1, "a group of one rank has no rank {} to send to", to);
    count(data.size());
    report({.kind = Call::Kind::send, .bytes = std::ssize(data), .peer = to, .tag = tag});
  }
  void receive(std::span<std::byte> data, int from, int tag) override {
    ensure(size > 1, "a group of one rank has no rank {} to receive from", from);
    report({.kind = Call::Kind::receive, .bytes = std::ssize(data), .peer = from, .tag = tag});
  }
  std::shared_ptr<Implementation> split(int, int, std::string_view) override {
    ensure(size == 1,
           "a meta group of {} ranks cannot be split: the colors of the other ranks "
           "are unknown",
           size);
    return std::make_shared<LocalCommunicator>(0, 1);
  }

 private:
  using Call = Communicator::Call;
  static constexpr int num_reductions = 3;

  void count(std::size_t carried) {
    if (size > 1) bytes += static_cast<double>(carried);
  }
  void report(const Call& call) const {
    if (size > 1 && observer) observer(call);
  }
};

// Maximum number of world ranks that the description of a group lists.
constexpr std::size_t max_listed_ranks = 8;

[[noreturn]] void throw_collective(ExitCode code, const std::string& message) {
  const auto thrown = [](auto error) {
    error.set_thrown_on_all_ranks();
    return error;
  };
  if (code == ExitCode::wrong_input) throw thrown(InputError(message));
  if (code == ExitCode::failure) throw thrown(Failure(message));
  throw thrown(Error(code, message));
}

}  // namespace

std::string Communicator::Implementation::describe() const {
  if (name == "world" || world_ranks.empty()) return fmt::format("group {} ({} ranks)", name, size);
  const std::size_t listed = std::min(world_ranks.size(), max_listed_ranks);
  const std::span<const int> first = std::span(world_ranks).first(listed);
  const std::string more =
      listed < world_ranks.size() ? fmt::format(" and {} more", world_ranks.size() - listed) : "";
  return fmt::format("group {} (world ranks {}{})", name, fmt::join(first, ", "), more);
}

std::string Communicator::Implementation::describe_rank(int peer) const {
  if (name == "world" || world_ranks.empty()) return fmt::format("rank {} of group {}", peer, name);
  return fmt::format("world rank {} (rank {} of group {})",
                     world_ranks[static_cast<std::size_t>(peer)], peer, name);
}

Communicator::Communicator() : implementation_(std::make_shared<LocalCommunicator>(0, 1)) {}

Communicator::Communicator(std::shared_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {
  TRIREME_EXPECT(implementation_ != nullptr);
}

Communicator Communicator::meta(int rank, int size, std::string_view name) {
  TRIREME_EXPECT(0 <= rank && rank < size);
  auto implementation = std::make_shared<LocalCommunicator>(rank, size);
  implementation->name = name;
  return Communicator(std::move(implementation));
}

int Communicator::rank() const { return implementation_->rank; }
int Communicator::size() const { return implementation_->size; }
const std::string& Communicator::name() const { return implementation_->name; }
void Communicator::barrier() const { implementation_->barrier(); }

void Communicator::broadcast(std::span<std::byte> data, int root) const {
  TRIREME_EXPECT(0 <= root && root < size());
  implementation_->broadcast(data, root);
}

std::string Communicator::broadcast(const std::string& text, int root) const {
  std::uint64_t length = text.size();
  implementation_->broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  std::string copy = text;
  copy.resize(length);
  implementation_->broadcast(std::as_writable_bytes(std::span(copy)), root);
  return copy;
}

void Communicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
  TRIREME_EXPECT(all.size() == mine.size() * static_cast<std::size_t>(size()));
  implementation_->all_gather(mine, all);
}

std::vector<std::string> Communicator::all_gather(const std::string& mine) const {
  // Every rank sends its length, then as many bytes as the longest text has.
  const auto ranks = static_cast<std::size_t>(size());
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(ranks);
  all_gather(std::as_bytes(std::span(&length, 1)), std::as_writable_bytes(std::span(lengths)));
  const std::uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::string padded = mine, all(ranks * longest, '\0');
  padded.resize(longest);
  all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    texts.push_back(all.substr(rank * longest, lengths[rank]));
  return texts;
}

void Communicator::all_reduce(std::span<double> data, Reduction reduction) const {
  implementation_->all_reduce(data.data(), data.size(), Element::float64, reduction);
}

void Communicator::all_reduce(std::span<std::int64_t> data, Reduction reduction) const {
  implementation_->all_reduce(data.data(), data.size(), Element::int64, reduction);
}

void Communicator::all_reduce(std::span<std::uint64_t> data, Reduction reduction) const {
  implementation_->all_reduce(data.data(), data.size(), Element::uint64, reduction);
}

std::int64_t Communicator::all_reduce(std::int64_t value, Reduction reduction) const {
  implementation_->all_reduce(&value, 1, Element::int64, reduction);
  return value;
}

void Communicator::send(std::span<const std::byte> data, int to, int tag) const {
  implementation_->send(data, to, tag);
}
void Communicator::receive(std::span<std::byte> data, int from, int tag) const {
  implementation_->receive(data, from, tag);
}

Communicator Communicator::split(int color, int key, std::string_view name) const {
  const std::shared_ptr<Implementation> part = implementation_->split(color, key, name);
  return part == nullptr ? Communicator() : Communicator(part);
}

double Communicator::meta_bytes() const { return implementation_->bytes; }
void Communicator::observe(Observer observer) const {
  implementation_->observer = std::move(observer);
}
const void* Communicator::mpi_handle() const { return implementation_->mpi_handle(); }

void agree(const Communicator& group, const std::string& message, ExitCode code) {
  // 1. Find the first rank that failed.
  const bool failed = !message.empty() || code != ExitCode::done;
  const std::int64_t first =
      group.all_reduce(std::int64_t{failed ? group.rank() : group.size()}, Reduction::min);
  if (first == group.size()) return;
  // 2. Broadcast its message and exit code.
  const int root = static_cast<int>(first);
  const std::string words = group.broadcast(message, root);
  std::int64_t first_code = static_cast<std::int64_t>(code);
  group.broadcast(std::as_writable_bytes(std::span(&first_code, 1)), root);
  // 3. Throw on all ranks: the own error, or the one of the first failed rank.
  if (failed) throw_collective(code, message);
  throw_collective(static_cast<ExitCode>(first_code),
                   fmt::format("rank {} of {}: {}", first, group.size(), words));
}

}  // namespace trireme::comm
