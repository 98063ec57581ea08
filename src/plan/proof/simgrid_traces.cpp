// SPDX-License-Identifier: Apache-2.0
//
// Writes the traces of a SimGrid replay from the recorded programs of all ranks.
//
// A line is `PROCESS ACTION ARGUMENTS`. The processes of a rank on a GPU, with a sum over its data
// group:
//
//   rank             compute | send to its stream | compute      | receive from it | compute
//   stream "data"              receive | sendRecv with the streams of other ranks | send
//
// A stream sends its signal directly behind a request, so a wait for this request does not wait for
// later ones. Signals between a rank and its streams have one byte and take no time: the replay
// sets the latency of messages below min_message_bytes to zero.
//
// NCCL also runs the messages from one rank to another on a stream, one after the other: the stream
// of the sender waits for a signal of the receiver's. Without NCCL messages are isend, irecv and
// wait lines of the ranks.

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "rank_classes.hpp"
#include "simgrid_trace.hpp"
#include "trireme/base/check.hpp"
#include "trireme/comm/engine/message_steps.hpp"
#include "trireme/plan/costs.hpp"
#include "trireme/plan/proof/simgrid.hpp"

namespace trireme::plan {
namespace {

using Kind = ProgramCall::Kind;
using parallel::MeshGroup;

EngineKind kind_of(Kind kind) {
  if (kind == Kind::all_reduce) return EngineKind::all_reduce;
  return kind == Kind::reduce_scatter ? EngineKind::reduce_scatter : EngineKind::all_gather;
}

/// All groups of one kind, and the processes that carry out their requests.
struct KindOfGroup : KindGroups {
  std::vector<int> stream_of;  // by world rank; -1: none
};

class TraceWriter {
 public:
  TraceWriter(const RankPrograms& programs, const Machine& machine, std::string_view group)
      : programs_(programs),
        machine_(machine),
        per_node_(ranks_per_node(machine, programs.shape.ranks())),
        uses_nccl_(machine.device.kind == MachineKind::gpu),
        overlaps_(uses_nccl_ && group.empty()),
        only_group_(group) {
    for (std::size_t part = 0; part < programs.parts.size(); ++part)
      if (programs.parts[part] == "step 1") step_ = static_cast<int>(part);
    TRIREME_EXPECT(step_ >= 0);
    for (const MeshGroup kind : parallel::mesh_groups)
      kinds_.push_back({groups_of(programs.shape, kind),
                        std::vector<int>(static_cast<std::size_t>(programs.shape.ranks()), -1)});
    number_processes();
  }

  int processes() const { return static_cast<int>(host_of_.size()); }
  /// Returns the node of a process.
  int host_of(int process) const { return host_of_[static_cast<std::size_t>(process)]; }

  /// Passes the process and the text of each trace of a rank to `take`.
  template <class Take>
  void write(int rank, const Take& take) {
    start(rank);
    for (const ProgramCall& call : programs_.program(rank)) {
      if (call.part != step_) continue;
      if (only_group_.empty()) main_->compute(call.compute_seconds);
      if (call.is_wait())
        wait(call);
      else if (is_written(call))
        submit(call);
      if (only_group_.empty()) main_->compute(call.trailing_seconds);
    }
    finish();
    take(rank, main_->finish());
    for (auto& [process, trace] : streams_) take(process, trace.finish());
  }

 private:
  /// A submitted request that is not known to be done.
  struct Request {
    const ProgramCall* call;
    int stream = -1;                  // that carries it out
    int from = -1, to = -1, tag = 0;  // of a message without stream
  };

  bool is_written(const ProgramCall& call) const {
    return only_group_.empty() || only_group_ == group_name(call.group);
  }
  KindOfGroup& kind_of_group(const ProgramCall& call) {
    return kinds_[static_cast<std::size_t>(call.group)];
  }

  /// Ranks have the first numbers. Groups with sums or gathers have a stream on each rank.
  void number_processes() {
    const int ranks = programs_.shape.ranks();
    for (int rank = 0; rank < ranks; ++rank) host_of_.push_back(rank / per_node_);
    std::vector<bool> has_collectives(kinds_.size());
    bool is_any_written = false;
    for (const Program& program : programs_.programs) {
      for (const ProgramCall& call : program) {
        if (call.part != step_ || call.is_wait() || !is_written(call)) continue;
        validate(!call.is_blocking(),
                 "--simgrid: the step has blocking calls over group {}, which are not written; use "
                 "parallel.sync = \"step\"",
                 group_name(call.group));
        is_any_written = true;
        if (call.is_collective()) has_collectives[static_cast<std::size_t>(call.group)] = true;
      }
    }
    validate(is_any_written || only_group_.empty(),
             "--group {}: the step has no communication over this group", only_group_);
    for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
      for (int rank = 0; rank < ranks; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        if (kinds_[kind].group_of[at] < 0 || !has_collectives[kind]) continue;
        kinds_[kind].stream_of[at] = overlaps_ ? processes() : rank;
        if (overlaps_) host_of_.push_back(rank / per_node_);
      }
    }
    if (!uses_nccl_) return;
    for (int rank = 0; rank < ranks; ++rank) {
      for (const ProgramCall& call : programs_.program(rank)) {
        if (call.part != step_ || !call.is_message() || !is_written(call)) continue;
        const bool is_new = message_streams_.emplace(route_of(rank, call), processes()).second;
        if (is_new) host_of_.push_back(rank / per_node_);
      }
    }
  }

  /// A rank, the other one of a message, and whether the first one sends.
  using Route = std::array<int, 3>;
  Route route_of(int rank, const ProgramCall& call) const {
    const KindOfGroup& kind = kinds_[static_cast<std::size_t>(call.group)];
    const auto group = static_cast<std::size_t>(kind.group_of[static_cast<std::size_t>(rank)]);
    return {rank, kind.ranks[group][static_cast<std::size_t>(call.peer)], call.is_send() ? 1 : 0};
  }

  void start(int rank) {
    rank_ = rank;
    main_.emplace(rank);
    streams_.clear();
    requests_.clear();
    waiting_to_start_.clear();
    find_waits();
    number_messages();
    for (auto route = message_streams_.lower_bound({rank, 0, 0});
         route != message_streams_.end() && route->first[0] == rank; ++route)
      streams_.emplace(route->second, SimgridTrace(route->second));
    if (!overlaps_) return;
    for (const KindOfGroup& kind : kinds_)
      if (const int process = kind.stream_of[static_cast<std::size_t>(rank)]; process >= 0)
        streams_.emplace(process, SimgridTrace(process));
  }

  /// Finds the requests that a wait names, or that a quiesce waits for.
  void find_waits() {
    waited_.clear();
    std::set<std::int32_t> submitted;
    for (const ProgramCall& call : programs_.program(rank_)) {
      if (call.part != step_) continue;
      if (call.kind == Kind::quiesce)
        waited_.merge(submitted);
      else if (call.kind == Kind::wait)
        waited_.insert(call.request);
      else if (is_written(call))
        submitted.insert(call.request);
    }
  }

  /// Gives each message of the rank a tag of its own on its route: `wait` finds a message by its
  /// tag. Messages with one tag of the program arrive in order, so both ends count alike.
  void number_messages() {
    message_tags_.clear();
    if (uses_nccl_) return;
    for (const ProgramCall& call : programs_.program(rank_))
      if (call.part == step_ && call.is_message() && is_written(call)) ++next_tag(call);
    for (auto& [route, counts] : message_tags_) {
      int next = 1;
      for (auto& [tag, count] : counts) next += std::exchange(count, next);
    }
  }
  int& next_tag(const ProgramCall& call) { return message_tags_[route_of(rank_, call)][call.tag]; }

  void submit(const ProgramCall& call) {
    Request request{.call = &call};
    if (call.is_message()) {
      const Route route = route_of(rank_, call);
      if (uses_nccl_)
        request.stream = message_streams_.at(route);
      else
        start_message(call, route[1], request);
    } else if (overlaps_) {
      request.stream = stream_of(call);
    } else if (!only_group_.empty()) {
      carry_out(call, *main_);
      return;
    } else {
      waiting_to_start_[call.group].push_back(&call);
    }
    requests_.emplace(call.request, request);
    if (request.stream < 0) return;
    main_->send_signal(request.stream, call.request);
    SimgridTrace& trace = streams_.at(request.stream);
    trace.wait_for_signal(rank_, call.request);
    if (call.is_message())
      carry_out_message(call, trace);
    else
      carry_out(call, trace);
    if (waited_.contains(call.request)) trace.send_signal(rank_, call.request);
  }

  int stream_of(const ProgramCall& call) {
    return kind_of_group(call).stream_of[static_cast<std::size_t>(rank_)];
  }

  /// Writes a message of a stream. The next one of the route begins when this one has arrived.
  void carry_out_message(const ProgramCall& call, SimgridTrace& trace) {
    constexpr int tag = 1;
    const auto [rank, peer, is_sent] = route_of(rank_, call);
    const int other = message_streams_.at({peer, rank, 1 - is_sent});
    if (call.is_send()) {
      trace.exchange(other, call.bytes, -1, 0);
      trace.wait_for_signal(other, tag);
    } else {
      trace.exchange(-1, 0, other, call.bytes);
      trace.send_signal(other, tag);
    }
  }

  void start_message(const ProgramCall& call, int peer, Request& request) {
    request.from = call.is_send() ? rank_ : peer;
    request.to = call.is_send() ? peer : rank_;
    request.tag = next_tag(call)++;
    if (call.is_send())
      main_->start_send(peer, request.tag, call.bytes);
    else
      main_->start_receive(peer, request.tag, call.bytes);
  }

  void wait(const ProgramCall& call) {
    if (call.kind == Kind::quiesce) return finish_requests();
    const auto found = requests_.find(call.request);
    if (found == requests_.end()) return;  // of another group, or known to be done
    wait_for(found->second);
    requests_.erase(found);
  }

  void wait_for(const Request& request) {
    const ProgramCall& call = *request.call;
    if (request.stream >= 0) {
      main_->wait_for_signal(request.stream, call.request);
    } else if (call.is_message()) {
      main_->wait(request.from, request.to, request.tag);
    } else {
      // Earlier requests of the group run first.
      std::vector<const ProgramCall*>& waiting = waiting_to_start_[call.group];
      std::size_t done = 0;
      while (done < waiting.size() && waiting[done]->request <= call.request)
        carry_out(*waiting[done++], *main_);
      waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(done));
    }
  }

  void finish_requests() {
    for (const auto& [number, request] : requests_) wait_for(request);
    requests_.clear();
  }
  /// The simulation ends when all requests have ended: nobody waits for streams.
  void finish() {
    for (const auto& [number, request] : requests_)
      if (request.stream < 0) wait_for(request);
  }

  /// Writes the messages of a sum or gather.
  void carry_out(const ProgramCall& call, SimgridTrace& trace) {
    const KindOfGroup& kind = kind_of_group(call);
    const auto at = static_cast<std::size_t>(rank_);
    members_ = &kind.ranks[static_cast<std::size_t>(kind.group_of[at])];
    streams_of_group_ = &kind.stream_of;
    const int position = kind.position_in[at], size = static_cast<int>(members_->size());
    const comm::SumOrder order = call.order();
    const comm::TransferType type = call.transfer_type();
    const Collective collective{.kind = kind_of(call.kind),
                                .group = group_name(call.group),
                                .ranks = size,
                                .bytes = call.bytes,
                                .order = order,
                                .transfer_type = type};
    if (is_by_library(collective)) return carry_out_library(collective, position, trace);
    const auto axes = parallel::axes_of(programs_.shape);
    for (const comm::MessageStep& step :
         order == comm::SumOrder::axes
             ? comm::message_steps(position, call.bytes, axes)
             : comm::message_steps(collective.kind, position, size, call.bytes, order, type)) {
      trace.exchange(step.to < 0 ? -1 : process_at(step.to), step.sent_bytes,
                     step.from < 0 ? -1 : process_at(step.from), step.received_bytes);
      add_numbers(trace, step.added_bytes);
    }
  }

  /// Returns whether NCCL or MPI carries out a collective with an algorithm of its own.
  bool is_by_library(const Collective& collective) const {
    const bool by_nccl = machine_.device.kind == MachineKind::gpu;
    if (collective.kind == EngineKind::all_gather) return by_nccl;
    if (collective.order != comm::SumOrder::library) return false;
    return by_nccl || (collective.kind == EngineKind::all_reduce &&
                       collective.transfer_type == comm::TransferType::float32);
  }

  int process_at(int position) const {
    const int rank = (*members_)[static_cast<std::size_t>(position)];
    return (*streams_of_group_)[static_cast<std::size_t>(rank)];
  }

  void add_numbers(SimgridTrace& trace, std::int64_t bytes) const {
    const bool between_nodes = members_->front() / per_node_ != members_->back() / per_node_;
    const double rate = (between_nodes ? machine_.network : machine_.node_link).sum_bytes_per_s;
    if (rate > 0) trace.compute(static_cast<double>(bytes) / rate);
  }

  void carry_out_library(const Collective& collective, int position, SimgridTrace& trace) {
    const PlacedCollective placed = place_collective(machine_, programs_.shape, collective);
    std::vector<int> all, inside, between;  // positions
    const int mine = (*members_)[static_cast<std::size_t>(position)];
    int my_place = 0;  // among the ranks of the group on its node
    for (int i = 0; i < collective.ranks; ++i) {
      all.push_back(i);
      const int rank = (*members_)[static_cast<std::size_t>(i)];
      if (rank / per_node_ != mine / per_node_) continue;
      if (i == position) my_place = static_cast<int>(inside.size());
      inside.push_back(i);
    }
    const auto on_node = static_cast<int>(inside.size());
    for (int i = my_place; i < collective.ranks; i += on_node) between.push_back(i);
    const bool sums = collective.kind != EngineKind::all_gather;
    const bool sums_twice = collective.kind == EngineKind::all_reduce;
    const bool is_even = collective.ranks % on_node == 0 && placed.group.ranks_per_node == on_node;
    const std::int64_t bytes = collective.bytes;
    if (placed.algorithm == CollectiveAlgorithm::rings || !is_even) {
      go_around(all, position, bytes, sums_twice ? 2 : 1, trace);
      if (sums) add_numbers(trace, bytes - bytes / collective.ranks);
      return;
    }
    // All-reduce in nodes and between them.
    if (placed.algorithm == CollectiveAlgorithm::in_network) {
      trace.compute(2 * machine_.node_link.latency_seconds +
                    static_cast<double>(bytes) / machine_.node_link.in_network_bytes_per_s);
    } else {
      go_around(inside, my_place, bytes, 1, trace);
    }
    go_around(between, position / on_node, bytes / on_node, 2, trace);
    if (placed.algorithm == CollectiveAlgorithm::hierarchical)
      go_around(inside, my_place, bytes, 1, trace);
    add_numbers(trace, bytes / on_node);
  }

  /// Parts of `bytes` travel around a ring of `members` (positions in the group), `repeats` times.
  void go_around(const std::vector<int>& members, int place, std::int64_t bytes, int repeats,
                 SimgridTrace& trace) const {
    const auto size = static_cast<int>(members.size());
    if (size == 1) return;
    const int next = process_at(members[static_cast<std::size_t>((place + 1) % size)]),
              previous = process_at(members[static_cast<std::size_t>((place + size - 1) % size)]);
    const std::int64_t part = (bytes + size - 1) / size;
    for (int round = 0; round < repeats * (size - 1); ++round)
      trace.exchange(next, part, previous, part);
  }

  const RankPrograms& programs_;
  const Machine& machine_;
  int per_node_;
  bool uses_nccl_;  // messages have processes of their own
  bool overlaps_;   // sums and gathers, too
  std::string only_group_;
  int step_ = -1;                   // part of the run that is written
  std::vector<KindOfGroup> kinds_;  // by MeshGroup
  std::vector<int> host_of_;        // by process
  std::map<Route, int> message_streams_;
  // The rank that is written.
  int rank_ = 0;
  std::optional<SimgridTrace> main_;
  std::map<int, SimgridTrace> streams_;  // by process
  std::map<std::int32_t, Request> requests_;
  std::map<MeshGroup, std::vector<const ProgramCall*>> waiting_to_start_;
  std::set<std::int32_t> waited_;                     // requests
  std::map<Route, std::map<int, int>> message_tags_;  // the next one, by tag of the program
  // The group whose request is written.
  const std::vector<std::int32_t>* members_ = nullptr;
  const std::vector<int>* streams_of_group_ = nullptr;
};

/// Options of smpirun, so that the platform's rates and latencies are those of messages: SimGrid's
/// defaults correct them for Ethernet and TCP. A send does not wait for its receive.
constexpr const char* simulator_options =
    "--cfg=smpi/host-speed:1Gf --cfg=smpi/bw-factor:0:1 '--cfg=smpi/lat-factor:0:0;100:1'"
    " --cfg=network/TCP-gamma:0 --cfg=network/crosstraffic:0"
    " --cfg=smpi/async-small-thresh:2000000000 --cfg=smpi/send-is-detached-thresh:2000000000";

/// Passes the files beside the traces to `put`: platform, hosts, and the script.
void write_small_files(const TraceWriter& writer, const Machine& machine,
                       const SimgridNetwork& network, const Replay& replay, const ReplayFile& put) {
  put("platform.xml", simgrid_platform(machine, replay.ranks, network));
  std::string hosts, traces;
  for (int process = 0; process < replay.processes; ++process) {
    hosts += fmt::format("node-{}\n", writer.host_of(process));
    traces += fmt::format("traces/{}.txt\n", process);
  }
  put("hosts.txt", hosts);
  put("traces.txt", traces);
  // The limit of open files that the script needs: all traces are open.
  put("replay.sh",
      fmt::format("#!/bin/sh\n"
                  "# Replays the traces with SimGrid (Debian: libsimgrid-dev) and prints the "
                  "simulated time.\n"
                  "cd \"$(dirname \"$0\")\" || exit 1\n"
                  "ulimit -n {} || exit 1\n"
                  "exec {}\n",
                  replay.processes + 64, replay.command));
}

/// Returns what is known of a replay before its files are written.
Replay describe_replay(const TraceWriter& writer, const RankPrograms& programs,
                       const Machine& machine) {
  return {.ranks = programs.shape.ranks(),
          .nodes = nodes_of(machine, programs.shape.ranks()),
          .processes = writer.processes(),
          .bytes = 0,
          .command = fmt::format("smpirun -no-privatize -np {} -platform platform.xml -hostfile "
                                 "hosts.txt -replay traces.txt {}",
                                 writer.processes(), simulator_options)};
}

}  // namespace

ReplaySize estimate_replay(const RankPrograms& programs, const Machine& machine,
                           const SimgridNetwork& network, std::string_view group) {
  TraceWriter writer(programs, machine, group);
  const Replay replay = describe_replay(writer, programs, machine);
  ReplaySize size;
  const ReplayFile count = [&](const std::string&, std::string_view text) {
    ++size.files;
    size.bytes += std::ssize(text);
  };
  write_small_files(writer, machine, network, replay, count);
  size.files += replay.processes;
  // Ranks evenly over the run, at different distances from the first one of their part: of all
  // stages and positions.
  constexpr std::int64_t max_samples = 16;
  const std::int64_t ranks = replay.ranks, samples = std::min(ranks, max_samples);
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < samples; ++i)
    writer.write(static_cast<int>(i * ranks / samples + i % (ranks / samples)),
                 [&](int, const std::string& text) { bytes += std::ssize(text); });
  size.bytes += bytes * ranks / samples;
  return size;
}

Replay write_replay(const RankPrograms& programs, const Machine& machine,
                    const SimgridNetwork& network, std::string_view group, const ReplayFile& file) {
  TraceWriter writer(programs, machine, group);
  Replay replay = describe_replay(writer, programs, machine);
  std::int64_t bytes = 0;
  const ReplayFile put = [&](const std::string& path, std::string_view text) {
    bytes += std::ssize(text);
    file(path, text);
  };
  write_small_files(writer, machine, network, replay, put);
  for (int rank = 0; rank < replay.ranks; ++rank)
    writer.write(rank, [&](int process, const std::string& text) {
      put(fmt::format("traces/{}.txt", process), text);
    });
  replay.bytes = bytes;
  return replay;
}

}  // namespace trireme::plan
