// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "trireme/comm/engine/engine.hpp"
#include "trireme/device/device.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/train/run/rehearsal.hpp"

namespace trireme::plan {

/// One call of a rank that communicates, as comm::Engine or comm::Communicator observed it.
struct ProgramCall {
  enum class Kind : std::uint8_t {
    // Requests of comm::Engine: they do not block.
    all_reduce,
    reduce_scatter,
    all_gather,
    send,
    receive,
    // They block until a request, or all requests, are done.
    wait,
    quiesce,
    // Calls of comm::Communicator: they block.
    blocking_barrier,
    blocking_broadcast,
    blocking_all_gather,
    blocking_all_reduce,
    blocking_send,
    blocking_receive
  };
  Kind kind = Kind::quiesce;
  parallel::MeshGroup group = parallel::MeshGroup::world;
  std::uint8_t operation = 0;  ///< As set_sum(), or reduction and element type.
  std::uint8_t part = 0;       ///< Part of the run: an index of RankPrograms::parts.
  std::uint16_t purpose = 0;   ///< Index of RankPrograms::purposes.
  std::int32_t number = 0;     ///< Of this call within its part, counted from 1.
  std::int32_t request = 0;    ///< The request that is submitted or waited for.
  /// The other rank of a message or the root of a broadcast, by its rank in the group; else -1.
  std::int32_t peer = -1;
  std::int32_t tag = 0;
  std::array<std::int32_t, 2> items{};  ///< Numbers of the purpose's items.
  std::int64_t bytes = 0;               ///< Payload, as in comm::Engine::Call.
  std::uint64_t sizes = 0;              ///< Hash of the sizes of all ranks' parts.
  double compute_seconds = 0;           ///< Of the ops in front of this call, if they are timed.
  double trailing_seconds = 0;          ///< Of those behind the last call of a part.

  static constexpr int num_orders = 3;  ///< of comm::SumOrder
  /// Order and type of an engine's sum or gather.
  void set_sum(comm::SumOrder order, comm::TransferType type) {
    operation =
        static_cast<std::uint8_t>(num_orders * static_cast<int>(type) + static_cast<int>(order));
  }
  comm::SumOrder order() const { return static_cast<comm::SumOrder>(operation % num_orders); }
  comm::TransferType transfer_type() const {
    return static_cast<comm::TransferType>(operation / num_orders);
  }

  bool is_send() const { return kind == Kind::send || kind == Kind::blocking_send; }
  bool is_receive() const { return kind == Kind::receive || kind == Kind::blocking_receive; }
  bool is_message() const { return is_send() || is_receive(); }
  bool is_wait() const { return kind == Kind::wait || kind == Kind::quiesce; }
  bool is_collective() const { return !is_wait() && !is_message(); }
  /// A call of comm::Communicator. It uses another communicator of MPI than the engine's requests.
  bool is_blocking() const { return kind >= Kind::blocking_barrier; }
  /// Compares all but the times of ops.
  bool operator==(const ProgramCall& other) const {
    const auto call = [](const ProgramCall& c) {
      return std::tie(c.kind, c.group, c.operation, c.part, c.purpose, c.number, c.request, c.peer,
                      c.tag, c.items, c.bytes, c.sizes);
    };
    return call(*this) == call(other);
  }
};

/// All calls of one rank, in the order of its program.
using Program = std::vector<ProgramCall>;

/// The programs of all ranks of a run. Ranks with equal calls share one. If ops are timed, only
/// data ranks of the same stage and tensor rank do; compute times are those of the first one
/// recorded.
struct RankPrograms {
  /// The words of a request's purpose. They are literals of the program.
  struct Purpose {
    std::string_view label, first, second;
    bool operator==(const Purpose&) const = default;
  };

  parallel::MeshShape shape;
  /// Messages from one rank to another are matched in their order, whatever their tags: NCCL.
  bool messages_in_order = false;
  std::vector<std::string> parts;
  std::vector<Purpose> purposes;
  std::vector<Program> programs;
  std::vector<std::int32_t> program_of_rank;  ///< By world rank.
  std::int64_t recorded_ranks = 0;            ///< Ranks whose calls were recorded.

  const Program& program(int rank) const {
    return programs[static_cast<std::size_t>(program_of_rank[static_cast<std::size_t>(rank)])];
  }
};

/// The ranks whose calls are recorded. `places`: for each stage and tensor rank the first and the
/// last data rank. If their calls are equal, they are those of the data ranks between them;
/// otherwise these are recorded too. Data ranks that own parts of tied tensors of different sizes
/// have different places, because the first and the last stage sum these parts.
enum class RecordedRanks : std::uint8_t { places, all };

/// The seconds of an op on the device; empty: ops are not timed.
using OpSeconds = std::function<double(const ops::OpCall&)>;

/// Records the run of train::rehearse_run. Touches no device memory.
RankPrograms record_programs(const train::ReplicaOptions& options, const parallel::MeshShape& shape,
                             DeviceKind target, const train::RehearsedParts& parts,
                             RecordedRanks ranks = RecordedRanks::places,
                             const OpSeconds& op_seconds = {});

/// Returns the kind of a recorded call of the engine.
ProgramCall::Kind kind_of(comm::Engine::Call::Kind kind);
/// Returns the name of a kind for reports, such as "all_reduce" or "blocking broadcast".
const char* name_of(ProgramCall::Kind kind);

/// Returns the name of a kind of group, such as "data".
const char* group_name(parallel::MeshGroup group);

/// Returns the world ranks of a rank's group, in their order; none if it has no such group.
std::vector<int> ranks_of_group(const parallel::MeshShape& shape, int world_rank,
                                parallel::MeshGroup group);

/// Returns "rank 17 (stage 2, tensor 1, data 0)".
std::string describe_rank(const parallel::MeshShape& shape, int world_rank);

/// Returns a call of a rank for messages: "receive of 3.0 MiB from rank 9, tag 5
/// (receive_activation, micro-batch 3, chunk 1), call 41 of step 1".
std::string describe_call(const RankPrograms& programs, int world_rank, const ProgramCall& call);

}  // namespace trireme::plan
