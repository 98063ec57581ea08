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

std::int64_t copied_elements(std::span<const Piece> pieces) {
  std::int64_t elements = 0;
  for (const Piece& piece : pieces) elements += elements_of(piece);
  return elements;
}

/// What the thread turns rows and reads back through.
std::int64_t staged_bytes(std::span<const Piece> pieces) {
  return std::max(staging_elements(pieces) * static_cast<std::int64_t>(sizeof(float)),
                  read_back_bytes);
}

}  // namespace

BackgroundMemory take_background_memory(Arena& arena, std::span<const Piece> pieces) {
  return {arena.allocate(DType::float32, {copied_elements(pieces)}),
          arena.allocate(DType::uint8, {staged_bytes(pieces)})};
}

struct BackgroundWrite::Work {
  /// What the thread does; between two of them the ranks agree.
  enum class Part : std::uint8_t { digests, layout, values, read_back, in_place, done };

  const comm::Communicator world;
  StateCopy& state;
  const int rank = world.rank(), size = world.size();
  const ArenaScope taken;
  std::string temporary;
  std::vector<Piece> pieces;  ///< of the copy
  Tensor staging;
  FilePlan plan;
  std::optional<io::StagedFile> staged;
  Placement placement;
  ReadBack found;
  WriteReport report;
  double own_seconds = 0, thread_seconds = 0;  ///< of work, on the caller's thread and on the
                                               ///< other; the latter is read when that is done
  double giving_seconds =
      0;  ///< the caller's, until it had given all copies; on the CPU until they were made
  double layout_seconds = 0, writing_seconds = 0;
  Part part = Part::digests;
  std::future<void> thread;  ///< last: waited for before the rest goes

  Work(const comm::Communicator& group, StateCopy& copy)
      : world(group), state(copy), taken(copy.memory()) {}

  template <class Body>
  void start(Part next, Body&& body) {
    part = next;
    // Where the machine gives no thread, it is done when it is waited for.
    thread = std::async(std::launch::async | std::launch::deferred,
                        [this, body = std::forward<Body>(body)] {
                          const double start = monotonic_seconds();
                          body();
                          thread_seconds += monotonic_seconds() - start;
                        });
  }

  void give_copies(std::span<const Piece> from) {
    const BackgroundMemory own = take_background_memory(state.memory(), from);
    staging = own.staging;
    float* to = own.copy.as<float>();
    pieces.assign(from.begin(), from.end());
    const double start = monotonic_seconds();
    const Stream& copies = state.begin();
    for (Piece& piece : pieces) {
      TRIREME_EXPECT(piece.stream.handle == state.compute().handle);
      const std::int64_t elements = elements_of(piece);
      copy_bytes(copies, to, piece.data, static_cast<std::size_t>(elements) * sizeof(float));
      piece.stream = {};  // the thread reads host memory
      piece.data = to;
      to += elements;
    }
    state.end();
    giving_seconds = monotonic_seconds() - start;
  }

  void take_digests() {
    enter_phase("checkpoint-copy");
    const double start = monotonic_seconds();
    report.copy_seconds = state.wait();
    thread_seconds -= monotonic_seconds() - start;  // no work
    plan.digests = digests_of(pieces);
  }

  /// Rank 0's, without MPI: from here on the file has its size and no value.
  void lay_out_file() {
    const double start = monotonic_seconds();
    enter_phase("checkpoint-layout");
    if (rank == 0) {
      LaidOut laid_out = lay_out(comm::Communicator(), temporary, pieces, plan);
      placement = close(laid_out, temporary);
    }
    layout_seconds = monotonic_seconds() - start;
  }

  void write_copy() {
    const double start = monotonic_seconds();
    write_values(temporary, pieces, placement.tensors, {}, static_cast<float*>(staging.data));
    writing_seconds = monotonic_seconds() - start;
  }

  void read_copy_back() {
    const std::span buffer(static_cast<char*>(staging.data),
                           static_cast<std::size_t>(staging.bytes()));
    found = read_share(rank, size, temporary, plan.user_block, placement.file_bytes,
                       placement.tensors, buffer);
  }

  /// All ranks have agreed that the file holds what it should: rank 0 puts it in place.
  void put_in_place() {
    if (rank == 0) write_seal(temporary, plan, placement.file_bytes, found.block_hashes);
    enter_phase("checkpoint-rename");
    if (staged) staged->commit();
    enter_phase("checkpoint-renamed");
  }

  void finish() {
    report.bytes = placement.file_bytes;
    report.digest = combined_digest(pieces, plan);
    report.writing_seconds = layout_seconds + writing_seconds;
    part = Part::done;
  }
};

BackgroundWrite::BackgroundWrite(const comm::Communicator& world, const std::string& path,
                                 std::span<const Piece> pieces, const Info& info, StateCopy& copy)
    : work_(std::make_unique<Work>(world, copy)) {
  enter_phase("checkpoint-begin");
  const double start = monotonic_seconds();
  Work& work = *work_;
  work.temporary = path + io::StagedFile::default_suffix;
  work.plan = plan_file(world, path, pieces, info);
  prepare_folder(world, path, work.plan, work.staged);
  comm::together(world, [&] {
    work.give_copies(pieces);
    work.start(Work::Part::digests, [&work] { work.take_digests(); });
  });
  work.own_seconds = monotonic_seconds() - start - work.giving_seconds;
}

BackgroundWrite::~BackgroundWrite() = default;

bool BackgroundWrite::busy() const {
  return work_->thread.valid() &&
         work_->thread.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
}

bool BackgroundWrite::advance() {
  Work& work = *work_;
  if (work.part == Work::Part::done) return true;
  if (work.thread.wait_for(std::chrono::seconds(0)) == std::future_status::timeout)
    work.thread.wait();
  const double start = monotonic_seconds();
  comm::together(work.world, [&] { work.thread.get(); });
  switch (work.part) {
    case Work::Part::digests:
      work.world.all_reduce(std::span(work.plan.digests), comm::Reduction::sum);
      work.start(Work::Part::layout, [&work] { work.lay_out_file(); });
      break;
    case Work::Part::layout:
      share(work.world, work.placement, work.pieces.size());
      work.start(Work::Part::values, [&work] { work.write_copy(); });
      break;
    case Work::Part::values:
      enter_phase("checkpoint-close");
      work.start(Work::Part::read_back, [&work] { work.read_copy_back(); });
      break;
    case Work::Part::read_back:
      add_up(work.world, work.found);
      comm::together(work.world,
                     [&] { check_read_back(work.found, work.pieces, work.plan, work.temporary); });
      work.start(Work::Part::in_place, [&work] { work.put_in_place(); });
      break;
    case Work::Part::in_place: work.finish(); break;
    case Work::Part::done: break;
  }
  work.own_seconds += monotonic_seconds() - start;
  if (work.part != Work::Part::done) return false;
  work.report.caller_seconds = work.own_seconds;
  work.report.seconds = work.report.copy_seconds + work.own_seconds + work.thread_seconds;
  return true;
}

WriteReport BackgroundWrite::finish() {
  while (!advance()) {
  }
  return work_->report;
}

}  // namespace trireme::checkpoint
