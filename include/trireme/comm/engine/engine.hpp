// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/rank_axis.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::comm {

/// The order in which a sum over ranks adds its terms.
///
/// - library: the order that MPI or NCCL chooses.
/// - tree: exchanges with rank^1, rank^2, rank^4 ... and adds lower + upper. Power-of-two groups
///   produce the same bits as one rank that adds all parts by recursive halving. Other groups add
///   in rank order.
/// - axes: sums of float64 alone, along one axis of the group after the other. Each axis has the
///   bits of recursive halving (base/tree.hpp), whatever its size.
enum class SumOrder : std::uint8_t { library, tree, axes };

/// The type in which the terms of a float32 sum are sent.
///
/// bfloat16: every rank rounds its part once (to nearest) and sends 2 bytes per element.
/// - By messages (always with MPI; with NCCL under SumOrder::tree): the owner of an element adds
///   its own unrounded part and the rounded parts of the other ranks in float32. `order` has no
///   effect. Runs on the same number of ranks are bit-identical; another partition of the elements
///   changes the bits.
/// - By NCCL's own sums: NCCL adds in bfloat16 and rounds after every addition.
///
/// all_reduce rounds the final sum once more, so that all ranks hold the same bits.
/// reduce_scatter keeps the float32 sum, except with NCCL's own sums.
/// NaN and infinity are preserved. Values beyond the bfloat16 range become infinite.
enum class TransferType : std::uint8_t { float32, bfloat16 };

/// Runs the communication of a training step while the compute stream works.
///
/// One thread (the main thread) submits requests and waits for them. Submitting does not wait for
/// other ranks. All ranks of a group submit its sums and gathers in the same order. They start in
/// this order, at most 8 at a time. Other groups and messages are independent of them, so a receive
/// may stay unmatched for long.
///
/// Host memory, ProgressMode::thread (A and B are requests):
///
///   main thread    submit A | compute          | submit B | compute | wait(A), polls A B | uses A
///   engine thread           | starts A, polls A           | polls B | paused             | polls B
///
/// With ProgressMode::polled there is no engine thread: submit, progress() and wait() poll instead.
///
/// Device memory uses one of two transports:
/// - NCCL for the groups and routes passed to connect(). Requests run on their own CUDA streams,
///   and wait() blocks the compute stream only.
/// - Staging for everything else. The engine copies to pinned host memory once the compute stream
///   has finished its earlier work. It then runs the MPI steps of host memory (same bits) and
///   copies back. Each direction has its own stream. A request holds its pinned memory until wait()
///   or quiesce(), so every request must be waited for.
///
/// All memory of one request is host memory, or all of it is memory of the attached device.
/// Requests are recycled: nothing is allocated after the first steps.
/// A group of one sends nothing. A meta group touches no memory and only counts the bytes to send.
class Engine {
 public:
  /// Selects who polls MPI: a thread of the engine (needs a free core), or the calling thread in
  /// progress().
  enum class ProgressMode : std::uint8_t { thread, polled };
  /// `max_call_count`: maximum floats of one MPI sum, or bytes of one MPI message; longer requests
  /// take several calls, because MPI counts are `int`. Falls back to `polled` without
  /// MPI_THREAD_MULTIPLE. The engine's thread inherits the affinity of the caller, so create the
  /// engine before Kokkos: OpenMP binds the main thread to one core.
  explicit Engine(ProgressMode progress_mode, std::int64_t max_call_count = std::int64_t{1} << 30);
  /// Does not wait for requests: call quiesce() on every rank first.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Accepts requests on memory of the device of `compute` and orders them after the work of this
  /// stream. Called once, by the owner of the run, while no request is under way. No effect for the
  /// CPU and for meta.
  void attach_device(const Stream& compute);

  /// The transport of device memory. `automatic` chooses NCCL when the build has CUDA and every
  /// rank of the world has a GPU of its own; otherwise it chooses staging.
  enum class Transport : std::uint8_t { automatic, staged, nccl };
  /// The messages of a group from rank `from` to rank `to` with these tags.
  /// The receiver submits its receives in the order in which the sender submits its sends.
  struct MessageRoute {
    int from = 0, to = 0;
    std::vector<int> tags;
  };
  /// The communication that NCCL carries if it is chosen: sums and gathers of `groups`, and the
  /// messages of group `messages` on the listed routes. Everything else is staged.
  struct Connections {
    std::vector<Communicator> groups;
    Communicator messages;
    std::vector<MessageRoute> routes;
  };
  /// Creates the NCCL communicators and returns the transport chosen. Everything is staged without
  /// this call.
  ///
  /// Collective over the world, after attach_device() and before the first request. All ranks pass
  /// groups and routes in the same order. Each of them costs a stream and device memory that the
  /// memory plan does not include. Registers all device memory allocated so far with NCCL; later
  /// requests must use this memory only. NCCL errors of a request surface in wait(), progress() and
  /// quiesce(). Throws Failure on all ranks when NCCL was requested and is not available, or when
  /// it fails.
  Transport connect(const Communicator& world, const Connections& connections,
                    Transport transport = Transport::automatic);
  /// Destroys the NCCL communicators before device memory is freed. Not collective.
  /// Aborts requests that are still under way. No effect without connect().
  void disconnect();
  /// Returns the bytes of device memory that NCCL has registered.
  std::size_t registered_bytes() const;
  /// Returns why NCCL refused to register memory; empty if it did not refuse.
  const std::string& registration_error() const;

  /// The purpose of a request: a label and up to two numbered items. describe() and the watchdog
  /// print it, for example "trireme/train/send_activation, micro-batch 3, chunk 1".
  struct Purpose {
    /// A thing that is numbered, such as bucket 3. No thing if `name` is empty.
    struct Item {
      std::string_view name;
      std::int64_t number;
    };
    // Implicit, because most requests have a label only.
    Purpose(std::string_view label_in, Item first_in = {}, Item second_in = {})
        : label(label_in), first(first_in), second(second_in) {}
    Purpose(const char* label_in) : label(label_in) {}
    std::string describe() const;

    std::string_view label;  ///< A string literal, like the names of the items.
    Item first, second;
  };

  /// Identifies a request. 0 is a request without work, which is done from the start.
  using Request = std::uint64_t;

  /// One call of this class, as an observer sees it.
  struct Call {
    enum class Kind : std::uint8_t {
      all_reduce,
      reduce_scatter,
      all_gather,
      send,
      receive,
      wait,
      quiesce
    };
    Kind kind;
    /// The request that the call submits, or for which it waits; 0 for quiesce.
    Request request = 0;
    /// Group and purpose of the request that the call submits.
    Communicator group = {};
    Purpose purpose = "";
    /// Payload of the request in bytes: of the whole vector of a sum or gather, of the message.
    std::int64_t bytes = 0;
    /// The bytes that this rank sends for the request. Library calls count as ring algorithms.
    double sent_bytes = 0;
    /// Hash of the sizes of all ranks' parts of a reduce_scatter or all_gather; else 0.
    std::uint64_t parts = 0;
    /// A sum whose terms are sent in this type and added in this order.
    TransferType transfer_type = TransferType::float32;
    SumOrder order = SumOrder::library;
    /// The other rank of a message, and the message's tag.
    int peer = 0, tag = 0;
  };
  using Observer = std::function<void(const Call&)>;
  /// Calls `observer` for the requests of meta groups, and for all waits, until it is replaced; an
  /// empty one ends this. `target`: the device that the run will use. It decides whether sums and
  /// gathers are NCCL's or the program's own. Only meta groups may be used from then on.
  void observe(Observer observer, DeviceKind target);
  /// Replaces data[0, count) by its sum over the group. The engine owns the memory until wait().
  ///
  /// `scratch`: `count` elements of 2 bytes for bfloat16; `count` floats for float32 under
  /// SumOrder::tree; otherwise null.
  ///
  /// Call wait() before any blocking call that a peer makes only after its own wait(). Otherwise
  /// both ranks hang with ProgressMode::polled, because a blocked rank does not poll.
  Request all_reduce(const Communicator& group, float* data, void* scratch, std::int64_t count,
                     SumOrder order, const Purpose& purpose,
                     TransferType transfer_type = TransferType::float32);
  /// Replaces values[0, count) by its sum over the group, in SumOrder::axes.
  ///
  /// The product of the sizes of `axes` is the size of the group; rank = sum of position * stride.
  /// Takes log2(size) messages of all values for each axis, twice as many (rounded up) if its size
  /// is no power of two. `scratch`: `count` values. The engine owns axes and memory until wait().
  Request all_reduce(const Communicator& group, double* values, double* scratch, std::int64_t count,
                     std::span<const RankAxis> axes, const Purpose& purpose);
  /// Adds data [bounds.front(), bounds.back()) over the group; rank r receives [bounds[r],
  /// bounds[r+1]).
  ///
  /// `bounds`: size() + 1 ascending element offsets into `data`; parts may be uneven or empty.
  /// `result`: this rank's part of the sum; must not overlap `data`, which is destroyed.
  /// `scratch`: as in all_reduce(), for bounds.back() - bounds.front() elements.
  /// SumOrder::tree with float32 produces the bits of all_reduce(). The engine owns bounds and
  /// memory until wait().
  Request reduce_scatter(const Communicator& group, float* data, void* scratch,
                         std::span<const std::int64_t> bounds, float* result, SumOrder order,
                         const Purpose& purpose,
                         TransferType transfer_type = TransferType::float32);
  /// Gathers in place: rank r contributes the bytes [bounds[r], bounds[r+1]) of `data`.
  /// After wait() all ranks hold all parts, which may be uneven. The engine owns bounds and memory
  /// until wait().
  Request all_gather(const Communicator& group, std::byte* data,
                     std::span<const std::int64_t> bounds, const Purpose& purpose);
  /// Sends a message to rank `to`, or receives one. Messages match by tag (below 2^14); those with
  /// the same tag match in order. A received message of unexpected length is a Failure. The engine
  /// owns the memory until wait().
  Request send(const Communicator& group, std::span<const std::byte> data, int to, int tag,
               const Purpose& purpose);
  Request receive(const Communicator& group, std::span<std::byte> data, int from, int tag,
                  const Purpose& purpose);
  /// Polls all requests once with ProgressMode::polled, and NCCL for errors. Cheap: called between
  /// blocks. Throws Failure when MPI or NCCL failed.
  void progress();
  /// Waits until `request` is done and polls all others meanwhile.
  ///
  /// Host memory: blocks the host. Staged memory: blocks the host for MPI and the compute stream
  /// for the copy back. NCCL: blocks only the compute stream. Throws Failure when MPI or NCCL
  /// failed.
  void wait(Request request);
  /// Waits for all requests, including those on NCCL streams. Call it before collective calls of
  /// the main thread (HDF5, checkpoints).
  void quiesce();
  /// Returns the mode in use: `polled` if the engine has no thread.
  ProgressMode progress_mode() const;
  /// Returns one line for each unfinished request, oldest first. Any thread may call it; used by
  /// the watchdog. A line ends with the state of the request:
  ///
  /// - "queued": it has not started, because earlier requests of its group or its copy from the
  ///   device must end before it.
  /// - "blocked on peers": its MPI calls are posted and have not ended.
  /// - "not polled": its MPI calls are posted, but the main thread, which polls them, works.
  /// - "on its stream": the device executes it by NCCL, after its earlier work.
  std::vector<std::string> describe() const;
  /// Returns the request for which wait() blocks at this moment, or the oldest one if quiesce()
  /// blocks. Any thread may call it.
  std::optional<PeerWait> current_wait() const;
  /// Duration of one request, from its first MPI call to the end of its last one; or, `is_wait`, of
  /// one wait() or quiesce() that blocked, with the purpose of the request that it waited for.
  /// Times are values of monotonic_seconds(). NCCL requests have none, since the host does not see
  /// their end: wait() does not wait for it; quiesce() does, without a span.
  struct Span {
    Purpose purpose;
    std::string_view group;  ///< Name of the request's group, as long as the engine; a wait: empty.
    double begin = 0, end = 0;
    bool is_wait = false;
  };
  /// Turns the recording of spans on or off. Recording takes memory.
  void record_spans(bool record);
  /// Returns the recorded spans in the order of their ends, and clears the record.
  std::vector<Span> take_spans();
  /// Bytes sent by finished requests, and the seconds that wait() and quiesce() have blocked so
  /// far.
  double bytes_sent() const;
  double waited_seconds() const;
  /// Returns the pinned host memory allocated for staging so far, in bytes.
  ///
  /// About the size of all requests that one step submits before it waits (twice that in tree
  /// order). The memory plan does not include it, because it depends on when other ranks arrive.
  std::size_t staging_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm
