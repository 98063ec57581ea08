// SPDX-License-Identifier: Apache-2.0
//
// prove(): matches the calls of all ranks, then simulates them (proof_simulation.cpp).
//
// 1. Divide the ranks into classes; one rank of each stands for its equals (rank_classes.cpp).
// 2. List the collectives and the messages of each program.
// 3. Compare, for each class, waits with requests and sends with receives; and, for each group, the
//    collectives of its members.
// 4. If all match, simulate.

#include "trireme/plan/proof/proof.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "proof_simulation.hpp"
#include "rank_classes.hpp"

namespace trireme::plan {
namespace {

using Indices = std::vector<std::int32_t>;  // of calls in a program

/// The messages that one program exchanges with one rank of a group, by the engine or not.
struct MessageKey {
  parallel::MeshGroup group;
  bool is_blocking;
  std::int32_t peer, tag;  // tag -1: messages with any tag, matched in their order
  auto tie() const { return std::tie(group, is_blocking, peer, tag); }
  bool operator<(const MessageKey& other) const { return tie() < other.tie(); }
};
struct MessageLists {
  Indices send_calls, receive_calls;
};

/// The calls of a program by what they must match.
struct ProgramIndex {
  /// By kind of the group; [1]: blocking ones.
  std::array<std::array<Indices, 2>, RankClasses::num_kinds> collectives;
  std::map<MessageKey, MessageLists> messages;
};

ProgramIndex index_of(const Program& program, bool messages_in_order) {
  ProgramIndex result;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const ProgramCall& call = program[i];
    const auto at = static_cast<std::int32_t>(i);
    if (call.is_collective()) {
      result.collectives[static_cast<std::size_t>(call.group)][call.is_blocking()].push_back(at);
    } else if (call.is_message()) {
      const bool by_tag = call.is_blocking() || !messages_in_order;
      MessageLists& lists =
          result.messages[{call.group, call.is_blocking(), call.peer, by_tag ? call.tag : -1}];
      (call.is_send() ? lists.send_calls : lists.receive_calls).push_back(at);
    }
  }
  return result;
}

/// Returns whether all ranks of such a group are of one stage.
bool is_within_stage(parallel::MeshGroup group) {
  return group == parallel::MeshGroup::data || group == parallel::MeshGroup::tensor ||
         group == parallel::MeshGroup::delayed_data || group == parallel::MeshGroup::batch_norm;
}

class Matcher {
 public:
  Matcher(const RankPrograms& programs, const RankClasses& classes)
      : programs_(programs), rank_classes_(classes) {
    for (const Program& program : programs.programs)
      indices_.push_back(index_of(program, programs.messages_in_order));
  }

  Proof run() {
    proof_.ranks = programs_.shape.ranks();
    proof_.programs = std::ssize(programs_.programs);
    proof_.classes = std::ssize(rank_classes_.classes);
    for (std::size_t c = 0; c < rank_classes_.classes.size(); ++c) {
      proof_.calls += rank_classes_.classes[c].ranks * std::ssize(program_of(c));
      check_waits(c);
      check_messages(c);
    }
    for (const RankClasses::Group& group : rank_classes_.groups) check_collectives(group);
    count_collectives();
    return std::move(proof_);
  }

 private:
  const Program& program_of(std::size_t c) const {
    return programs_.programs[static_cast<std::size_t>(rank_classes_.classes[c].program)];
  }
  const ProgramIndex& index_of_class(std::size_t c) const {
    return indices_[static_cast<std::size_t>(rank_classes_.classes[c].program)];
  }
  int rank_of(std::size_t c) const { return rank_classes_.classes[c].rank; }

  /// Returns "rank 17 (...): receive of ..., call 41 of step 1".
  std::string describe(int rank, const ProgramCall& call) const {
    return describe_rank(programs_.shape, rank) + ": " + describe_call(programs_, rank, call);
  }
  void report(int rank, std::string text) { proof_.findings.push_back({rank, std::move(text)}); }

  /// Every wait is for a request that was submitted before.
  void check_waits(std::size_t c) {
    std::set<std::int32_t> submitted;
    std::int32_t contiguous = 0;  // all requests up to this one were submitted
    for (const ProgramCall& call : program_of(c)) {
      if (!call.is_wait() && !call.is_blocking()) {
        if (call.request == contiguous + 1)
          ++contiguous;
        else
          submitted.insert(call.request);
      } else if (call.kind == ProgramCall::Kind::wait && call.request > contiguous &&
                 !submitted.contains(call.request)) {
        return report(rank_of(c), describe(rank_of(c), call) +
                                      ": it waits for a request that was not submitted before");
      }
    }
  }

  /// Compares the messages that a class send_calls, and looks for senders of those that it
  /// receive_calls.
  void check_messages(std::size_t c) {
    for (const auto& [key, lists] : index_of_class(c).messages) {
      proof_.messages += rank_classes_.classes[c].ranks * std::ssize(lists.send_calls);
      const auto kind = static_cast<std::size_t>(key.group);
      const std::int32_t group = rank_classes_.group_of[c][kind],
                         position = rank_classes_.position_in[c][kind];
      const ProgramCall& first = program_of(c)[static_cast<std::size_t>(
          (lists.send_calls.empty() ? lists.receive_calls : lists.send_calls)[0])];
      if (group < 0 || key.peer < 0 || key.peer == position ||
          key.peer >= std::ssize(rank_classes_.groups[static_cast<std::size_t>(group)].members)) {
        report(rank_of(c), describe(rank_of(c), first) + ": the group has no such other rank");
        continue;
      }
      const auto other =
          static_cast<std::size_t>(rank_classes_.groups[static_cast<std::size_t>(group)]
                                       .members[static_cast<std::size_t>(key.peer)]);
      const auto& others = index_of_class(other).messages;
      const auto match = others.find({key.group, key.is_blocking, position, key.tag});
      static const Indices none;
      if (!lists.send_calls.empty())
        compare_messages(c, lists.send_calls, other,
                         match == others.end() ? none : match->second.receive_calls, key);
      if (!lists.receive_calls.empty() &&
          (match == others.end() || match->second.send_calls.empty()))
        report(rank_of(c),
               describe(rank_of(c), first_of(c, lists.receive_calls)) + ": nobody sends it");
    }
  }

  const ProgramCall& first_of(std::size_t c, const Indices& list) const {
    return program_of(c)[static_cast<std::size_t>(list[0])];
  }

  void compare_messages(std::size_t c, const Indices& send_calls, std::size_t other,
                        const Indices& receive_calls, const MessageKey& key) {
    const int rank = rank_of(c);
    const auto peer = [&] {
      return ranks_of_group(programs_.shape, rank, key.group)[static_cast<std::size_t>(key.peer)];
    };
    for (std::size_t i = 0; i < std::max(send_calls.size(), receive_calls.size()); ++i) {
      const ProgramCall* send =
          i < send_calls.size() ? &program_of(c)[static_cast<std::size_t>(send_calls[i])] : nullptr;
      const ProgramCall* receive =
          i < receive_calls.size() ? &program_of(other)[static_cast<std::size_t>(receive_calls[i])]
                                   : nullptr;
      if (receive == nullptr) return report(rank, describe(rank, *send) + ": nobody receives it");
      if (send == nullptr) {
        const int receiver = peer();
        return report(receiver, describe(receiver, *receive) + ": nobody sends it");
      }
      if (is_match(*send, *receive)) continue;
      const std::string counts =
          send_calls.size() == receive_calls.size()
              ? ""
              : fmt::format(" ({} sends, {} receives)", send_calls.size(), receive_calls.size());
      return report(rank, fmt::format("{} does not match {}{}", describe(rank, *send),
                                      describe(peer(), *receive), counts));
    }
  }

  /// Returns whether a send and a receive have the same size and tag, and the same number, such as
  /// that of the micro-batch.
  bool is_match(const ProgramCall& send, const ProgramCall& receive) const {
    const RankPrograms::Purpose &from = programs_.purposes[send.purpose],
                                &to = programs_.purposes[receive.purpose];
    return send.bytes == receive.bytes && send.tag == receive.tag &&
           (from.first != to.first || send.items[0] == receive.items[0]);
  }

  /// Returns whether two ranks may make these calls together. Each stage numbers its own buckets.
  bool is_same_collective(const ProgramCall& a, const ProgramCall& b) const {
    const bool has_local_number =
        programs_.purposes[a.purpose].first == "bucket" && !is_within_stage(a.group);
    return a.kind == b.kind && a.operation == b.operation && a.bytes == b.bytes &&
           a.sizes == b.sizes && a.peer == b.peer && a.purpose == b.purpose &&
           (has_local_number || a.items == b.items);
  }

  /// Compares the collectives of the members of a group, those of the engine and blocking ones.
  void check_collectives(const RankClasses::Group& group) {
    for (const std::size_t form : {0, 1}) {
      const auto list_of = [&](std::int32_t c) -> const Indices& {
        return index_of_class(static_cast<std::size_t>(c))
            .collectives[static_cast<std::size_t>(group.kind)][form];
      };
      const std::int32_t first = group.distinct[0];
      std::size_t difference = list_of(first).size();
      bool differs = false;
      for (const std::int32_t c : group.distinct) {
        const std::size_t same = count_same(first, list_of(first), c, list_of(c));
        differs = differs || same < std::max(list_of(first).size(), list_of(c).size());
        difference = std::min(difference, same);
      }
      if (differs) report_difference(group, difference, list_of);
    }
  }

  /// Returns how many collectives of two classes match before the first that does not.
  std::size_t count_same(std::int32_t a, const Indices& of_a, std::int32_t b,
                         const Indices& of_b) const {
    const std::size_t both = std::min(of_a.size(), of_b.size());
    const Program &program_a = program_of(static_cast<std::size_t>(a)),
                  &program_b = program_of(static_cast<std::size_t>(b));
    if (&program_a == &program_b) return both;
    for (std::size_t i = 0; i < both; ++i) {
      if (!is_same_collective(program_a[static_cast<std::size_t>(of_a[i])],
                              program_b[static_cast<std::size_t>(of_b[i])]))
        return i;
    }
    return both;
  }

  /// Reports the members whose collective number `index` is not that of most members.
  template <class ListOf>
  void report_difference(const RankClasses::Group& group, std::size_t index,
                         const ListOf& list_of) {
    const auto call_of = [&](std::int32_t c) -> const ProgramCall* {
      const Indices& list = list_of(c);
      return index < list.size()
                 ? &program_of(static_cast<std::size_t>(c))[static_cast<std::size_t>(list[index])]
                 : nullptr;
    };
    // 1. The call that most members make.
    const auto is_same = [&](std::int32_t a, std::int32_t b) {
      const ProgramCall *of_a = call_of(a), *of_b = call_of(b);
      return of_a == nullptr || of_b == nullptr ? of_a == of_b : is_same_collective(*of_a, *of_b);
    };
    std::int32_t most = -1;
    std::int64_t max_count = 0;
    for (const std::int32_t c : group.distinct) {
      if (call_of(c) == nullptr) continue;
      const std::int64_t count = std::count_if(group.members.begin(), group.members.end(),
                                               [&](std::int32_t m) { return is_same(m, c); });
      if (count > max_count) most = c;
      max_count = std::max(max_count, count);
    }
    // 2. The members that make another one, or none.
    for (const std::int32_t c : group.distinct) {
      if (is_same(c, most)) continue;
      const int rank = rank_of(static_cast<std::size_t>(c));
      const std::vector<int> ranks = ranks_of_group(programs_.shape, rank, group.kind);
      const auto position = static_cast<std::size_t>(
          std::find(group.members.begin(), group.members.end(), most) - group.members.begin());
      const std::string other = describe(ranks[position], *call_of(most));
      report(rank, call_of(c) == nullptr
                       ? fmt::format("{} does not take part in {}",
                                     describe_rank(programs_.shape, rank), other)
                       : fmt::format("{} does not match {}", describe(rank, *call_of(c)), other));
    }
  }

  void count_collectives() {
    for (const RankClasses::Group& group : rank_classes_.groups) {
      const auto& lists = index_of_class(static_cast<std::size_t>(group.members[0]))
                              .collectives[static_cast<std::size_t>(group.kind)];
      const std::int64_t count = std::ssize(lists[0]) + std::ssize(lists[1]);
      if (count == 0) continue;
      const std::string name = parallel::split_of(programs_.shape, 0, group.kind).name;
      if (proof_.groups.empty() || proof_.groups.back().name != name)
        proof_.groups.push_back({name, 0, std::ssize(group.members), 0});
      proof_.groups.back().groups += group.groups;
      proof_.groups.back().collectives += group.groups * count;
    }
  }

  const RankPrograms& programs_;
  const RankClasses& rank_classes_;
  std::vector<ProgramIndex> indices_;
  Proof proof_;
};

}  // namespace

Proof prove(const RankPrograms& programs) {
  const RankClasses classes = find_classes(programs);
  Proof proof = Matcher(programs, classes).run();
  if (proof.findings.empty()) proof.findings = find_deadlock(programs, classes);
  return proof;
}

}  // namespace trireme::plan
