#include "trireme/checkpoint/background.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <optional>
#include <vector>

#include "file_plan.hpp"
#include "rows.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/phase.hpp"

namespace trireme::checkpoint {
namespace {

constexpr std::int64_t element_bytes = sizeof(float);

/// Local rows [begin, end) of a part, which stand in file order at `rows`, to where their tensor lies. Whole rows go in one write.
void write_rows(const io::File& file, const Extent& tensor, const parallel::ParameterSpec& spec, const parallel::Part& part, std::int64_t begin,
                std::int64_t end, const float* rows) {
  const auto put = [&](std::int64_t element, const float* values, std::int64_t count) {
    file.write_at(tensor.offset + element * element_bytes, values, count * element_bytes);
  };
  const std::int64_t first = part.row_begin() + begin;
  if (part.row_elements() == spec.row_elements()) {
    put(first * spec.row_elements(), rows, (end - begin) * spec.row_elements());
    return;
  }
  for (std::int64_t row = 0; row < end - begin; ++row) {
    for (const parallel::Part::Segment& segment : part.segments()) {
      put((first + row) * spec.row_elements() + segment.file_column, rows + row * part.row_elements() + segment.column, segment.count);
    }
  }
}

void write_piece(const io::File& file, const Extent& tensor, const Piece& piece, std::vector<float>& staging) {
  const parallel::ParameterSpec& spec = *piece.spec;
  const parallel::Part part = part_of(piece);
  if (spec.inner == parallel::InnerOrder::plain) return write_rows(file, tensor, spec, part, piece.row_begin, piece.row_end, piece.data);
  const std::int64_t step = rows_a_round(part.row_elements());
  for (std::int64_t begin = piece.row_begin; begin < piece.row_end; begin += step) {
    const std::int64_t end = std::min(piece.row_end, begin + step);
    to_file_order(spec, end - begin, piece.data + (begin - piece.row_begin) * part.row_elements(), staging.data());
    write_rows(file, tensor, spec, part, begin, end, staging.data());
  }
}

std::int64_t elements_of(const Piece& piece) { return (piece.row_end - piece.row_begin) * part_of(piece).row_elements(); }

}  // namespace

float* CopyBuffer::take(std::int64_t elements) {
  if (elements > elements_) {
    values_.reset();
    elements_ = 0;
    values_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(elements));
    elements_ = elements;
  }
  return values_.get();
}

std::int64_t copy_elements(std::span<const Piece> pieces) {
  std::int64_t elements = 0;
  for (const Piece& piece : pieces) elements += elements_of(piece);
  return elements;
}

struct BackgroundWrite::Work {
  /// What the thread does; between two of them the ranks agree.
  enum class Part : std::uint8_t { digests, values, read_back, seal, done };

  const comm::Communicator world;
  const int rank = world.rank(), size = world.size();
  std::string temporary;
  std::vector<Piece> pieces;  ///< of the copy
  FilePlan plan;
  std::optional<io::StagedFile> staged;
  std::vector<Extent> extents;
  std::int64_t file_bytes = 0;
  ReadBack found;
  WriteReport report;
  double own_seconds = 0, thread_seconds = 0;  ///< of work, on the caller's thread and on the other; the latter is read when that is done
  Part part = Part::digests;
  std::future<void> thread;  ///< last: waited for before the rest goes

  explicit Work(const comm::Communicator& group) : world(group) {}

  template <class Body>
  void start(Part next, Body&& body) {
    part = next;
    // Where the machine gives no thread, it is done when it is waited for.
    thread = std::async(std::launch::async | std::launch::deferred, [this, body = std::forward<Body>(body)] {
      const double start = monotonic_seconds();
      body();
      thread_seconds += monotonic_seconds() - start;
    });
  }

  void copy(std::span<const Piece> from, CopyBuffer& buffer) {
    float* to = buffer.take(copy_elements(from));
    pieces.assign(from.begin(), from.end());
    for (Piece& piece : pieces) {
      const std::int64_t elements = elements_of(piece);
      if (elements > 0) std::memcpy(to, piece.data, static_cast<std::size_t>(elements * element_bytes));
      piece.data = to;
      to += elements;
    }
  }

  /// The file as HDF5 lays it out, closed: from here on it has its size and no value.
  void lay_out_file() {
    come_by("checkpoint-layout");
    LaidOut laid_out = lay_out(world, temporary, pieces, plan);
    close(world, laid_out);
    extents = std::move(laid_out.extents);
    comm::together(world, [&] {
      if (rank == 0) file_bytes = io::File(temporary, io::File::Mode::read).size();
    });
    file_bytes = world.all_reduce(file_bytes, comm::Reduction::max);
  }

  void write_values() const {
    io::File file(temporary, io::File::Mode::update);
    std::vector<float> staging(static_cast<std::size_t>(staging_elements(pieces)));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (i == pieces.size() / 2) come_by("checkpoint-write");
      if (pieces[i].row_begin < pieces[i].row_end) write_piece(file, extents[i], pieces[i], staging);
    }
    file.sync();
    file.close();
  }

  void put_in_place() {
    come_by("checkpoint-rename");
    comm::together(world, [&] {
      if (staged) staged->commit();
    });
    come_by("checkpoint-renamed");
    report = {file_bytes, 0, combined_digest(pieces, plan)};
    part = Part::done;
  }
};

BackgroundWrite::BackgroundWrite(const comm::Communicator& world, const std::string& path, std::span<const Piece> pieces, const Info& info,
                                 CopyBuffer& buffer)
    : work_(std::make_unique<Work>(world)) {
  come_by("checkpoint-begin");
  const double start = monotonic_seconds();
  Work& work = *work_;
  work.temporary = path + io::StagedFile::default_suffix;
  work.plan = plan_file(world, path, pieces, info);
  prepare_folder(world, path, work.plan, work.staged);
  comm::together(world, [&] {
    work.copy(pieces, buffer);
    work.start(Work::Part::digests, [&work] { work.plan.digests = digests_of(work.pieces); });
  });
  work.own_seconds = monotonic_seconds() - start;
}

BackgroundWrite::~BackgroundWrite() = default;

bool BackgroundWrite::busy() const {
  return work_->thread.valid() && work_->thread.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
}

bool BackgroundWrite::advance() {
  Work& work = *work_;
  if (work.part == Work::Part::done) return true;
  if (work.thread.wait_for(std::chrono::seconds(0)) == std::future_status::timeout) work.thread.wait();
  const double start = monotonic_seconds();
  comm::together(work.world, [&] { work.thread.get(); });
  switch (work.part) {
    case Work::Part::digests:
      work.world.all_reduce(std::span(work.plan.digests), comm::Reduction::sum);
      work.lay_out_file();
      work.start(Work::Part::values, [&work] { work.write_values(); });
      break;
    case Work::Part::values:
      come_by("checkpoint-close");
      work.start(Work::Part::read_back, [&work] {
        work.found = read_share(work.rank, work.size, work.temporary, work.plan.user_block, work.file_bytes, work.extents);
      });
      break;
    case Work::Part::read_back:
      add_up(work.world, work.found);
      comm::together(work.world, [&] { check_read_back(work.found, work.pieces, work.plan, work.temporary); });
      work.start(Work::Part::seal, [&work] {
        if (work.rank == 0) write_seal(work.temporary, work.plan, work.file_bytes, work.found.block_hashes);
      });
      break;
    case Work::Part::seal: work.put_in_place(); break;
    case Work::Part::done: break;
  }
  work.own_seconds += monotonic_seconds() - start;
  if (work.part != Work::Part::done) return false;
  work.report.seconds = work.own_seconds + work.thread_seconds;
  return true;
}

WriteReport BackgroundWrite::finish() {
  while (!advance()) {
  }
  return work_->report;
}

}  // namespace trireme::checkpoint
