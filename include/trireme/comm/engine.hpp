#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::comm {

/// In which order a sum over ranks is made: `library`: as MPI likes; `tree`: pairwise exchange with
/// rank^1, ^2, ^4 ..., lower + upper: the same bits as one rank that adds all parts by recursive
/// halving (power-of-two groups; others: parts added in rank order).
enum class SumOrder : std::uint8_t { library, tree };

/// As what the parts of a float32 sum travel. bfloat16: each is rounded to it (to the nearest) and
/// sent so; they are added in float32, by NCCL's own sums in bfloat16, rounded after each addition.
/// A sum that goes to all ranks is rounded once more, to the same bits on all; of a sum that is
/// scattered each rank has its shard as it was added. By messages (all of MPI, `tree` by NCCL)
/// either order is one: each element's sum is made at one rank from its own part, not rounded, and
/// those of the ranks before it: the same bits in every run on as many ranks, others than a sum of
/// other cuts has. What is not finite stays so, and what bfloat16 cannot hold becomes infinite.
enum class TransferType : std::uint8_t { float32, bfloat16 };

/// The communication engine: makes the MPI calls of a running step while compute goes on. With a
/// thread of its own where a core is free; else its non-blocking calls are driven by progress(),
/// called between blocks. Requests are made, and waited for, by one thread. Asking never waits. All
/// ranks of a group ask for its sums and gathers in one order, and so they are started, a few at
/// once; what other groups do, and messages, are independent of them: a receive may stay for long.
/// No allocation after the first steps: requests are recycled. A group of one sends nothing; one
/// that is not here (meta) touches no memory and counts the bytes that this rank would send.
///
/// All memory of a request lies on the host, or all of it on the device that is served. A device's
/// memory travels by NCCL between what connect() has connected, else *staged*: it is copied to
/// pinned host memory once the compute stream has done what it was given before the request, goes
/// through MPI there in the steps of host memory, so with the same bits, and is copied back; what
/// the compute stream is given after wait() finds it there. The copies take streams of their own,
/// one each way. Until wait() or quiesce() a request keeps its pinned memory, so each one must be
/// waited for.
class Engine {
 public:
  enum class ProgressMode : std::uint8_t { thread, polled };
  /// `thread` where MPI was not granted MPI_THREAD_MULTIPLE, or is not in use, becomes `polled`.
  /// The thread inherits the caller's cores: make the engine before OpenMP binds the main thread to
  /// one (before Kokkos). `longest_call`: floats of MPI's own sum, or bytes of a message, in one
  /// MPI call; longer ones take several (MPI counts are int).
  explicit Engine(ProgressMode progress_mode, std::int64_t max_call_count = std::int64_t{1} << 30);
  /// What is under way is left as it is: quiesce() first, on every rank.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Requests on memory of this stream's device are served from now on, in the order of its work.
  /// Once, by who owns the run; a stream of the CPU or of meta changes nothing. Nothing may be
  /// under way.
  void attach_device(const Stream& compute);

  /// How a device's memory travels: `staged`, or by `nccl`. `automatic`: by NCCL where the build
  /// has it and each rank of the world has a GPU of its own.
  enum class Transport : std::uint8_t { automatic, staged, nccl };
  /// Messages of a group from one rank to another under these tags, which are received in the order
  /// of sending.
  struct MessageRoute {
    int from = 0, to = 0;
    std::vector<int> tags;
  };
  /// What goes by NCCL where that is taken: sums and gathers of `groups`, and of `messages` what is
  /// in `lanes`. What is not named is staged.
  struct Connections {
    std::vector<Communicator> groups;
    Communicator messages;
    std::vector<MessageRoute> routes;
  };
  /// Collective over the world, after serve() and before requests; gives the transport taken.
  /// Groups and lanes in one order on all their ranks. Each takes a stream, and memory of the
  /// device that no plan knows. A request by NCCL is on its stream when it has been asked for;
  /// wait() then holds back the compute stream alone, and the host, which goes on, hears of NCCL's
  /// failures in wait(), progress() and quiesce(). Without this call all is staged. Throws Failure,
  /// on all ranks, where NCCL was asked for or taken and cannot be had. All memory that the device
  /// has given before this call is registered with NCCL, so that a request may go from where its
  /// data lie; requests lie in such memory alone.
  Transport connect(const Communicator& world, const Connections& connections,
                    Transport transport = Transport::automatic);
  /// Ends what was connected, before memory of the device is given back. Not collective; where
  /// requests are still under way, they end with it. Without connect() nothing.
  void disconnect();
  /// Of the device's memory, what NCCL knows; and why that is nothing, where it would not take it.
  std::size_t registered_bytes() const;
  const std::string& registration_error() const;

  /// Names a request; one that had nothing to do is 0, which is done.
  using Request = std::uint64_t;
  /// data[0, count) = the sum over the group; the memory is the engine's until wait(). `scratch`:
  /// count words of 2 bytes for the wire bfloat16, else under `tree` count floats, which receive
  /// the partner's part; else null. A blocking call that a peer comes to only after its own wait()
  /// stands after ours too (polled: nothing moves in between). `label` outlives the request (a
  /// string literal): shown by describe() and the watchdog.
  Request all_reduce(const Communicator& group, float* data, void* scratch, std::int64_t count,
                     SumOrder order, std::string_view label,
                     TransferType transfer_type = TransferType::float32);
  /// data [bounds.front(), bounds.back()) of each rank is added over the group; rank r's range
  /// [bounds[r], bounds[r+1]) of the sum is written to `result`, which may not overlap data
  /// (bounds: offsets in elements into data, size() + 1 of them; any sizes, some may be empty).
  /// `data` is destroyed; `scratch`: as of all_reduce. Tree order gives the bits of all_reduce (on
  /// the wire float32). Bounds and memory are the engine's until wait().
  Request reduce_scatter(const Communicator& group, float* data, void* scratch,
                         std::span<const std::int64_t> bounds, float* result, SumOrder order,
                         std::string_view label,
                         TransferType transfer_type = TransferType::float32);
  /// In place: rank r's part stands at bytes [bounds[r], bounds[r+1]) of data (any sizes);
  /// afterwards all parts do, on all ranks.
  Request all_gather(const Communicator& group, std::byte* data,
                     std::span<const std::int64_t> bounds, std::string_view label);
  /// Messages to and from another rank of the group, matched by tag (below 2^14), those of one tag
  /// in order. Both sides know the length: another one is a Failure. Memory is the engine's until
  /// wait().
  Request send(const Communicator& group, std::span<const std::byte> data, int to, int tag,
               std::string_view label);
  Request receive(const Communicator& group, std::span<std::byte> data, int from, int tag,
                  std::string_view label);
  /// Drives what is under way (Drive::polled; else nothing): cheap, called between blocks.
  void progress();
  /// Until this request is done; drives all others meanwhile. On a device's memory the host waits
  /// for MPI, and the compute stream for the copy back (by NCCL: the compute stream alone waits).
  /// Throws Failure where MPI or NCCL failed.
  void wait(Request request);
  /// Until nothing is under way, as if all had been waited for: before collective calls of the main
  /// thread (HDF5, checkpoints).
  void quiesce();
  ProgressMode progress_mode() const;
  /// What was asked for and is not done, a line each: for the watchdog, from any thread.
  std::vector<std::string> describe() const;
  /// Whether wait() or quiesce() stands still at this moment; from any thread.
  bool waiting() const;
  /// When a request was under way: from its first call of MPI until its last one was done, of
  /// monotonic_seconds(). Not of what goes by NCCL, whose ends the host does not see.
  struct Span {
    std::string_view label;
    double begin = 0, end = 0;
  };
  /// From now on those of requests that end are kept, which takes memory; or no longer.
  void record_spans(bool record);
  /// Those kept so far, in the order of their ends. They are kept no more.
  std::vector<Span> take_spans();
  /// Bytes sent by requests that are done, and the seconds that wait() stood still.
  double bytes_sent() const;
  double waited_seconds() const;
  /// Pinned host memory taken so far for requests on a device's memory: as much as the most that
  /// were there at once, about what a step's requests that are not waited for hold together (twice
  /// that in tree order). A memory plan does not know it: it depends on when others come.
  std::size_t staging_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm
