#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "all_gather.hpp"
#include "all_reduce.hpp"
#include "bfloat16_sum.hpp"
#include "message.hpp"
#include "mpi_calls.hpp"
#include "nccl.hpp"
#include "reduce_scatter.hpp"
#include "staging.hpp"
#include "trireme/comm/engine.hpp"

namespace trireme::comm {

/// Requests stand in slots, which are used again and again. One thread drives at a time, the holder
/// of `driving`: the main one where it waits, else the engine's own; without it, the main one
/// whenever it calls. What both touch is guarded by `mutex`, or atomic.
struct Engine::State {
  using Work = std::variant<AllReduce, ReduceScatter, Bfloat16Sum, AllGather, Send, Receive>;
  struct Group;

  struct RequestSlot {
    explicit RequestSlot(std::size_t number_in) : number(number_in) {}

    const std::size_t number;
    std::uint64_t uses = 0, sequence_number =
                                0;  // how often it was used; which request of the engine this is
    std::atomic<Request> request{
        0};  // 0: free. A ticket is (use, number of the slot): it is done once another stands here
    std::atomic<bool> under_way{false};
    std::atomic<bool> copy_back_enqueued{
        false};  // staged: what comes in is on its way, and the slot is free
                 // once the main thread has waited for it
    std::optional<Work> work;
    StagingCopy staging_copy;
    bool by_nccl = false;
    std::string_view label;
    Group* group = nullptr;
    bool is_collective = false;  // a sum or gather: few are under way at once
    int tag = 0, step = 0, steps = 0;
    double begin_seconds = 0;  // monotonic_seconds()
    MpiCalls calls;
    std::optional<Event> nccl_done;  // by NCCL: its end, recorded anew by each request that
                                     // stands here, and what it sends
    double nccl_bytes_sent = 0;
    RequestSlot* next = nullptr;  // in the one list in which it stands
  };

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

  struct Group {
    Communicator ranks;  // keeps it alive
    MpiCommunicator* implementation = nullptr;
    List waiting_collectives, waiting_sends;  // not started: sums and gathers, and what is sent,
                                              // which start in the order asked for
    int started_collectives = 0;              // of those in order
  };

  State(ProgressMode progress_mode_in, std::int64_t max_call_count_in);

  Request submit(const Communicator& ranks, MpiCommunicator& form, int tag, std::string_view label,
                 const Work& work, const StagingCopy& staging_copy);
  /// The same by NCCL, of what stands in `plan`.
  Request submit(Nccl::Channel& channel, std::string_view label, const Work& work);
  /// By which a request on memory at `place` goes; null: by MPI.
  Nccl::Channel* channel_of(const void* place, const Communicator& group) const;
  Nccl::Channel* channel_of(const void* place, const Communicator& group, int from, int to,
                            int tag) const;
  /// The stream that works on memory at `place`.
  Stream stream_of(const void* place) const;
  /// The way for memory at `place`: for `parts` pieces that are `bytes` together, where it is a
  /// device's.
  StagingCopy staging_for(const void* place, std::size_t bytes, std::size_t parts);
  /// Until the request is done, and for what the compute stream is given from now on, its memory is
  /// there.
  void wait(Request request);
  void quiesce();
  void progress();
  /// Frees the slots of what NCCL has done.
  void retire_enqueued();
  void run();
  bool make_progress();

  const ProgressMode progress_mode;
  const std::int64_t max_call_count;
  std::deque<RequestSlot> slots;  // grown by the main thread, under the mutex
  std::deque<Group> groups;       // looked through by the main thread alone
  std::uint64_t num_submitted = 0;
  double waited_seconds = 0;
  std::unique_ptr<Staging> staging;  // null: no device is served
  std::unique_ptr<Nccl> nccl;        // null: nothing is connected
  std::string registration_error;
  CallList call_list;
  std::vector<RequestSlot*> staged;    // asked for and not waited for
  std::vector<RequestSlot*> enqueued;  // by NCCL, and not done. All these are the main thread's

  std::mutex progress_mutex;
  std::vector<RequestSlot*> under_way;  // in the order of their start
  std::vector<Group*> groups_to_start;  // groups with something that is not started
  std::exception_ptr error;             // whoever drove met it: nothing moves any more

  mutable std::mutex mutex;
  std::condition_variable wake;
  List free, submitted;
  double bytes_sent = 0;
  std::vector<Span> spans;
  bool records_spans = false;
  bool stopping = false;
  std::atomic<std::int64_t> pending{0};
  std::atomic<bool> main_is_waiting{false};
  std::thread thread;

 private:
  RequestSlot& take_slot();
  Group& group_of(const Communicator& ranks, MpiCommunicator& form);
  bool advance();
  bool advance(RequestSlot& slot);
  void start_waiting();
  void begin(RequestSlot& slot);
  void retire(List done);
  void finish_staged(RequestSlot& slot);
  void free_slot(RequestSlot& slot);
  template <class Done>
  void wait_until(Done&& done);
};

}  // namespace trireme::comm
