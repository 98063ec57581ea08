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
#include "trireme/device/stream.hpp"
#include "values.hpp"

namespace trireme::checkpoint {
namespace {

std::int64_t num_copy_elements(std::span<const TensorSlice> slices) {
  std::int64_t elements = 0;
  for (const TensorSlice& slice : slices) elements += elements_of(slice);
  return elements;
}

/// What the thread turns rows and reads back through.
std::int64_t staging_buffer_bytes(std::span<const TensorSlice> slices) {
  return std::max(staging_elements(slices) * static_cast<std::int64_t>(sizeof(float)),
                  read_back_bytes);
}

}  // namespace

BackgroundMemory allocate_background_memory(Arena& arena, std::span<const TensorSlice> slices) {
  return {arena.allocate(DType::float32, {num_copy_elements(slices)}),
          arena.allocate(DType::uint8, {staging_buffer_bytes(slices)})};
}

struct BackgroundWrite::Implementation {
  /// What the thread does; between two of them the ranks agree.
  enum class Phase : std::uint8_t { digests, layout, values, read_back, publish, done };

  const comm::Communicator world;
  StateCopy& state;
  const int rank = world.rank(), size = world.size();
  const ArenaScope memory_scope;
  std::string temporary;
  std::vector<TensorSlice> slices;  ///< of the copy
  Tensor staging;
  FilePlan plan;
  std::optional<io::StagedFile> staged;
  FileOffsets offsets;
  ReadBack read_back;
  WriteReport report;
  double own_seconds = 0, thread_seconds = 0;  ///< of work, on the caller's thread and on the
                                               ///< other; the latter is read when that is done
  double enqueue_seconds =
      0;  ///< the caller's, until it had given all copies; on the CPU until they were made
  double layout_seconds = 0, writing_seconds = 0;
  Phase phase = Phase::digests;
  std::future<void> thread;  ///< last: waited for before the rest goes

  Implementation(const comm::Communicator& group, StateCopy& copy)
      : world(group), state(copy), memory_scope(copy.memory()) {}

  template <class Body>
  void start(Phase next, Body&& body) {
    phase = next;
    // Where the machine gives no thread, it is done when it is waited for.
    thread = std::async(std::launch::async | std::launch::deferred,
                        [this, body = std::forward<Body>(body)] {
                          const double start = monotonic_seconds();
                          body();
                          thread_seconds += monotonic_seconds() - start;
                        });
  }

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

  void digest_copy() {
    enter_phase("checkpoint-copy");
    const double start = monotonic_seconds();
    report.copy_seconds = state.wait();
    thread_seconds -= monotonic_seconds() - start;  // no work
    plan.digests = digests_of(slices);
  }

  /// Rank 0's, without MPI: from here on the file has its size and no value.
  void create_skeleton_file() {
    const double start = monotonic_seconds();
    enter_phase("checkpoint-layout");
    if (rank == 0) {
      FileSkeleton skeleton = create_skeleton(comm::Communicator(), temporary, slices, plan);
      offsets = close_skeleton(skeleton, temporary);
    }
    layout_seconds = monotonic_seconds() - start;
  }

  void write_copy() {
    const double start = monotonic_seconds();
    write_values(temporary, slices, offsets.tensors, {}, static_cast<float*>(staging.data));
    writing_seconds = monotonic_seconds() - start;
  }

  void read_copy_back() {
    const std::span buffer(static_cast<char*>(staging.data),
                           static_cast<std::size_t>(staging.bytes()));
    read_back = read_share(rank, size, temporary, plan.user_block_bytes, offsets.file_bytes,
                           offsets.tensors, buffer);
  }

  /// All ranks have agreed that the file holds what it should: rank 0 puts it in place.
  void publish_file() {
    if (rank == 0) write_seal(temporary, plan, offsets.file_bytes, read_back.block_hashes);
    enter_phase("checkpoint-rename");
    if (staged) staged->commit();
    enter_phase("checkpoint-renamed");
  }

  void finish() {
    report.bytes = offsets.file_bytes;
    report.digest = combined_digest(slices, plan);
    report.writing_seconds = layout_seconds + writing_seconds;
    phase = Phase::done;
  }
};

BackgroundWrite::BackgroundWrite(const comm::Communicator& world, const std::string& path,
                                 std::span<const TensorSlice> slices, const Info& info,
                                 StateCopy& copy)
    : implementation_(std::make_unique<Implementation>(world, copy)) {
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
  comm::together(work.world, [&] { work.thread.get(); });
  switch (work.phase) {
    case Implementation::Phase::digests:
      work.world.all_reduce(std::span(work.plan.digests), comm::Reduction::sum);
      work.start(Implementation::Phase::layout, [&work] { work.create_skeleton_file(); });
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
