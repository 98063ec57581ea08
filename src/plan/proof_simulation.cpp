// Simulates the programs of all classes of ranks, without time: what can happen happens.
//
// 1. Each class has a position in its program. advance() runs it until it blocks.
// 2. run() lets the classes advance in turns until none can. Receives name their sender, so one
//    order of events is as good as any other.
// 3. If classes are left, each of them waits for another one. Following the waits leads to a cycle
//    of ranks.

#include "proof_simulation.hpp"

#include <algorithm>
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
constexpr std::size_t num_kinds = RankClasses::num_kinds;

/// Collectives of one group, those of the engine or the blocking ones. Number n is the n-th one of
/// every member.
struct Sequence {
  std::int64_t members = 0;
  std::vector<std::int64_t> joined;  // by member: how many it has reached
  std::deque<std::int32_t>
      counts;                      // members that have reached number joined_by_all, and later ones
  std::int64_t joined_by_all = 0;  // all members have reached the numbers before it
  std::int64_t done = 0;           // numbers before it are done

  /// A member has reached its next number, which is returned.
  std::int64_t join(std::size_t member) {
    const std::int64_t number = joined[member]++;
    const auto ahead = static_cast<std::size_t>(number - joined_by_all);
    if (ahead >= counts.size()) counts.resize(ahead + 1);
    ++counts[ahead];
    for (; !counts.empty() && counts.front() == members; ++joined_by_all) counts.pop_front();
    return number;
  }
};

/// Messages from one class to another, with one tag or in one order.
struct Channel {
  std::int32_t from = 0, to = 0;  // classes
  std::int64_t sent = 0, received = 0, done = 0;
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
  std::optional<Pending> blocked_call;                 // a call of a communicator that has begun
  bool polls() const { return !blocked_call; }
};

/// Why a rank waits, and for which position of its group.
struct Reason {
  Pending pending;
  std::size_t position = 0;
  bool is_idle = false;  // the other rank has come, but makes no progress
};

class Simulation {
 public:
  Simulation(const RankPrograms& programs, const RankClasses& classes)
      : programs_(programs), rank_classes_(classes), processes_(classes.classes.size()) {
    blocked_members_.resize(classes.groups.size());
    for (std::vector<Sequence>* sequences : {&engine_, &blocking_}) {
      for (const RankClasses::Group& group : classes.groups) {
        Sequence& sequence = sequences->emplace_back();
        sequence.members = std::ssize(group.distinct);
        sequence.joined.resize(group.distinct.size());
      }
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
    if (!process.blocked_call) {
      process.blocked_call = submit(c, call);
      count_blocked(c, 1);
    }
    if (!is_done(*process.blocked_call)) return false;
    process.blocked_call.reset();
    count_blocked(c, -1);
    return true;
  }

  Pending submit(std::size_t c, const ProgramCall& call) {
    const auto kind = static_cast<std::size_t>(call.group);
    const auto group = static_cast<std::size_t>(rank_classes_.group_of[c][kind]);
    Pending pending{.is_message = call.is_message(),
                    .is_blocking = call.is_blocking(),
                    .where = group,
                    .number = 0,
                    .call = processes_[c].next};
    if (!pending.is_message) {
      const std::vector<std::int32_t>& members = rank_classes_.groups[group].distinct;
      const auto member = static_cast<std::size_t>(
          std::lower_bound(members.begin(), members.end(), static_cast<std::int32_t>(c)) -
          members.begin());
      pending.number = (pending.is_blocking ? blocking_ : engine_)[group].join(member);
      return pending;
    }
    pending.where = channel_of(group, rank_classes_.position_in[c][kind], call);
    Channel& channel = channels_[pending.where];
    pending.number = call.is_send() ? channel.sent++ : channel.received++;
    return pending;
  }

  /// Returns the channel of a message of the class at `position` of a group.
  std::size_t channel_of(std::size_t group, std::int32_t position, const ProgramCall& call) {
    const std::int32_t from = call.is_send() ? position : call.peer,
                       to = call.is_send() ? call.peer : position;
    const bool by_tag = call.is_blocking() || !programs_.messages_in_order;
    const ChannelKey key{static_cast<std::int64_t>(group), from, to, by_tag ? call.tag : -1,
                         call.is_blocking() ? 1 : 0};
    const auto [known, is_new] = channel_numbers_.try_emplace(key, channels_.size());
    if (is_new) {
      const std::vector<std::int32_t>& members = rank_classes_.groups[group].members;
      channels_.push_back({.from = members[static_cast<std::size_t>(from)],
                           .to = members[static_cast<std::size_t>(to)]});
    }
    return known->second;
  }

  /// Returns whether a request or a blocking call is done. What is done stays done.
  bool is_done(const Pending& pending) {
    if (pending.is_message) {
      Channel& channel = channels_[pending.where];
      if (pending.is_blocking || (polls(channel.from) && polls(channel.to)))
        channel.done = std::min(channel.sent, channel.received);
      return pending.number < channel.done;
    }
    Sequence& sequence = (pending.is_blocking ? blocking_ : engine_)[pending.where];
    if (pending.is_blocking || blocked_members_[pending.where] == 0)
      sequence.done = sequence.joined_by_all;
    return pending.number < sequence.done;
  }

  bool polls(std::int32_t c) const { return processes_[static_cast<std::size_t>(c)].polls(); }

  /// Counts a class that blocks in a call of a communicator in all of its groups.
  void count_blocked(std::size_t c, int change) {
    for (std::size_t kind = 0; kind < num_kinds; ++kind) {
      const std::int32_t group = rank_classes_.group_of[c][kind];
      if (group >= 0) blocked_members_[static_cast<std::size_t>(group)] += change;
    }
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
    const ProgramCall& submitted = program_of(c)[reason.pending.call];
    if (reason.pending.is_message) {
      const Channel& channel = channels_[reason.pending.where];
      reason.position = static_cast<std::size_t>(submitted.peer);
      reason.is_idle = reason.pending.number < std::min(channel.sent, channel.received);
      return reason;
    }
    const auto group = reason.pending.where;
    const Sequence& sequence = (reason.pending.is_blocking ? blocking_ : engine_)[group];
    const std::vector<std::int32_t>& members = rank_classes_.groups[group].members;
    const std::vector<std::int32_t>& distinct = rank_classes_.groups[group].distinct;
    reason.is_idle = reason.pending.number < sequence.joined_by_all;
    const auto holds_back = [&](std::int32_t m) {
      const auto member = static_cast<std::size_t>(
          std::lower_bound(distinct.begin(), distinct.end(), m) - distinct.begin());
      return reason.is_idle ? !polls(m) : sequence.joined[member] == sequence.joined_by_all;
    };
    reason.position = static_cast<std::size_t>(
        std::find_if(members.begin(), members.end(), holds_back) - members.begin());
    TRIREME_EXPECT(reason.position < members.size());
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
                      reason.is_idle ? ", which makes no progress in a blocking call" : ""));
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
  std::vector<Sequence> engine_, blocking_;    // by group
  std::vector<std::int32_t> blocked_members_;  // by group: classes that block in a call
  std::vector<Channel> channels_;
  std::unordered_map<ChannelKey, std::size_t, HashOfKey> channel_numbers_;
};

}  // namespace

std::vector<Proof::Finding> find_deadlock(const RankPrograms& programs,
                                          const RankClasses& classes) {
  return Simulation(programs, classes).run();
}

}  // namespace trireme::plan
