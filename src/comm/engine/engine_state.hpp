// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "comm/sums/all_gather.hpp"
#include "comm/sums/all_reduce.hpp"
#include "comm/sums/axis_sum.hpp"
#include "comm/sums/bfloat16_sum.hpp"
#include "comm/sums/reduce_scatter.hpp"
#include "message.hpp"
#include "mpi_calls.hpp"
#include "nccl.hpp"
#include "staging.hpp"
#include "trireme/comm/engine/engine.hpp"

namespace trireme::comm {

/// Requests, the groups they belong to, and the thread that polls them.
///
/// A request occupies a slot, which moves between lists:
///
///   called by        from       to
///   submit()         free       submitted
///   make_progress()  submitted  waiting list of its group; receives: under_way
///   make_progress()  waiting    under_way, when its memory is ready and fewer than 8 are under way
///   make_progress()  under_way  free, when all steps are done; if staged, it waits for wait()
///   wait()           staged     free
///
/// With NCCL: free -> enqueued -> free, all by the main thread. The stream does the work.
///
/// One thread polls at a time, the owner of `progress_mutex`: the main thread while it waits,
/// otherwise the engine's thread. Without an engine thread the main thread polls in every call.
/// `mutex` guards the data that both threads access; the rest is atomic.
struct Engine::State {
  using Work =
      std::variant<AllReduce, AxisSum, ReduceScatter, Bfloat16Sum, AllGather, Send, Receive>;
  struct Group;
  class WaitNote;

  /// A request, or a free place for one.
  struct RequestSlot {
    explicit RequestSlot(std::size_t number_in) : number(number_in) {}

    const std::size_t number;  ///< index in `slots`
    /// How often the slot was used, and the sequence number of the request within the engine.
    std::uint64_t uses = 0, sequence_number = 0;
    /// 0: free. Otherwise (uses, number). A request is done once its slot holds another value.
    std::atomic<Request> request{0};
    std::atomic<bool> under_way{false};
    /// Staged: the copy back is enqueued. The slot becomes free when the main thread has waited.
    std::atomic<bool> copy_back_enqueued{false};
    std::optional<Work> work;
    StagingCopy staging_copy;
    bool by_nccl = false;
    Purpose purpose = "";
    Group* group = nullptr;
    /// A sum or gather, not a message: limited in number, started in order.
    bool is_collective = false;
    int tag = 0, step = 0, steps = 0;
    double begin_seconds = 0;  ///< monotonic_seconds() at its first MPI call
    MpiCalls calls;
    /// NCCL: event at the end of the request, and the bytes that it sends. Each request records the
    /// event again.
    std::optional<Event> nccl_done;
    double nccl_bytes_sent = 0;
    RequestSlot* next = nullptr;  ///< the next slot of its list

    /// Returns kind, number, purpose, bytes and ranks, as in "all_reduce 7 label: 40 bytes over
    /// ...".
    std::string describe() const;
  };

  /// A linked list of slots, first in, first out. A slot is in at most one list. Never allocates.
  struct List {
    RequestSlot *first = nullptr, *last = nullptr;
    bool empty() const { return first == nullptr; }
    void push(RequestSlot& slot) {
      slot.next = nullptr;
      (empty() ? first : last->next) = &slot;
      last = &slot;
    }
    RequestSlot& pop() {
      RequestSlot& slot = *first;
      first = slot.next;
      return slot;
    }
  };

  /// A group of ranks and its requests that have not started.
  struct Group {
    Communicator ranks;  ///< keeps `implementation` alive
    MpiCommunicator* implementation = nullptr;
    /// Sums and gathers, and sends, in the order submitted.
    List waiting_collectives, waiting_sends;
    int started_collectives = 0;  ///< started sums and gathers
  };

  State(ProgressMode progress_mode_in, std::int64_t max_call_count_in);

  /// Submits a request on host memory, or on device memory that `staging_copy` stages.
  Request submit(const Communicator& ranks, MpiCommunicator& implementation, int tag,
                 const Purpose& purpose, const Work& work, const StagingCopy& staging_copy);
  /// Enqueues the calls in `call_list` on the stream of the channel.
  Request submit(Nccl::Channel& channel, const Communicator& ranks, MpiCommunicator& implementation,
                 const Purpose& purpose, const Work& work);
  /// Returns the NCCL channel for this memory and group; null if the request uses MPI.
  Nccl::Channel* channel_of(const void* place, const Communicator& group) const;
  Nccl::Channel* channel_of(const void* place, const Communicator& group, int from, int to,
                            int tag) const;
  /// Returns the stream that works on this memory: the compute stream, or the default for host
  /// memory.
  Stream stream_of(const void* place) const;
  /// Returns the staging of a request with `parts` arrays of `bytes` in total; without effect for
  /// host memory.
  StagingCopy staging_for(const void* place, std::size_t bytes, std::size_t parts);
  /// Waits until the request is done. The compute stream then finds its result.
  void wait(Request request);
  void quiesce();
  void progress();
  /// Returns whether a request of a meta group is reported. Groups of one and empty requests are
  /// not, because they send nothing.
  bool observes(const Communicator& ranks, std::int64_t size) const {
    return observer && ranks.size() > 1 && size > 0;
  }
  /// Reports a request of a meta group and returns its number.
  Request observe(Call call) {
    call.request = ++num_submitted;
    observer(call);
    return call.request;
  }
  /// Frees the slots of NCCL requests that have finished.
  void retire_enqueued();
  /// The engine's thread: polls until the destructor stops it.
  void run();
  /// Polls all requests once; returns whether one finished.
  bool make_progress();
  /// Returns the unfinished requests, oldest first. The caller holds `mutex`.
  std::vector<const RequestSlot*> unfinished() const;
  /// Returns the words of Engine::describe() for the state of an unfinished request.
  std::string_view progress_of(const RequestSlot& slot) const;

  const ProgressMode progress_mode;
  const std::int64_t max_call_count;
  // Owned by the main thread; `slots` grows under `mutex`.
  std::deque<RequestSlot> slots;
  std::deque<Group> groups;
  std::uint64_t num_submitted = 0;
  double waited_seconds = 0;
  Observer observer;           // empty: requests of meta groups are not reported
  bool is_observed = false;    // an observer has been set: all requests are those of meta groups
  bool observes_nccl = false;  // the observed requests will be NCCL's
  std::unique_ptr<Staging> staging;  // null: no device attached
  std::unique_ptr<Nccl> nccl;        // null: not connected
  std::string registration_error;
  CallList call_list;
  std::vector<RequestSlot*> staged;    // submitted and not waited for
  std::vector<RequestSlot*> enqueued;  // on NCCL streams, not finished

  // Owned by the thread that polls, which holds this mutex.
  std::mutex progress_mutex;
  std::vector<RequestSlot*> under_way;  // in the order of their start
  std::vector<Group*> groups_to_start;  // groups with requests that have not started
  std::exception_ptr error;             // first error; no request proceeds after it

  // Shared by both threads.
  mutable std::mutex mutex;
  std::condition_variable wake;
  List free, submitted;
  double bytes_sent = 0;
  std::vector<Span> spans;
  bool records_spans = false;
  bool stopping = false;
  std::atomic<std::int64_t> pending{0};
  std::atomic<bool> main_is_waiting{false};
  /// monotonic_seconds() at which wait() or quiesce() began to block; 0 while neither blocks.
  std::atomic<double> wait_begin{0};
  std::atomic<Request> waited_request{0};  ///< The request of wait(); 0 during quiesce().
  std::thread thread;

 private:
  RequestSlot& take_slot();
  RequestSlot& fill_slot(Group& group, const Purpose& purpose, const Work& work,
                         const StagingCopy& staging_copy);
  Group& group_of(const Communicator& ranks, MpiCommunicator& implementation);
  bool advance();
  bool advance(RequestSlot& slot);
  void start_waiting();
  void begin(RequestSlot& slot);
  void retire(List done);
  void finish_staged(RequestSlot& slot);
  void free_slot(RequestSlot& slot);
  /// `request`: the one that the caller waits for; 0: all of them. `purpose`: that of the
  /// span.
  template <class Done>
  void wait_until(Request request, Purpose purpose, Done&& done);
};

}  // namespace trireme::comm
