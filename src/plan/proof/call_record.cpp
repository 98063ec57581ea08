// SPDX-License-Identifier: Apache-2.0
//
// Records the calls of ranks that communicate. train::rehearse_run runs them on the meta device;
// the observers of the engine and of the communicators report each call. Ranks with equal calls
// share one program, so that 16,384 ranks fit into memory.

#include "trireme/plan/proof/call_record.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/text.hpp"

namespace trireme::plan {
namespace {

using Kind = ProgramCall::Kind;
using EngineCall = comm::Engine::Call;
using BlockingCall = comm::Communicator::Call;

/// Returns the index of `value` in `list`, to which it is added if it is new.
template <class T>
std::size_t index_of(std::vector<T>& list, const T& value) {
  const auto known = std::find(list.begin(), list.end(), value);
  if (known != list.end()) return static_cast<std::size_t>(known - list.begin());
  list.push_back(value);
  return list.size() - 1;
}

template <class Narrow, class Wide>
Narrow narrow(Wide value) {
  const auto result = static_cast<Narrow>(value);
  TRIREME_EXPECT(static_cast<Wide>(result) == value);
  return result;
}

Kind blocking_kind_of(BlockingCall::Kind kind) {
  switch (kind) {
    case BlockingCall::Kind::barrier: break;
    case BlockingCall::Kind::broadcast: return Kind::blocking_broadcast;
    case BlockingCall::Kind::all_gather: return Kind::blocking_all_gather;
    case BlockingCall::Kind::all_reduce: return Kind::blocking_all_reduce;
    case BlockingCall::Kind::send: return Kind::blocking_send;
    case BlockingCall::Kind::receive: return Kind::blocking_receive;
  }
  return Kind::blocking_barrier;
}

/// Returns the group of the mesh with this name.
parallel::MeshGroup group_named(std::string_view name) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const parallel::MeshGroup group : parallel::mesh_groups)
      list.emplace_back(group_name(group));
    return list;
  }();
  for (std::size_t i = 0; i < names.size(); ++i)
    if (name == names[i]) return parallel::mesh_groups[i];
  throw Failure(fmt::format("plan: a call of group {}, which is none of the mesh", name));
}

std::uint64_t hash_of(const Program& program) {
  std::uint64_t hash = program.size();
  const auto add = [&](auto value) { hash = mix64(hash ^ static_cast<std::uint64_t>(value)); };
  for (const ProgramCall& call : program) {
    add(call.kind);
    add(call.request);
    add(call.bytes);
    add(call.sizes);
    add(call.peer);
  }
  return hash;
}

/// Records one rank after the other and shares equal programs.
class Recorder {
 public:
  Recorder(const train::ReplicaOptions& options, const parallel::MeshShape& shape,
           DeviceKind target, const train::RehearsedParts& parts, const OpSeconds& op_seconds)
      : options_(options), target_(target), rehearsed_(parts), op_seconds_(op_seconds) {
    // Graphs of launches do not communicate.
    options_.graphs = false;
    options_.chunk_bounds = train::chunk_bounds(options_, shape.pipeline);
    result_.shape = shape;
    result_.messages_in_order = target == DeviceKind::cuda;
    result_.purposes.emplace_back();  // number 0: no purpose
    result_.program_of_rank.resize(static_cast<std::size_t>(shape.ranks()), -1);
  }

  /// Records a rank and returns the number of its program.
  std::int32_t record(int rank) {
    train::rehearse_run(options_, result_.shape, rank, target_, rehearsed_,
                        {.begin = [this](train::Replica& replica) { find_tied_bounds(replica); },
                         .part = [this](std::string_view part) { begin(part); },
                         .op = op_seconds_ ? ops::OpObserver([this](const ops::OpCall& call) {
                           compute_seconds_ += op_seconds_(call);
                         })
                                           : ops::OpObserver(),
                         .request = [this](const EngineCall& call) { add(call); },
                         .call = [this](const comm::Communicator& group,
                                        const BlockingCall& call) { add(group, call); }});
    end_part();
    ++result_.recorded_ranks;
    // The buffer keeps its memory for the next rank.
    const std::int32_t program = number_of(program_);
    program_.clear();
    assign(rank, program);
    return program;
  }

  /// Ops of another stage or tensor rank may take other times: it shares no program with this one.
  void end_place() {
    if (op_seconds_) known_.clear();
  }

  void assign(int rank, std::int32_t program) {
    result_.program_of_rank[static_cast<std::size_t>(rank)] = program;
  }

  /// Returns the sizes of the parts of tied tensors that a data rank owns, in the stage and tensor
  /// rank recorded last.
  std::vector<std::int64_t> tied_sizes(int data_rank) const {
    std::vector<std::int64_t> sizes;
    const auto at = static_cast<std::size_t>(data_rank);
    for (const std::vector<std::int64_t>& bounds : tied_bounds_)
      sizes.push_back(bounds[at + 1] - bounds[at]);
    return sizes;
  }

  RankPrograms take() { return std::move(result_); }

 private:
  void find_tied_bounds(train::Replica& replica) {
    tied_bounds_.clear();
    const parallel::ParameterStore& store = replica.weight_update().store();
    if (store.sharding().kind == parallel::ShardKind::none) return;
    for (std::size_t i = 0; i < store.layout().buckets().size(); ++i)
      if (store.layout().buckets()[i].tied)
        tied_bounds_.push_back(store.owned().buckets()[i].bounds);
  }

  /// Ops behind the last call belong to its part.
  void end_part() {
    const double seconds = std::exchange(compute_seconds_, 0);
    if (!program_.empty()) program_.back().trailing_seconds = seconds;
  }

  void begin(std::string_view part) {
    end_part();
    run_part_ = narrow<std::uint8_t>(index_of(result_.parts, std::string(part)));
    number_ = 0;
  }

  void add(const EngineCall& from) {
    ProgramCall call = next(kind_of(from.kind));
    call.request = narrow<std::int32_t>(from.request);
    if (!call.is_wait()) {
      call.group = group_named(from.group.name());
      const comm::Engine::Purpose& purpose = from.purpose;
      call.purpose = narrow<std::uint16_t>(
          index_of(result_.purposes, {purpose.label, purpose.first.name, purpose.second.name}));
      if (!purpose.first.name.empty()) call.items[0] = narrow<std::int32_t>(purpose.first.number);
      if (!purpose.second.name.empty()) call.items[1] = narrow<std::int32_t>(purpose.second.number);
      call.bytes = from.bytes;
    }
    if (call.is_message()) {
      call.peer = from.peer;
      call.tag = from.tag;
    } else if (!call.is_wait()) {
      call.sizes = from.parts;
      call.set_sum(from.order, from.transfer_type);
    }
    program_.push_back(call);
  }

  void add(const comm::Communicator& group, const BlockingCall& from) {
    ProgramCall call = next(blocking_kind_of(from.kind));
    call.group = group_named(group.name());
    call.bytes = from.bytes;
    call.peer = from.peer;
    call.tag = from.tag;
    call.operation = narrow<std::uint8_t>(from.operation);
    program_.push_back(call);
  }

  ProgramCall next(Kind kind) {
    ProgramCall call;
    call.kind = kind;
    call.part = run_part_;
    call.number = ++number_;
    call.compute_seconds = std::exchange(compute_seconds_, 0);
    return call;
  }

  /// Returns the number of a program equal to this one, which is kept if there is none.
  std::int32_t number_of(const Program& program) {
    const std::uint64_t hash = hash_of(program);
    const auto [begin, end] = known_.equal_range(hash);
    for (auto known = begin; known != end; ++known)
      if (result_.programs[static_cast<std::size_t>(known->second)] == program)
        return known->second;
    const auto number = static_cast<std::int32_t>(result_.programs.size());
    result_.programs.push_back(program);
    known_.emplace(hash, number);
    return number;
  }

  train::ReplicaOptions options_;
  DeviceKind target_;
  train::RehearsedParts rehearsed_;
  const OpSeconds& op_seconds_;
  double compute_seconds_ = 0;  // since the last call
  RankPrograms result_;
  std::unordered_multimap<std::uint64_t, std::int32_t> known_;  // by hash
  std::vector<std::vector<std::int64_t>> tied_bounds_;          // of the data ranks, by bucket
  Program program_;
  std::uint8_t run_part_ = 0;
  std::int32_t number_ = 0;
};

}  // namespace

RankPrograms record_programs(const train::ReplicaOptions& options, const parallel::MeshShape& shape,
                             DeviceKind target, const train::RehearsedParts& parts,
                             RecordedRanks ranks, const OpSeconds& op_seconds) {
  Recorder recorder(options, shape, target, parts, op_seconds);
  for (int stage = 0; stage < shape.pipeline; ++stage) {
    for (int tensor = 0; tensor < shape.tensor; ++tensor) {
      const auto rank_at = [&](int data) {
        return parallel::rank_of(shape, {stage, data, tensor});
      };
      // 1. The first data rank is recorded in any case, and knows what the others own.
      const std::int32_t program_of_first = recorder.record(rank_at(0));
      std::map<std::vector<std::int64_t>, std::vector<int>> places;  // by sizes of tied parts
      for (int data = 0; data < shape.data; ++data)
        places[recorder.tied_sizes(data)].push_back(data);
      // 2. The first and the last rank of each place, and the others if these differ.
      for (const auto& [sizes, data_ranks] : places) {
        const int first = data_ranks.front(), last = data_ranks.back();
        const std::int32_t program =
            first == 0 ? program_of_first : recorder.record(rank_at(first));
        const bool are_equal = last == first || recorder.record(rank_at(last)) == program;
        for (const int data : data_ranks) {
          if (data == first || data == last) continue;
          if (are_equal && ranks == RecordedRanks::places)
            recorder.assign(rank_at(data), program);
          else
            recorder.record(rank_at(data));
        }
      }
      recorder.end_place();
    }
  }
  return recorder.take();
}

ProgramCall::Kind kind_of(comm::Engine::Call::Kind kind) {
  switch (kind) {
    case EngineCall::Kind::all_reduce: return Kind::all_reduce;
    case EngineCall::Kind::reduce_scatter: return Kind::reduce_scatter;
    case EngineCall::Kind::all_gather: return Kind::all_gather;
    case EngineCall::Kind::send: return Kind::send;
    case EngineCall::Kind::receive: return Kind::receive;
    case EngineCall::Kind::wait: return Kind::wait;
    case EngineCall::Kind::quiesce: break;
  }
  return Kind::quiesce;
}

const char* name_of(ProgramCall::Kind kind) {
  switch (kind) {
    case Kind::all_reduce: return "all_reduce";
    case Kind::reduce_scatter: return "reduce_scatter";
    case Kind::all_gather: return "all_gather";
    case Kind::send: return "send";
    case Kind::receive: return "receive";
    case Kind::wait: return "wait";
    case Kind::quiesce: return "quiesce";
    case Kind::blocking_barrier: return "blocking barrier";
    case Kind::blocking_broadcast: return "blocking broadcast";
    case Kind::blocking_all_gather: return "blocking all_gather";
    case Kind::blocking_all_reduce: return "blocking all_reduce";
    case Kind::blocking_send: return "blocking send";
    case Kind::blocking_receive: return "blocking receive";
  }
  return "";
}

const char* group_name(parallel::MeshGroup group) { return parallel::split_of({}, 0, group).name; }

std::vector<int> ranks_of_group(const parallel::MeshShape& shape, int world_rank,
                                parallel::MeshGroup group) {
  const parallel::MeshSplit mine = parallel::split_of(shape, world_rank, group);
  if (mine.size == 1 || mine.color < 0) return {};
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const parallel::MeshSplit split = parallel::split_of(shape, rank, group);
    if (split.color == mine.color) members.emplace_back(split.key, rank);
  }
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (const auto& [key, rank] : members) ranks.push_back(rank);
  return ranks;
}

std::string describe_rank(const parallel::MeshShape& shape, int world_rank) {
  const parallel::MeshCoordinates at = parallel::coordinates_of(shape, world_rank);
  return fmt::format("rank {} (stage {}, tensor {}, data {})", world_rank, at.stage, at.tensor_rank,
                     at.data_rank);
}

std::string describe_call(const RankPrograms& programs, int world_rank, const ProgramCall& call) {
  std::string text = name_of(call.kind);
  const auto append_place = [&] {
    text += fmt::format(", call {} of {}", call.number, programs.parts[call.part]);
    return text;
  };
  if (call.is_wait()) return append_place();
  if (call.kind != Kind::blocking_barrier) text += " of " + format_bytes(call.bytes);
  const std::vector<int> ranks = ranks_of_group(programs.shape, world_rank, call.group);
  const auto peer = [&] {
    return call.peer >= 0 && call.peer < std::ssize(ranks)
               ? fmt::format("rank {}", ranks[static_cast<std::size_t>(call.peer)])
               : fmt::format("rank {} of the group, which does not exist", call.peer);
  };
  if (call.is_message())
    text += fmt::format(" {} {}, tag {}", call.is_send() ? "to" : "from", peer(), call.tag);
  else
    text += fmt::format(" over group {} ({} ranks)", group_name(call.group), ranks.size());
  if (call.kind == Kind::blocking_broadcast) text += " by " + peer();
  const RankPrograms::Purpose& purpose = programs.purposes[call.purpose];
  if (!purpose.label.empty()) {
    text += fmt::format(" ({}", purpose.label.substr(purpose.label.rfind('/') + 1));
    if (!purpose.first.empty()) text += fmt::format(", {} {}", purpose.first, call.items[0]);
    if (!purpose.second.empty()) text += fmt::format(", {} {}", purpose.second, call.items[1]);
    text += ')';
  }
  return append_place();
}

}  // namespace trireme::plan
