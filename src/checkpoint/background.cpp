// SPDX-License-Identifier: Apache-2.0
//
// BackgroundWrite: a checkpoint that a thread writes while training continues.
//
// The constructor plans the file, enqueues the copies to host memory and starts the thread with the
// first phase. Between two phases the caller's thread runs the collective work in advance(). The
// timeline is in background.hpp. The Saver of src/train calls advance() between steps, once no
// rank's thread is busy. It calls finish() if the run has to wait for the file. write.cpp writes
// the same bytes without a thread; both use file_plan.cpp and values.cpp.
#include "trireme/checkpoint/background.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <future>
#include <optional>
#include <utility>
#include <vector>

#include "file_plan.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/device/profile_range.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/io/seal.hpp"
#include "values.hpp"

namespace trireme::checkpoint {
namespace {

/// Returns the elements of all slices: the size of their copy in host memory.
std::int64_t num_copy_elements(std::span<const TensorSlice> slices) {
  std::int64_t elements = 0;
  for (const TensorSlice& slice : slices) elements += elements_of(slice);
  return elements;
}

/// Returns the bytes of the buffer through which the thread reorders rows and reads the file back.
std::int64_t staging_buffer_bytes(std::span<const TensorSlice> slices) {
  return std::max(staging_elements(slices) * static_cast<std::int64_t>(sizeof(float)),
                  read_back_bytes);
}

}  // namespace

BackgroundMemory allocate_background_memory(Arena& arena, std::span<const TensorSlice> slices) {
  return {arena.allocate(DType::float32, {num_copy_elements(slices)}),
          arena.allocate(DType::uint8, {staging_buffer_bytes(slices)})};
}

/// The state of one background checkpoint. While a phase runs, only the thread touches `plan`,
/// `offsets`, `read_back` and `report`; the caller's thread does so between two phases.
struct BackgroundWrite::Implementation {
  /// The work of the thread, phase by phase. All ranks agree on errors after each phase.
  enum class Phase : std::uint8_t { digests, layout, values, read_back, publish, done };

  const comm::Communicator world;
  StateCopy& state;
  const Publisher publish;
  const int rank = world.rank(), size = world.size();
  const ArenaScope memory_scope;
  std::string temporary;
  std::vector<TensorSlice> slices;  ///< data points into the copy in host memory
  Tensor staging;
  FilePlan plan;
  /// Rank 0: the temporary file. Its destructor removes the file unless it was committed.
  std::optional<io::StagedFile> staged;
  FileOffsets offsets;
  ReadBack read_back;
  WriteReport report;
  /// Seconds of work on the caller's thread and on the other thread. The caller reads the latter
  /// only while the thread is idle.
  double own_seconds = 0, thread_seconds = 0;
  /// Seconds in which the caller enqueued all copies. On the CPU the copies themselves are
  /// included.
  double enqueue_seconds = 0;
  double layout_seconds = 0, writing_seconds = 0;
  Phase phase = Phase::digests;
  /// The last member: its destructor waits for the thread before the other members are destroyed.
  std::future<void> thread;

  Implementation(const comm::Communicator& group, StateCopy& copy, Publisher publisher)
      : world(group), state(copy), publish(std::move(publisher)), memory_scope(copy.memory()) {}

  /// Starts a phase: runs `body` on a new thread and adds its seconds to thread_seconds.
  template <class Body>
  void start(Phase next, Body&& body) {
    phase = next;
    // If the system refuses a thread, the body runs when advance() waits for it.
    thread = std::async(std::launch::async | std::launch::deferred,
                        [this, body = std::forward<Body>(body)] {
                          const double start = monotonic_seconds();
                          body();
                          thread_seconds += monotonic_seconds() - start;
                        });
  }

  /// Enqueues the copies of all slices to host memory. From here on the slices of this object point
  /// into the copy and have no stream.
  void enqueue_copies(std::span<const TensorSlice> from) {
    const BackgroundMemory own = allocate_background_memory(state.memory(), from);
    staging = own.staging;
    float* to = own.copy.as<float>();
    slices.assign(from.begin(), from.end());
    const double start = monotonic_seconds();
    const Stream& copies = state.begin();
    for (TensorSlice& slice : slices) {
      TRIREME_EXPECT(slice.stream.handle == state.compute().handle);
      const std::int64_t elements = elements_of(slice);
      copy_bytes(copies, to, slice.data, static_cast<std::size_t>(elements) * sizeof(float));
      slice.stream = {};  // the thread reads host memory
      slice.data = to;
      to += elements;
    }
    state.end();
    enqueue_seconds = monotonic_seconds() - start;
  }

  /// Waits for the copies, then computes the digests of this rank's slices.
  void digest_copy() {
    enter_phase("checkpoint-copy");
    const double start = monotonic_seconds();
    {
      const ProfileRange range("trireme/checkpoint/copy", "checkpoint");
      report.copy_seconds = state.wait();
    }
    thread_seconds -= monotonic_seconds() - start;  // waiting is not work
    plan.digests = digests_of(slices);
  }

  /// Rank 0 lays out the file without MPI. From here on the file has its final size, but no values.
  void create_file() {
    const double start = monotonic_seconds();
    enter_phase("checkpoint-layout");
    if (rank == 0) offsets = create_layout(temporary, slices, plan);
    layout_seconds = monotonic_seconds() - start;
  }

  /// Writes this rank's values at their offsets in the file and flushes them.
  void write_copy() {
    const double start = monotonic_seconds();
    write_values(temporary, slices, offsets.tensors, {}, static_cast<float*>(staging.data));
    writing_seconds = monotonic_seconds() - start;
  }

  /// Reads this rank's share of the blocks: their hashes and digests.
  void read_copy_back() {
    const std::span buffer(static_cast<char*>(staging.data),
                           static_cast<std::size_t>(staging.bytes()));
    read_back = read_share(rank, size, temporary, plan.user_block_bytes, offsets.file_bytes,
                           offsets.tensors, buffer);
  }

  /// Publishes the file: rank 0 writes the seal and renames it. All ranks have agreed that its
  /// content is right.
  void publish_file() {
    const ProfileRange range("trireme/checkpoint/publish", "checkpoint");
    if (rank == 0)
      io::write_seal(temporary, plan.user_block_bytes, offsets.file_bytes, read_back.block_hashes);
    enter_phase("checkpoint-rename");
    if (staged) publish(*staged);
    enter_phase("checkpoint-renamed");
  }

  /// Completes the report after the rename.
  void finish() {
    report.bytes = offsets.file_bytes;
    report.digest = combined_digest(slices, plan);
    report.writing_seconds = layout_seconds + writing_seconds;
    phase = Phase::done;
  }
};

BackgroundWrite::BackgroundWrite(const comm::Communicator& world, const std::string& path,
                                 std::span<const TensorSlice> slices, const Info& info,
                                 StateCopy& copy, const Publisher& publish)
    : implementation_(std::make_unique<Implementation>(world, copy, publish)) {
  enter_phase("checkpoint-begin");
  const double start = monotonic_seconds();
  Implementation& work = *implementation_;
  work.temporary = path + io::StagedFile::default_suffix;
  work.plan = plan_file(world, path, slices, info);
  create_staged_file(world, path, work.plan, work.staged);
  comm::together(world, [&] {
    work.enqueue_copies(slices);
    work.start(Implementation::Phase::digests, [&work] { work.digest_copy(); });
  });
  work.own_seconds = monotonic_seconds() - start - work.enqueue_seconds;
}

BackgroundWrite::~BackgroundWrite() = default;

bool BackgroundWrite::busy() const {
  return implementation_->thread.valid() &&
         implementation_->thread.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
}

bool BackgroundWrite::advance() {
  Implementation& work = *implementation_;
  if (work.phase == Implementation::Phase::done) return true;
  if (work.thread.wait_for(std::chrono::seconds(0)) == std::future_status::timeout)
    work.thread.wait();
  const double start = monotonic_seconds();
  // 1. Rethrow an error of any rank's thread on all ranks.
  comm::together(work.world, [&] { work.thread.get(); });
  // 2. Do the collective work between the finished phase and the next one, and start that.
  switch (work.phase) {
    case Implementation::Phase::digests:
      work.world.all_reduce(std::span(work.plan.digests), comm::Reduction::sum);
      work.start(Implementation::Phase::layout, [&work] { work.create_file(); });
      break;
    case Implementation::Phase::layout:
      broadcast_offsets(work.world, work.offsets, work.slices.size());
      work.start(Implementation::Phase::values, [&work] { work.write_copy(); });
      break;
    case Implementation::Phase::values:
      enter_phase("checkpoint-close");
      work.start(Implementation::Phase::read_back, [&work] { work.read_copy_back(); });
      break;
    case Implementation::Phase::read_back:
      sum_over_ranks(work.world, work.read_back);
      comm::together(work.world, [&] {
        check_read_back(work.read_back, work.slices, work.plan, work.temporary);
      });
      work.start(Implementation::Phase::publish, [&work] { work.publish_file(); });
      break;
    case Implementation::Phase::publish: work.finish(); break;
    case Implementation::Phase::done: break;
  }
  // 3. Account the time; after the last phase complete the report.
  work.own_seconds += monotonic_seconds() - start;
  if (work.phase != Implementation::Phase::done) return false;
  work.report.caller_seconds = work.own_seconds;
  work.report.seconds = work.report.copy_seconds + work.own_seconds + work.thread_seconds;
  return true;
}

WriteReport BackgroundWrite::finish() {
  while (!advance()) {
  }
  return implementation_->report;
}

}  // namespace trireme::checkpoint
