// SPDX-License-Identifier: Apache-2.0
//
// Simulates the programs of all classes of ranks, without time: what can happen happens.
//
// 1. Each class has a position in its program. advance() runs it until it blocks.
// 2. run() lets the classes advance in turns until none can. Receives name their sender, so one
//    order of events is as good as any other.
// 3. If classes are left, each of them waits for another one. Following the waits leads to a cycle
//    of ranks.

#include "proof_simulation.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/check.hpp"

namespace trireme::plan {
namespace {

using Kind = ProgramCall::Kind;

// Maximum number of sums and gathers of one group that comm::Engine starts before one of them ends.
constexpr std::int64_t max_started = 8;

/// Collectives of one group, those of the engine or the blocking ones. Number n is the n-th one of
/// every member.
class Sequence {
 public:
  explicit Sequence(std::size_t members) : submitted(members) {}

  /// A member takes part in this number from now on.
  void join(std::int64_t number) {
    const auto ahead = static_cast<std::size_t>(number - first_);
    if (ahead >= entries_.size()) entries_.resize(ahead + 1);
    ++entries_[ahead].joined;
    // One that ends lets a later one start, which may have been joined by all.
    for (std::int64_t at = number; can_end(at); at += max_started) entry(at).is_done = true;
    for (; !entries_.empty() && entries_.front().is_done; ++first_) entries_.pop_front();
  }
  bool is_done(std::int64_t number) const {
    return number < first_ || (is_known(number) && entry(number).is_done);
  }
  /// Returns the number that holds back this one, which is not done: itself, or one that must end
  /// before it can start.
  std::int64_t held_back_by(std::int64_t number) const {
    while (is_joined_by_all(number)) number -= max_started;
    return number;
  }

  std::vector<std::int64_t> submitted;  ///< by member: the numbers that it has submitted

 private:
  struct Entry {
    std::size_t joined = 0;
    bool is_done = false;
  };
  bool is_known(std::int64_t number) const { return number - first_ < std::ssize(entries_); }
  Entry& entry(std::int64_t number) { return entries_[static_cast<std::size_t>(number - first_)]; }
  const Entry& entry(std::int64_t number) const {
    return entries_[static_cast<std::size_t>(number - first_)];
  }
  bool is_joined_by_all(std::int64_t number) const {
    return is_known(number) && entry(number).joined == submitted.size();
  }
  bool can_end(std::int64_t number) const {
    return number >= first_ && is_joined_by_all(number) &&
           (number < max_started || is_done(number - max_started));
  }

  std::deque<Entry> entries_;  // of the numbers from first_ on
  std::int64_t first_ = 0;     // the numbers before it are done
};

/// Messages from one class to another, with one tag or in one order.
struct Channel {
  std::int64_t sent = 0, received = 0;
};

/// A request or a blocking call that may have to wait.
struct Pending {
  bool is_message = false, is_blocking = false;
  std::size_t where = 0;    // sequence or channel
  std::int64_t number = 0;  // in it
  std::size_t call = 0;     // its index in the program
};

/// One class of ranks.
struct Process {
  std::size_t next = 0;                                // call
  std::unordered_map<std::int32_t, Pending> requests;  // submitted, not known to be done
  std::vector<Pending> deferred;        // requests in which it does not take part yet
  std::optional<Pending> blocked_call;  // a call of a communicator that has begun
};

/// By index of a collective request in a program: the index of the blocking call after which the
/// rank certainly takes part in it. Requests that no blocking call follows are not listed.
using DeferredJoins = std::unordered_map<std::size_t, std::size_t>;

/// A rank drives a request until it has waited for it, but not in a blocking call. So if blocking
/// calls lie between, its peers can rely on it only after the last of them.
DeferredJoins find_deferred_joins(const Program& program) {
  struct UnderWay {
    std::size_t call = 0;
    std::int64_t number = 0;  // in its group
  };
  DeferredJoins joins;
  std::unordered_map<std::int32_t, UnderWay> under_way;  // collectives, by request
  std::array<std::int64_t, RankClasses::num_kinds> submitted{};
  std::optional<std::size_t> last_blocking;
  // Ends the requests for which `test` holds: their rank has waited for them.
  const auto end_if = [&](const auto& test) {
    std::erase_if(under_way, [&](const auto& item) {
      if (!test(item.second)) return false;
      const std::size_t call = item.second.call;
      if (last_blocking && *last_blocking > call) joins[call] = *last_blocking;
      return true;
    });
  };
  for (std::size_t i = 0; i < program.size(); ++i) {
    const ProgramCall& call = program[i];
    if (call.is_blocking()) {
      last_blocking = i;
    } else if (call.kind == Kind::quiesce) {
      end_if([](const UnderWay&) { return true; });
    } else if (call.kind == Kind::wait) {
      const auto known = under_way.find(call.request);
      if (known == under_way.end()) continue;
      // One that is waited for has started, so earlier ones of its group have ended.
      const UnderWay waited = known->second;
      const parallel::MeshGroup group = program[waited.call].group;
      end_if([&](const UnderWay& other) {
        return other.call == waited.call ||
               (program[other.call].group == group && other.number + max_started <= waited.number);
      });
    } else if (call.is_collective()) {
      under_way[call.request] = {i, submitted[static_cast<std::size_t>(call.group)]++};
    }
  }
  end_if([](const UnderWay&) { return true; });
  return joins;
}

/// Why a rank waits, and for which position of its group.
struct Reason {
  Pending pending;
  std::size_t position = 0;
  bool is_deferred = false;  // the other rank has submitted it, but a blocking call comes first
};

class ProofSimulation {
 public:
  ProofSimulation(const RankPrograms& programs, const RankClasses& classes)
      : programs_(programs), rank_classes_(classes), processes_(classes.classes.size()) {
    for (const Program& program : programs.programs)
      deferred_joins_.push_back(find_deferred_joins(program));
    for (const RankClasses::Group& group : classes.groups) {
      engine_.emplace_back(group.distinct.size());
      blocking_.emplace_back(group.distinct.size());
    }
  }

  std::vector<Proof::Finding> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t c = 0; c < processes_.size(); ++c) moved = advance(c) || moved;
    }
    for (std::size_t c = 0; c < processes_.size(); ++c)
      if (!is_finished(c)) return {describe_cycle(c)};
    return {};
  }

 private:
  const Program& program_of(std::size_t c) const {
    return programs_.programs[static_cast<std::size_t>(rank_classes_.classes[c].program)];
  }
  bool is_finished(std::size_t c) const { return processes_[c].next == program_of(c).size(); }

  /// Runs a class until it blocks. Returns whether it has moved.
  bool advance(std::size_t c) {
    Process& process = processes_[c];
    const std::size_t before = process.next;
    const bool had_begun = process.blocked_call.has_value();
    while (!is_finished(c) && step(c, program_of(c)[process.next])) ++process.next;
    return process.next != before || process.blocked_call.has_value() != had_begun;
  }

  /// Runs one call; returns false if it blocks.
  bool step(std::size_t c, const ProgramCall& call) {
    Process& process = processes_[c];
    if (call.kind == Kind::wait) {
      const auto request = process.requests.find(call.request);
      if (request == process.requests.end()) return true;  // a wait before has seen its end
      if (!is_done(request->second)) return false;
      process.requests.erase(request);
      return true;
    }
    if (call.kind == Kind::quiesce) {
      std::erase_if(process.requests, [&](const auto& item) { return is_done(item.second); });
      return process.requests.empty();
    }
    if (!call.is_blocking()) {
      process.requests.emplace(call.request, submit(c, call));
      return true;
    }
    if (!process.blocked_call) process.blocked_call = submit(c, call);
    if (!is_done(*process.blocked_call)) return false;
    process.blocked_call.reset();
    join_deferred(c);
    return true;
  }

  Pending submit(std::size_t c, const ProgramCall& call) {
    Process& process = processes_[c];
    const auto kind = static_cast<std::size_t>(call.group);
    const auto group = static_cast<std::size_t>(rank_classes_.group_of[c][kind]);
    Pending pending{.is_message = call.is_message(),
                    .is_blocking = call.is_blocking(),
                    .where = group,
                    .number = 0,
                    .call = process.next};
    if (pending.is_message) {
      pending.where = channel_of(group, rank_classes_.position_in[c][kind], call);
      Channel& channel = channels_[pending.where];
      pending.number = call.is_send() ? channel.sent++ : channel.received++;
      return pending;
    }
    Sequence& sequence = sequence_of(pending);
    pending.number = sequence.submitted[member_of(group, static_cast<std::int32_t>(c))]++;
    if (joins_of(c).contains(process.next))
      process.deferred.push_back(pending);
    else
      sequence.join(pending.number);
    return pending;
  }

  /// The blocking call at the position of the class has ended: it takes part in the requests that
  /// waited for this.
  void join_deferred(std::size_t c) {
    Process& process = processes_[c];
    std::erase_if(process.deferred, [&](const Pending& pending) {
      if (joins_of(c).at(pending.call) != process.next) return false;
      sequence_of(pending).join(pending.number);
      return true;
    });
  }

  const DeferredJoins& joins_of(std::size_t c) const {
    return deferred_joins_[static_cast<std::size_t>(rank_classes_.classes[c].program)];
  }
  Sequence& sequence_of(const Pending& pending) {
    return (pending.is_blocking ? blocking_ : engine_)[pending.where];
  }
  /// Returns the number of a class among the different members of its group.
  std::size_t member_of(std::size_t group, std::int32_t c) const {
    const std::vector<std::int32_t>& members = rank_classes_.groups[group].distinct;
    return static_cast<std::size_t>(std::lower_bound(members.begin(), members.end(), c) -
                                    members.begin());
  }

  /// Returns the channel of a message of the class at `position` of a group.
  std::size_t channel_of(std::size_t group, std::int32_t position, const ProgramCall& call) {
    const std::int32_t from = call.is_send() ? position : call.peer,
                       to = call.is_send() ? call.peer : position;
    const bool by_tag = call.is_blocking() || !programs_.messages_in_order;
    const ChannelKey key{static_cast<std::int64_t>(group), from, to, by_tag ? call.tag : -1,
                         call.is_blocking() ? 1 : 0};
    const auto [known, is_new] = channel_numbers_.try_emplace(key, channels_.size());
    if (is_new) channels_.emplace_back();
    return known->second;
  }

  /// Returns whether a request or a blocking call is done. What is done stays done.
  bool is_done(const Pending& pending) {
    if (!pending.is_message) return sequence_of(pending).is_done(pending.number);
    const Channel& channel = channels_[pending.where];
    return pending.number < std::min(channel.sent, channel.received);
  }

  /// Returns why a class that cannot advance waits.
  Reason reason_of(std::size_t c) {
    const Process& process = processes_[c];
    const ProgramCall& call = program_of(c)[process.next];
    Reason reason;
    if (process.blocked_call) {
      reason.pending = *process.blocked_call;
    } else if (call.kind == Kind::wait) {
      reason.pending = process.requests.at(call.request);
    } else {
      // quiesce: the oldest request that is not done
      const auto oldest =
          std::min_element(process.requests.begin(), process.requests.end(),
                           [](const auto& a, const auto& b) { return a.first < b.first; });
      reason.pending = oldest->second;
    }
    if (reason.pending.is_message) {
      reason.position = static_cast<std::size_t>(program_of(c)[reason.pending.call].peer);
      return reason;
    }
    const std::size_t group = reason.pending.where;
    const Sequence& sequence = sequence_of(reason.pending);
    const std::int64_t number = sequence.held_back_by(reason.pending.number);
    const std::vector<std::int32_t>& members = rank_classes_.groups[group].members;
    const auto has_submitted = [&](std::int32_t m) {
      return sequence.submitted[member_of(group, m)] > number;
    };
    auto position = std::find_if_not(members.begin(), members.end(), has_submitted);
    if (position == members.end()) {
      reason.is_deferred = true;
      position = std::find_if(members.begin(), members.end(), [&](std::int32_t m) {
        const std::vector<Pending>& deferred = processes_[static_cast<std::size_t>(m)].deferred;
        return std::any_of(deferred.begin(), deferred.end(), [&](const Pending& pending) {
          return pending.where == group && pending.number == number;
        });
      });
    }
    TRIREME_EXPECT(position != members.end());
    reason.position = static_cast<std::size_t>(position - members.begin());
    return reason;
  }

  /// Follows the waits from the first rank of a class to a cycle of ranks, and describes it.
  Proof::Finding describe_cycle(std::size_t c) {
    std::vector<int> ranks;
    std::vector<std::string> lines;
    int rank = rank_classes_.classes[c].rank;
    for (;;) {
      const auto seen = std::find(ranks.begin(), ranks.end(), rank);
      if (seen != ranks.end()) {
        lines.erase(lines.begin(), lines.begin() + (seen - ranks.begin()));
        ranks.erase(ranks.begin(), seen);
        break;
      }
      ranks.push_back(rank);
      const auto here =
          static_cast<std::size_t>(rank_classes_.class_of_rank[static_cast<std::size_t>(rank)]);
      const Reason reason = reason_of(here);
      const ProgramCall &call = program_of(here)[processes_[here].next],
                        &submitted = program_of(here)[reason.pending.call];
      std::string line =
          describe_rank(programs_.shape, rank) + ": " + describe_call(programs_, rank, call);
      if (call.is_wait())
        line += fmt::format(" for the {}", describe_call(programs_, rank, submitted));
      const int next = ranks_of_group(programs_.shape, rank, submitted.group)[reason.position];
      lines.push_back(
          fmt::format("{}, waits for rank {}{}", line, next,
                      reason.is_deferred ? ", which makes no progress in its blocking calls" : ""));
      rank = next;
    }
    Proof::Finding finding{
        .rank = ranks.front(),
        .text = fmt::format("deadlock: {} ranks wait for each other in a cycle", ranks.size())};
    for (const std::string& line : lines) finding.text += "\n  " + line;
    return finding;
  }

  struct ChannelKey {
    std::int64_t group;
    std::int32_t from, to, tag, is_blocking;
    bool operator==(const ChannelKey&) const = default;
  };
  struct HashOfKey {
    std::size_t operator()(const ChannelKey& key) const {
      std::uint64_t hash = static_cast<std::uint64_t>(key.group);
      for (const std::int32_t part : {key.from, key.to, key.tag, key.is_blocking})
        hash = hash * 0x9E3779B97F4A7C15ull + static_cast<std::uint32_t>(part);
      return static_cast<std::size_t>(hash ^ (hash >> 32));
    }
  };

  const RankPrograms& programs_;
  const RankClasses& rank_classes_;
  std::vector<Process> processes_;             // by class
  std::vector<DeferredJoins> deferred_joins_;  // by program
  std::vector<Sequence> engine_, blocking_;    // by group
  std::vector<Channel> channels_;
  std::unordered_map<ChannelKey, std::size_t, HashOfKey> channel_numbers_;
};

}  // namespace

std::vector<Proof::Finding> find_deadlock(const RankPrograms& programs,
                                          const RankClasses& classes) {
  return ProofSimulation(programs, classes).run();
}

}  // namespace trireme::plan
